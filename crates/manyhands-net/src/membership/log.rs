//! What a coordinator must remember beyond its end, as lines with checksums.
//!
//! A line is `CHECKSUM JSON`, the checksum being FNV-1a of the JSON in hexadecimal: enough to tell a line that was cut short or
//! overwritten, which is all that is asked of it. Nobody without the right to write the file is kept out by it.

use serde::{Deserialize, Serialize};

use super::bounds::count;
use super::identity::{ClusterId, Incarnation, JobId, MemberId, ViewId};
use super::message::{Go, Join, Submit};

/// A change that survives the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// A life began.
    Started {
        /// The cluster.
        cluster: ClusterId,
        /// The life.
        incarnation: Incarnation,
    },
    /// A life met a newer one and ended.
    Superseded {
        /// The newer one.
        by: Incarnation,
    },
    /// Numbers below these have been given, whether or not an entry is left that says so.
    Counted {
        /// To workers.
        member: u32,
        /// To views.
        view: u64,
        /// To jobs.
        job: u64,
    },
    /// A worker became a member.
    Joined {
        /// Its id.
        id: MemberId,
        /// What it said of itself.
        join: Join,
    },
    /// A worker was asked to leave.
    Draining {
        /// Its id.
        id: MemberId,
    },
    /// A worker is a member no more.
    Dropped {
        /// Its id.
        id: MemberId,
        /// Why.
        reason: String,
    },
    /// A job was accepted.
    Accepted {
        /// Its id.
        job: JobId,
        /// What the driver said of it.
        submit: Submit,
    },
    /// The job has ended.
    Ended {
        /// Its id.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// A view's number is taken.
    Prepared {
        /// The view.
        view: ViewId,
    },
    /// A view was decided.
    Went(Box<Go>),
}

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum LogError {
    /// A line in the middle is damaged: what follows cannot be trusted without it.
    #[error(
        "line {line} of the coordinator's log is damaged, and it is not the last one: {what}; restore the file, or start a new \
         cluster with another"
    )]
    Damaged {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// There is no first entry.
    #[error("the coordinator's log does not begin with the name of a cluster")]
    NoStart,
}

/// The entries of a log, and how many bytes of it they are: a last line that was cut short is left out, and to be cut off before
/// more is written.
#[derive(Debug, PartialEq)]
pub struct Decoded {
    /// The entries, in order.
    pub entries: Vec<Entry>,
    /// Where the next line is to be written.
    pub n_bytes: usize,
}

/// The line of an entry, with its end.
pub fn encode(entry: &Entry) -> Result<String, serde_json::Error> {
    let json = serde_json::to_string(entry)?;
    Ok(format!("{:016x} {json}\n", checksum(json.as_bytes())))
}

/// Reads a log.
pub fn decode(bytes: &[u8]) -> Result<Decoded, LogError> {
    let (mut entries, mut n_bytes) = (Vec::new(), 0);
    for (index, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
        match decode_line(line) {
            Ok(entry) => entries.push(entry),
            Err(_) if n_bytes + line.len() == bytes.len() => break,
            Err(what) => return Err(LogError::Damaged { line: index + 1, what }),
        }
        n_bytes += line.len();
    }
    Ok(Decoded { entries, n_bytes })
}

fn decode_line(line: &[u8]) -> Result<Entry, String> {
    let line = line.strip_suffix(b"\n").ok_or("it has no end")?;
    let line = std::str::from_utf8(line).map_err(|_| "it is no text")?;
    let (sum, json) = line.split_once(' ').ok_or("it has no checksum")?;
    if u64::from_str_radix(sum, 16) != Ok(checksum(json.as_bytes())) {
        return Err("its checksum does not fit".to_string());
    }
    let entry: Entry = serde_json::from_str(json).map_err(|error| error.to_string())?;
    entry.check()?;
    Ok(entry)
}

impl Entry {
    /// Whether numbers can be counted on from, and the rest is as it was when it was taken; else what is not.
    fn check(&self) -> Result<(), String> {
        match self {
            Entry::Started { incarnation: life, .. } | Entry::Superseded { by: life } => {
                life.check()
            }
            Entry::Joined { id, join } => id.check().and(join.check()),
            Entry::Dropped { id, .. } | Entry::Draining { id } => id.check(),
            Entry::Counted { member, view, job } => {
                let member = MemberId(*member).check();
                member.and(count("its views", *view)).and(count("its jobs", *job))
            }
            Entry::Accepted { job, submit } => job.check().and(submit.check()),
            Entry::Ended { job, .. } => job.check(),
            Entry::Prepared { view } => view.check(),
            Entry::Went(go) => go.check(),
        }
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> (Vec<Entry>, String) {
        let incarnation = Incarnation { epoch: 1, nonce: 9 };
        let entries: Vec<Entry> =
            (0..4).map(|number| Entry::Prepared { view: ViewId { incarnation, number } }).collect();
        let text = entries.iter().map(|entry| encode(entry).unwrap()).collect();
        (entries, text)
    }

    #[test]
    fn a_log_cut_anywhere_gives_the_entries_that_are_whole() {
        let (entries, text) = lines();
        for cut in 0..=text.len() {
            let decoded = decode(&text.as_bytes()[..cut]).unwrap();
            let n = text[..cut].matches('\n').count();
            assert_eq!(decoded.entries, entries[..n]);
            assert_eq!(decode(&text.as_bytes()[..decoded.n_bytes]).unwrap().entries.len(), n);
        }
    }

    #[test]
    fn a_changed_byte_in_the_middle_is_found() {
        let (_, text) = lines();
        let mut bytes = text.into_bytes();
        bytes[30] ^= 1;
        assert!(matches!(decode(&bytes), Err(LogError::Damaged { line: 1, .. })));
    }
}
