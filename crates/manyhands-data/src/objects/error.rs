//! What can go wrong with a file behind a URL.

use std::time::Duration;

/// A file behind a URL that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The sentences say what the fields are.
pub enum ObjectError {
    /// A URL that names no file.
    #[error("`{url}` is not a URL that can be read: {reason}")]
    BadUrl { url: String, reason: String },
    /// Settings of the environment that do not fit together.
    #[error("{url} cannot be asked for: {reason}{looked_at}")]
    Settings { url: String, reason: String, looked_at: String },
    /// A URL with nothing behind it.
    #[error("there is no file {url} ({reason}); check the name")]
    Missing { url: String, reason: String },
    /// A pattern that no object matches.
    #[error("no object matches `{url}`; check the pattern and the bucket")]
    NoMatch { url: String },
    /// A pattern that cannot be understood.
    #[error("`{url}` is not a pattern for objects: {reason}")]
    BadGlob { url: String, reason: &'static str },
    /// Whoever asks may not read.
    #[error("{url} may not be read: {reason}{looked_at}")]
    Forbidden { url: String, reason: String, looked_at: String },
    /// Nobody answers.
    #[error(
        "{url} cannot be reached: {reason} (tried {n_tries} times in {:.1} s); check the host and the network",
        .waited.as_secs_f64()
    )]
    Unreachable { url: String, reason: String, n_tries: u32, waited: Duration },
    /// The connection breaks at one byte again and again.
    #[error(
        "{url} cannot be read beyond byte {at} of {n_bytes}: {reason} (tried {n_tries} times in {:.1} s)",
        .waited.as_secs_f64()
    )]
    Broken { url: String, at: u64, n_bytes: u64, reason: String, n_tries: u32, waited: Duration },
    /// The object is not what it was when reading began.
    #[error(
        "{url} was changed while it was read; start again when it is complete, and write new data under new names"
    )]
    Changed { url: String },
    /// Any other answer.
    #[error("{url} cannot be read: {reason}")]
    Refused { url: String, reason: String },
    /// No thread, or no client.
    #[error("{url} cannot be asked for: no client can be started ({reason})")]
    NoClient { url: String, reason: String },
}
