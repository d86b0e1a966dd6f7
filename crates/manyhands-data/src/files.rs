//! Which files a source means, what they hold, and their bytes without the compression.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::read::ReadError;
use crate::spec::{Compression, FileFormat};

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
    file.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

/// What the file holds, told from its name.
pub(crate) fn format_of(file: &Arc<Path>) -> Result<FileFormat, ReadError> {
    let name = lower_name(file);
    let (name, _) = split_compression(&name);
    let format = match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "csv" | "tsv" => FileFormat::Csv,
        "parquet" | "pq" => FileFormat::Parquet,
        "jsonl" | "ndjson" | "json" => FileFormat::Jsonl,
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
    let (opened, compression) = open_packed(file)?;
    let failed = |source| ReadError::Io { file: file.clone(), source };
    let n_bytes = opened.metadata().map_err(failed)?.len();
    let bytes: Box<dyn Read + Send> = match compression {
        Compression::None => Box::new(opened),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(buffered(opened))),
        Compression::Zstd => {
            Box::new(zstd::stream::read::Decoder::with_buffer(buffered(opened)).map_err(failed)?)
        }
    };
    Ok(Opened { bytes, compression, n_bytes })
}

/// Opens a file that must be read at any place: a packed one is unpacked into a temporary file first.
pub(crate) fn open_seekable(file: &Arc<Path>) -> Result<File, ReadError> {
    let (plain, compression) = open_packed(file)?;
    if compression == Compression::None {
        return Ok(plain);
    }
    let mut opened = open(file)?;
    let failed = |source| read_error(file, compression, source);
    let mut unpacked = tempfile::tempfile().map_err(failed)?;
    io::copy(&mut opened.bytes, &mut unpacked).map_err(failed)?;
    unpacked.rewind().map_err(failed)?;
    Ok(unpacked)
}

fn open_packed(file: &Arc<Path>) -> Result<(File, Compression), ReadError> {
    let failed = |source| ReadError::Io { file: file.clone(), source };
    let mut opened = File::open(file).map_err(failed)?;
    let mut magic = Vec::with_capacity(4);
    opened.by_ref().take(4).read_to_end(&mut magic).map_err(failed)?;
    opened.rewind().map_err(failed)?;
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
    Ok((opened, compression))
}

fn buffered(file: File) -> io::BufReader<File> {
    io::BufReader::with_capacity(256 << 10, file)
}

/// The error for a failed read of an opened file: the decoders report damage as input errors.
pub(crate) fn read_error(
    file: &Arc<Path>,
    compression: Compression,
    source: io::Error,
) -> ReadError {
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
