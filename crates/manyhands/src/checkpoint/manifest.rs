//! The manifest of a checkpoint: what is in it, with checksums, and whose it is.
//!
//! `manifest.json` checks itself too: its last member is the SHA-256 of all bytes before it. Every version of the format
//! keeps that, so a damaged manifest is never taken for one of a newer version or of another job.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::FORMAT;
use super::error::{CheckpointError, Damage};
use crate::files::FileDigest;

/// The name of its file.
pub(super) const MANIFEST: &str = "manifest.json";

/// What comes between the text that is checked and its checksum.
const BEFORE_CHECKSUM: &str = ",\n  \"manifest_sha256\": \"";
const AFTER_CHECKSUM: &str = "\"\n}\n";

/// What is in a folder, with checksums, and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The version of the format.
    pub(super) format: u64,
    /// The kernels that computed it: another set may give other last bits.
    pub(super) kernel_set: String,
    /// The fingerprint of the job.
    pub(super) job: String,
    /// The step after which it was taken.
    pub(super) step: u64,
    /// Every other file of the folder.
    pub(super) files: BTreeMap<String, Listed>,
}

/// A file as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listed {
    #[serde(flatten)]
    pub(super) now: FileDigest,
    /// What it was before, while files that are read on their own are being replaced one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<FileDigest>,
}

/// The part of a manifest that every version has.
#[derive(Deserialize)]
struct AnyVersion {
    format: u64,
}

impl Manifest {
    /// The text of the file.
    pub(super) fn to_text(&self) -> String {
        let body = serde_json::to_string_pretty(self).expect("strings and numbers can be written");
        let body = body.trim_end_matches("\n}");
        let checksum = FileDigest::of(body.as_bytes()).sha256;
        format!("{body}{BEFORE_CHECKSUM}{checksum}{AFTER_CHECKSUM}")
    }

    /// Reads the text of the file at `path`.
    pub(super) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Manifest, CheckpointError> {
        let damaged = |damage| CheckpointError::Damaged { path: path.to_path_buf(), damage };
        let unreadable = |reason: String| {
            damaged(Damage::Content { expected: "the list of files of a checkpoint", reason })
        };
        let text = std::str::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))?;
        let (body, rest) = text
            .rsplit_once(BEFORE_CHECKSUM)
            .ok_or_else(|| unreadable("its own checksum is not at its end".to_string()))?;
        let own = FileDigest::of(body.as_bytes()).sha256;
        if rest.strip_suffix(AFTER_CHECKSUM) != Some(own.as_str()) {
            return Err(unreadable("its own checksum does not match".to_string()));
        }
        let version: AnyVersion =
            serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
        if version.format > FORMAT {
            let (path, found) = (path.to_path_buf(), version.format);
            return Err(CheckpointError::Newer { path, found });
        }
        serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))
    }

    /// Checks the bytes of a file of the folder.
    pub(super) fn check(&self, name: &str, bytes: &[u8]) -> Result<(), Damage> {
        let listed = self.files.get(name).ok_or(Damage::Unlisted)?;
        let found = FileDigest::of(bytes);
        if found == listed.now || Some(&found) == listed.before.as_ref() {
            return Ok(());
        }
        match (listed.now.bytes, found.bytes) {
            (expected, found) if expected != found => Err(Damage::Length { expected, found }),
            _ => Err(Damage::Checksum),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let listed = |text: &str| Listed { now: FileDigest::of(text.as_bytes()), before: None };
        Manifest {
            format: FORMAT,
            kernel_set: "cpu-1".to_string(),
            job: "f00d".to_string(),
            step: 12,
            files: [("a.json".to_string(), listed("{}")), ("b".to_string(), listed("b"))].into(),
        }
    }

    fn read(text: &[u8]) -> Result<Manifest, CheckpointError> {
        Manifest::from_bytes(Path::new(MANIFEST), text)
    }

    #[test]
    fn a_manifest_is_json_and_comes_back() {
        let text = manifest().to_text();
        assert_eq!(read(text.as_bytes()).unwrap(), manifest());
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["files"]["b"]["bytes"], 1);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed_as_damage() {
        let text = manifest().to_text().into_bytes();
        for idx in 0..text.len() {
            assert!(read(&text[..idx]).unwrap_err().is_damage(), "cut at {idx}");
            for bit in 0..8 {
                let mut flipped = text.clone();
                flipped[idx] ^= 1 << bit;
                assert!(read(&flipped).unwrap_err().is_damage(), "bit {bit} of byte {idx}");
            }
        }
    }

    #[test]
    fn a_newer_format_is_said_to_be_newer() {
        let newer = Manifest { format: FORMAT + 1, ..manifest() };
        let error = read(newer.to_text().as_bytes()).unwrap_err().to_string();
        let expected = "manifest.json was written by a newer version of manyhands (format 2; this one knows formats up to 1)";
        assert_eq!(error, expected);
    }

    #[test]
    fn while_a_file_is_replaced_both_its_versions_are_right() {
        let mut replaced = manifest();
        let listed = replaced.files.get_mut("b").unwrap();
        listed.before = Some(std::mem::replace(&mut listed.now, FileDigest::of(b"new")));
        assert_eq!(replaced.check("b", b"b"), Ok(()));
        assert_eq!(replaced.check("b", b"new"), Ok(()));
        assert_eq!(replaced.check("b", b"odd"), Err(Damage::Checksum));
        assert_eq!(replaced.check("b", b"ne"), Err(Damage::Length { expected: 3, found: 2 }));
        assert_eq!(replaced.check("c", b""), Err(Damage::Unlisted));
        assert_eq!(read(replaced.to_text().as_bytes()).unwrap(), replaced);
    }
}
