//! Which files a source means, what they hold, and their bytes without the compression. The name of a file is a path, or a
//! URL (`objects`), which passes through everything as a path does.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::objects::{self, ObjectError, ObjectFile, ObjectStream, Stamp};
use crate::read::ReadError;
use crate::spec::{Compression, FileFormat, Source};

/// The files that the patterns match, in the order of the patterns; the matches of one pattern in the order of their names.
pub(crate) fn resolve(patterns: &[String], folder: &Path) -> Result<Vec<Arc<Path>>, ReadError> {
    let mut files = Vec::new();
    for pattern in patterns {
        resolve_one(pattern, folder, &mut files)?;
    }
    if files.is_empty() {
        return Err(ReadError::NoFiles);
    }
    Ok(files)
}

fn resolve_one(pattern: &str, folder: &Path, files: &mut Vec<Arc<Path>>) -> Result<(), ReadError> {
    if objects::is_url(pattern) {
        files.extend(objects::resolve(pattern)?);
        return Ok(());
    }
    let path = folder.join(pattern);
    // A file whose very name has a bracket or a star in it is meant before any pattern is.
    if path.is_file() {
        files.push(path.into());
        return Ok(());
    }
    if path.is_dir() {
        return Err(ReadError::Folder { file: path.into() });
    }
    if !pattern.contains(['*', '?', '[']) {
        return Err(ReadError::MissingFile { file: path.into() });
    }
    let mut matches = glob_files(pattern, folder)?;
    if matches.is_empty() {
        return Err(ReadError::NoMatch { glob: pattern.into(), folder: shown(folder).into() });
    }
    matches.sort();
    files.extend(matches.into_iter().map(Arc::from));
    Ok(())
}

fn glob_files(pattern: &str, folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    // The folder is a name, not a pattern, whatever characters it has.
    let full = if Path::new(pattern).is_absolute() || folder.as_os_str().is_empty() {
        pattern.to_string()
    } else {
        format!("{}/{pattern}", glob::Pattern::escape(&folder.to_string_lossy()))
    };
    // As shells do, so that editors' and systems' hidden files are not taken for data.
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    let paths = glob::glob_with(&full, options)
        .map_err(|err| ReadError::BadGlob { glob: pattern.into(), reason: err.msg })?;
    let mut files = Vec::new();
    for path in paths {
        let path = path.map_err(|err| ReadError::Io {
            file: err.path().into(),
            source: io::Error::new(err.error().kind(), err.error().to_string()),
        })?;
        if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

impl Source {
    /// The same files where a copy of them lies below another folder: of every path the longest end that is there, such as
    /// `data/x.csv` or `x.csv` of `/elsewhere/data/x.csv`. Paths of which no end is there stay, and URLs do.
    pub fn found_below(&self, folder: &Path) -> Source {
        let moved = |path: &String| end_below(path, folder).unwrap_or_else(|| path.clone());
        match self {
            Source::One(path) => Source::One(moved(path)),
            Source::Many(paths) => Source::Many(paths.iter().map(moved).collect()),
            Source::Columns(columns) => Source::Columns(
                columns.iter().map(|(name, path)| (name.clone(), moved(path))).collect(),
            ),
        }
    }
}

/// The longest end of a path or pattern that names files below a folder.
fn end_below(pattern: &str, folder: &Path) -> Option<String> {
    if objects::is_url(pattern) {
        return None;
    }
    let mut end = pattern.trim_start_matches('/');
    loop {
        if resolve_one(end, folder, &mut Vec::new()).is_ok() {
            return Some(end.to_string());
        }
        end = end.split_once('/')?.1.trim_start_matches('/');
    }
}

fn shown(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// What the name says about the compression, and the name without it.
fn split_compression(name: &str) -> (&str, Compression) {
    for (ending, compression) in
        [(".gz", Compression::Gzip), (".zst", Compression::Zstd), (".zstd", Compression::Zstd)]
    {
        if let Some(rest) = name.strip_suffix(ending) {
            return (rest, compression);
        }
    }
    (name, Compression::None)
}

fn lower_name(file: &Path) -> String {
    match url_of(file) {
        Some(url) => objects::file_name(url).to_ascii_lowercase(),
        None => file.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase(),
    }
}

/// The URL that the name of a file is, unless it is a path.
fn url_of(file: &Path) -> Option<&str> {
    file.to_str().filter(|name| objects::is_url(name))
}

/// What the file holds, told from its name.
pub(crate) fn format_of(file: &Arc<Path>) -> Result<FileFormat, ReadError> {
    let name = lower_name(file);
    let (name, _) = split_compression(&name);
    let format = match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "csv" | "tsv" => FileFormat::Csv,
        "parquet" | "pq" => FileFormat::Parquet,
        "jsonl" | "ndjson" | "json" => FileFormat::Jsonl,
        "libsvm" | "svmlight" | "svm" => FileFormat::Libsvm,
        "idx" => FileFormat::Idx,
        "npy" => FileFormat::Npy,
        "txt" => FileFormat::Text,
        _ if name.ends_with("-ubyte") => FileFormat::Idx,
        _ => return Err(ReadError::UnknownFormat { file: file.clone() }),
    };
    Ok(format)
}

/// Whether the name says that tabs separate the cells.
pub(crate) fn is_tab_separated(file: &Path) -> bool {
    split_compression(&lower_name(file)).0.ends_with(".tsv")
}

/// A file opened for reading from its start.
pub(crate) struct Opened {
    /// The bytes, unpacked. Errors are worth a [`read_error`].
    pub(crate) bytes: Box<dyn Read + Send>,
    /// How the file is packed.
    pub(crate) compression: Compression,
    /// How long the file is on disk.
    pub(crate) n_bytes: u64,
}

/// Opens a file and unpacks it on the way. The first bytes decide; a name that promises otherwise is an error.
pub(crate) fn open(file: &Arc<Path>) -> Result<Opened, ReadError> {
    if let Some(url) = url_of(file) {
        let mut stream = ObjectStream::open(url)?;
        let n_bytes = stream.n_bytes();
        let mut magic = Vec::with_capacity(4);
        let failed = |source| read_error(file, Compression::None, source);
        stream.by_ref().take(4).read_to_end(&mut magic).map_err(failed)?;
        let compression = compression_of(file, &magic)?;
        return unpacked(file, io::Cursor::new(magic).chain(stream), compression, n_bytes);
    }
    let (opened, compression) = open_packed(file)?;
    let failed = |source| ReadError::Io { file: file.clone(), source };
    let n_bytes = opened.metadata().map_err(failed)?.len();
    unpacked(file, opened, compression, n_bytes)
}

fn unpacked(
    file: &Arc<Path>,
    packed: impl Read + Send + 'static,
    compression: Compression,
    n_bytes: u64,
) -> Result<Opened, ReadError> {
    let failed = |source| ReadError::Io { file: file.clone(), source };
    let bytes: Box<dyn Read + Send> = match compression {
        Compression::None => Box::new(packed),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(buffered(packed))),
        Compression::Zstd => {
            Box::new(zstd::stream::read::Decoder::with_buffer(buffered(packed)).map_err(failed)?)
        }
    };
    Ok(Opened { bytes, compression, n_bytes })
}

/// A file that can be read at any place.
pub(crate) enum Seekable {
    /// On a disk.
    File(Arc<File>),
    /// Behind a URL.
    Object(ObjectFile),
}

/// Opens a file that must be read at any place: a packed one is unpacked into a temporary file first, and so is one whose
/// server sends it only as a whole. With a stamp, the file must still be the object that had it.
pub(crate) fn open_seekable(file: &Arc<Path>, stamp: Option<Stamp>) -> Result<Seekable, ReadError> {
    match url_of(file) {
        Some(url) => {
            if let Some(object) = ObjectFile::open(url, stamp)? {
                let failed = |source| read_error(file, Compression::None, source);
                let magic = object.bytes_at(0, 4).map_err(failed)?;
                if compression_of(file, &magic[..magic.len().min(4)])? == Compression::None {
                    return Ok(Seekable::Object(object));
                }
            }
        }
        None => {
            let (plain, compression) = open_packed(file)?;
            if compression == Compression::None {
                return Ok(Seekable::File(plain.into()));
            }
        }
    }
    let mut opened = open(file)?;
    let failed = |source| read_error(file, opened.compression, source);
    let mut unpacked = tempfile::tempfile().map_err(failed)?;
    io::copy(&mut opened.bytes, &mut unpacked).map_err(failed)?;
    Ok(Seekable::File(unpacked.into()))
}

fn open_packed(file: &Arc<Path>) -> Result<(File, Compression), ReadError> {
    let failed = |source| ReadError::Io { file: file.clone(), source };
    let mut opened = File::open(file).map_err(failed)?;
    let mut magic = Vec::with_capacity(4);
    opened.by_ref().take(4).read_to_end(&mut magic).map_err(failed)?;
    opened.rewind().map_err(failed)?;
    let compression = compression_of(file, &magic)?;
    Ok((opened, compression))
}

/// How a file is packed, told from its first four bytes.
fn compression_of(file: &Arc<Path>, magic: &[u8]) -> Result<Compression, ReadError> {
    let compression = if magic.starts_with(&[0x1f, 0x8b]) {
        Compression::Gzip
    } else if magic == [0x28, 0xb5, 0x2f, 0xfd] {
        Compression::Zstd
    } else {
        Compression::None
    };
    let (_, named) = split_compression(&lower_name(file));
    if named != Compression::None && named != compression {
        return Err(ReadError::NotCompressed { file: file.clone(), named });
    }
    Ok(compression)
}

fn buffered<R: Read>(packed: R) -> io::BufReader<R> {
    io::BufReader::with_capacity(256 << 10, packed)
}

/// The error for a failed read of an opened file: the decoders report damage as input errors.
pub(crate) fn read_error(
    file: &Arc<Path>,
    compression: Compression,
    source: io::Error,
) -> ReadError {
    let source = match source.downcast::<ObjectError>() {
        Ok(err) => return err.into(),
        Err(source) => source,
    };
    let file = file.clone();
    let is_damage = matches!(
        source.kind(),
        io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::Other
    );
    if compression != Compression::None && is_damage {
        ReadError::Damaged { file, compression, source }
    } else {
        ReadError::Io { file, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_found_by_the_longest_end_of_its_path() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("data")).unwrap();
        for name in ["x.csv", "data/x.csv", "data/part-1.csv"] {
            std::fs::write(folder.path().join(name), "a\n1\n").unwrap();
        }
        let found = |path: &str| Source::from(path).found_below(folder.path()).to_string();
        assert_eq!(found("/elsewhere/data/x.csv"), "data/x.csv");
        assert_eq!(found("/elsewhere/x.csv"), "x.csv");
        assert_eq!(found("/else[*]where/data/part-*.csv"), "data/part-*.csv");
        assert_eq!(found("/elsewhere/part-*.csv"), "/elsewhere/part-*.csv");
        assert_eq!(found("/elsewhere/y.csv"), "/elsewhere/y.csv");
        assert_eq!(found("s3://bucket/data/x.csv"), "s3://bucket/data/x.csv");
        let columns = Source::Columns([("a".to_string(), "/z/x.csv".to_string())].into());
        assert_eq!(columns.found_below(folder.path()).to_string(), "x.csv");
    }
}
