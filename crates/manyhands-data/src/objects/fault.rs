//! What a failed request means: whether it is worth another try, and the sentence if it is not.

use std::error::Error;

use object_store::client::{HttpError, HttpErrorKind};

use super::address::{Address, Scheme};
use super::error::ObjectError;
use super::stores::looked_at;
use super::web::Told;

/// Why there is no answer.
pub(super) enum Fault {
    /// It may be gone at the next try.
    Passing(String),
    /// The server sends an object only as a whole.
    NoRanges,
    /// The object ends before the bytes that were asked for.
    NoSuchBytes,
    /// Another try would end the same.
    Final(ObjectError),
}

impl From<ObjectError> for Fault {
    fn from(err: ObjectError) -> Fault {
        Fault::Final(err)
    }
}

/// What the error of a store means.
pub(super) fn fault_of(address: &Address, err: &object_store::Error) -> Fault {
    let url = address.url.clone();
    let told = chain(err).find_map(|one| one.downcast_ref::<Told>());
    let is_failed_call = chain(err).any(|one| one.is::<HttpError>());
    let forbidden = |reason: String| {
        let looked_at = looked_at(address.scheme);
        Fault::Final(ObjectError::Forbidden { url: url.clone(), reason, looked_at })
    };
    match (err, told) {
        (_, Some(Told::Busy(_))) => Fault::Passing(text_of(err)),
        (_, Some(Told::NoSuchBytes)) => Fault::NoSuchBytes,
        (_, Some(Told::Nobody)) => {
            forbidden(format!("{}{}", Told::Nobody, without_keys(address.scheme)))
        }
        (_, Some(told)) => Fault::Final(ObjectError::Refused { url, reason: told.to_string() }),
        (object_store::Error::NotFound { .. }, _) => {
            let reason = said_of(err).unwrap_or_else(|| "404 Not Found".into());
            Fault::Final(ObjectError::Missing { url, reason })
        }
        (object_store::Error::PermissionDenied { .. }, _) => {
            forbidden(said_of(err).unwrap_or_else(|| "the server answers 403 Forbidden".into()))
        }
        (object_store::Error::Unauthenticated { .. }, _) => {
            forbidden(said_of(err).unwrap_or_else(|| "the server answers 401 Unauthorized".into()))
        }
        (object_store::Error::NotSupported { .. }, _) => Fault::NoRanges,
        _ if is_failed_call => Fault::Passing(text_of(err)),
        _ => Fault::Final(ObjectError::Refused { url, reason: text_of(err) }),
    }
}

fn without_keys(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => " (AWS_SKIP_SIGNATURE=true reads what is public)",
        Scheme::Google => " (GOOGLE_SKIP_SIGNATURE=true reads what is public)",
        Scheme::Azure => " (AZURE_SKIP_SIGNATURE=true reads what is public)",
        Scheme::Web => "",
    }
}

fn chain<'a>(err: &'a object_store::Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(err as &(dyn Error + 'static)), |&one| one.source())
}

/// What happened, in the words of whoever noticed it first.
pub(super) fn text_of(err: &object_store::Error) -> String {
    let kind = chain(err).find_map(|one| one.downcast_ref::<HttpError>()).map(HttpError::kind);
    if kind == Some(HttpErrorKind::Timeout) {
        return "no answer came in time".into();
    }
    let first = chain(err).last().map(ToString::to_string).unwrap_or_default();
    if first.starts_with("Content-Length Header missing") {
        return "the server does not say how long it is; download it first".into();
    }
    said_of(err).unwrap_or_else(|| shortened(&first))
}

/// What a store says about an error in its XML.
fn said_of(err: &object_store::Error) -> Option<String> {
    let text = chain(err).last()?.to_string();
    let between = |tag: &str| {
        let (_, behind) = text.split_once(&format!("<{tag}>"))?;
        Some(behind.split_once('<')?.0.to_string())
    };
    let code = between("Code")?;
    Some(match between("Message") {
        Some(message) => shortened(&format!("{code}: {message}")),
        None => code,
    })
}

/// A page that explains an error is too long for a sentence.
fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(200).collect();
    if short.len() < line.len() {
        short.push_str("...");
    }
    short
}
