//! Files that lie behind a URL: in an object store (`s3://`, `gs://`, `az://`) or on a web server (`http://`, `https://`).
//!
//! A URL is a name of a file like a path is; it is read as a stream ([`ObjectStream`]) or at any place ([`ObjectFile`]).
//! Everything asynchronous is in here, on one thread of its own (`thread`): callers block, and may be inside a runtime of
//! their own. Requests are made by `object_store`; that they are made again when they fail, from the byte where they
//! broke, and that an object which changed meanwhile is an error, is done here (`flow`), the same for all of them.
//!
//! Keys and endpoints come from the environment of the process that reads, never from a job: a job travels and is saved.

mod address;
mod error;
mod fault;
mod flow;
mod list;
mod ranges;
mod stores;
mod stream;
mod thread;
mod web;

pub(crate) use self::address::file_name;
pub use self::address::is_url;
pub use self::error::ObjectError;
pub(crate) use self::flow::Stamp;
pub(crate) use self::list::resolve;
pub(crate) use self::ranges::{ObjectFile, ObjectRead};
pub(crate) use self::stream::ObjectStream;

#[cfg(test)]
pub(crate) mod tests;
