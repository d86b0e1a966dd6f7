//! The bytes of an object in their order, across connections that break.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};

use super::address::Address;
use super::error::ObjectError;
use super::fault::{Fault, fault_of, text_of};
use super::stores::Store;
use super::web::Patience;

/// How many bytes are asked of a flow at a time. Twice as many are in memory: those that are parsed and those that come.
const BLOCK_BYTES: usize = 1 << 20;

/// An object and where it is.
pub(super) struct Object {
    pub(super) address: Address,
    store: Store,
    key: Key,
}

impl Object {
    pub(super) fn new(url: &str) -> Result<Arc<Object>, ObjectError> {
        let address = Address::parse(url)?;
        let store = Store::of(&address)?;
        let key = Key::parse(&address.key)
            .map_err(|err| ObjectError::BadUrl { url: url.into(), reason: err.to_string() })?;
        Ok(Arc::new(Object { address, store, key }))
    }

    async fn request(&self, range: Option<Range<u64>>) -> Result<GetResult, Fault> {
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let answer = self.store.objects.get_opts(&self.key, options).await;
        answer.map_err(|err| fault_of(&self.address, &err))
    }

    fn url(&self) -> String {
        self.address.url.clone()
    }
}

/// What tells whether an object is still the one that it was.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    tag: Option<String>,
    changed: i64,
    pub(super) n_bytes: u64,
}

impl Stamp {
    fn new(meta: &ObjectMeta) -> Stamp {
        // Whether the bytes on the way were packed makes a tag weak; the object is the same.
        let tag = meta.e_tag.as_ref().map(|tag| tag.trim_start_matches("W/").to_string());
        Stamp { tag, changed: meta.last_modified.timestamp_millis(), n_bytes: meta.size }
    }
}

impl PartialEq for Stamp {
    /// Servers that share a name may disagree about times, so the tag decides where there is one.
    fn eq(&self, other: &Stamp) -> bool {
        let is_same = match (&self.tag, &other.tag) {
            (Some(one), Some(two)) => one == two,
            _ => self.changed == other.changed,
        };
        is_same && self.n_bytes == other.n_bytes
    }
}

/// Some bytes of an object, on their way.
pub(super) struct Flow {
    object: Arc<Object>,
    pub(super) stamp: Stamp,
    /// The next byte.
    at: u64,
    /// Behind the last byte.
    end: u64,
    body: Option<BoxStream<'static, object_store::Result<Bytes>>>,
    /// What the body brings again, from a server that knows no ranges.
    n_known: u64,
    tries: Tries,
}

impl Flow {
    /// Asks for bytes of an object: all, or those of a range as far as they exist. With a stamp, of that object only.
    pub(super) async fn open(
        object: Arc<Object>,
        range: Option<Range<u64>>,
        stamp: Option<Stamp>,
    ) -> Result<Flow, Fault> {
        let mut tries = Tries::new(object.store.patience);
        let answer = loop {
            match object.request(range.clone()).await {
                Err(Fault::Passing(reason)) => {
                    let url = object.url();
                    let unreachable = |spent: Spent| ObjectError::Unreachable {
                        url,
                        reason,
                        n_tries: spent.n_tries,
                        waited: spent.waited,
                    };
                    tries.pause().await.map_err(unreachable)?;
                }
                Err(Fault::NoSuchBytes) if stamp.is_some() => {
                    return Err(ObjectError::Changed { url: object.url() }.into());
                }
                answer => break answer?,
            }
        };
        let found = Stamp::new(&answer.meta);
        if stamp.is_some_and(|stamp| stamp != found) {
            return Err(ObjectError::Changed { url: object.url() }.into());
        }
        let (at, end) = (answer.range.start, answer.range.end);
        let body = Some(answer.into_stream());
        tries.reset();
        Ok(Flow { object, stamp: found, at, end, body, n_known: 0, tries })
    }

    /// Whether all bytes have come.
    pub(super) fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// The next bytes, about [`BLOCK_BYTES`] of them; none at the end.
    pub(super) async fn next_block(&mut self) -> Result<Vec<Bytes>, ObjectError> {
        let (mut block, mut n_bytes) = (Vec::new(), 0);
        while n_bytes < BLOCK_BYTES && !self.is_done() {
            let bytes = self.next_bytes().await?;
            n_bytes += bytes.len();
            block.push(bytes);
        }
        Ok(block)
    }

    /// All bytes that are left.
    pub(super) async fn rest(mut self) -> Result<Bytes, ObjectError> {
        let mut all = Vec::with_capacity((self.end - self.at) as usize);
        while !self.is_done() {
            all.extend_from_slice(&self.next_bytes().await?);
        }
        Ok(all.into())
    }

    async fn next_bytes(&mut self) -> Result<Bytes, ObjectError> {
        loop {
            let reason = match &mut self.body {
                Some(body) => match body.next().await {
                    Some(Ok(bytes)) => match self.take_new(bytes) {
                        Some(new) => return Ok(new),
                        None => continue,
                    },
                    Some(Err(err)) => text_of(&err),
                    None => "the connection was closed early".into(),
                },
                None => match self.ask_again().await {
                    Ok(()) => continue,
                    Err(Fault::Passing(reason)) => reason,
                    Err(Fault::Final(err)) => return Err(err),
                    Err(_) => return Err(ObjectError::Changed { url: self.object.url() }),
                },
            };
            self.body = None;
            let (url, at, n_bytes) = (self.object.url(), self.at, self.stamp.n_bytes);
            let broken = |spent: Spent| ObjectError::Broken {
                url,
                at,
                n_bytes,
                reason,
                n_tries: spent.n_tries,
                waited: spent.waited,
            };
            self.tries.pause().await.map_err(broken)?;
        }
    }

    /// What is new of bytes that came.
    fn take_new(&mut self, mut bytes: Bytes) -> Option<Bytes> {
        let n_known = self.n_known.min(bytes.len() as u64);
        self.n_known -= n_known;
        let _ = bytes.split_to(n_known as usize);
        bytes.truncate(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        if bytes.is_empty() {
            return None;
        }
        self.at += bytes.len() as u64;
        self.tries.reset();
        Some(bytes)
    }

    /// Goes on from the byte where the last connection broke.
    async fn ask_again(&mut self) -> Result<(), Fault> {
        let (answer, n_known) = match self.object.request(Some(self.at..self.end)).await {
            Err(Fault::NoRanges) => (self.object.request(None).await?, self.at),
            answer => (answer?, 0),
        };
        if Stamp::new(&answer.meta) != self.stamp {
            return Err(ObjectError::Changed { url: self.object.url() }.into());
        }
        self.n_known = n_known;
        self.body = Some(answer.into_stream());
        Ok(())
    }
}

/// Tries in a row that brought nothing.
pub(super) struct Tries {
    patience: Patience,
    n_failed: u32,
    since: Instant,
}

/// What was spent in vain.
pub(super) struct Spent {
    pub(super) n_tries: u32,
    pub(super) waited: Duration,
}

impl Tries {
    pub(super) fn new(patience: Patience) -> Tries {
        Tries { patience, n_failed: 0, since: Instant::now() }
    }

    /// Waits before the next try, unless there were enough.
    pub(super) async fn pause(&mut self) -> Result<(), Spent> {
        self.n_failed += 1;
        if self.n_failed >= self.patience.n_tries {
            return Err(Spent { n_tries: self.n_failed, waited: self.since.elapsed() });
        }
        tokio::time::sleep(self.patience.pause * 2u32.pow(self.n_failed - 1)).await;
        Ok(())
    }

    fn reset(&mut self) {
        self.n_failed = 0;
        self.since = Instant::now();
    }
}
