//! Lists of keys beside messages, as digests where the other side has them.
//!
//! A client writes a list anew for whoever is first when it is sent; the first holder of a shard remembers the lists of each client. Who forgot a list, or became first
//! after another, says so ([`FromServer::UnknownKeys`](super::message::FromServer::UnknownKeys)), and everything that is not acknowledged comes again with whole lists.

use super::body;
use super::message::{Body, Operation, Wanted, keys};
use super::spec::{Shape, TableSpec};
use super::traffic::TrafficError;
use super::traffic::key_cache::KeyCache;

/// How many keys both sides remember for a shard of this table; none where lists go as they are.
pub(super) fn most_keys(spec: &TableSpec) -> Option<usize> {
    match spec.shape {
        Shape::Rows { .. } => spec.traffic.key_lists,
        Shape::Dense { .. } => None,
    }
}

/// How many keys lie before the values of an operation, where they may go as a digest.
pub(super) fn n_keys_of(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::Push { n, .. } | Operation::Part { n, .. } if *n > 0 => Some(*n),
        _ => None,
    }
}

/// How many keys lie beside a read.
pub(super) fn n_keys_read(wanted: &Wanted) -> Option<u64> {
    match wanted {
        Wanted::Values { n, .. } if *n > 0 => Some(*n),
        _ => None,
    }
}

/// The body of a message whose first keys, so many of them, are a list or its digest.
pub(super) fn with_digest(cache: &mut KeyCache, n_keys: u64, plain: &Body) -> Body {
    let (all_keys, rest) = plain.split_at((n_keys as usize).saturating_mul(8).min(plain.len()));
    let mut written = body::empty(plain.len() + 16);
    cache.encode(&keys(all_keys), &mut written);
    written.extend_from_slice(rest);
    Body::new(written)
}

/// The body with its keys.
pub(super) fn with_keys(cache: &mut KeyCache, written: &Body) -> Result<Body, TrafficError> {
    let (section, rest) = written.split_at(KeyCache::section(written));
    let all_keys = cache.decode(section)?;
    let mut plain = body::empty(size_of_val(&*all_keys) + rest.len());
    plain.extend_from_slice(bytemuck::cast_slice(&all_keys));
    plain.extend_from_slice(rest);
    Ok(Body::new(plain))
}
