//! The bytes of a Parquet file, on a disk or behind a URL.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::files::Seekable;
use crate::objects::ObjectRead;

/// Reads a file from a place on.
pub(crate) enum SeekableRead {
    File(BufReader<PlacedRead>),
    Object(ObjectRead),
}

/// Reads a file on a disk from a place on, without moving its position, which all who read it share.
pub(crate) struct PlacedRead {
    file: Arc<File>,
    at: u64,
}

impl Read for PlacedRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n_bytes = self.file.read_at(buffer, self.at)?;
        self.at += n_bytes as u64;
        Ok(n_bytes)
    }
}

impl Read for SeekableRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            SeekableRead::File(file) => file.read(buffer),
            SeekableRead::Object(object) => object.read(buffer),
        }
    }
}

impl Length for Seekable {
    fn len(&self) -> u64 {
        match self {
            Seekable::File(file) => file.len(),
            Seekable::Object(object) => object.n_bytes(),
        }
    }
}

impl ChunkReader for Seekable {
    type T = SeekableRead;

    fn get_read(&self, start: u64) -> Result<SeekableRead> {
        Ok(match self {
            Seekable::File(file) => {
                let file = PlacedRead { file: file.clone(), at: start };
                SeekableRead::File(BufReader::new(file))
            }
            Seekable::Object(object) => {
                SeekableRead::Object(ObjectRead::new(object.clone(), start))
            }
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        match self {
            Seekable::File(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, start)?;
                Ok(bytes.into())
            }
            Seekable::Object(object) => {
                let mut bytes = object.bytes_at(start, length)?;
                if bytes.len() < length {
                    return Err(ParquetError::EOF("the file ends within a page".into()));
                }
                bytes.truncate(length);
                Ok(bytes)
            }
        }
    }
}
