//! Bytes beside messages, in memory that is used again.
//!
//! Bodies of a megabyte come and go thousands of times a second. Memory that is given back to the system and taken again costs a fault for each page, which is
//! more than the copying: so what is large is kept, up to a bound, and goes to whoever needs as much next.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Smaller memory is left to the allocator.
const SMALLEST: usize = 64 << 10;
/// What is kept in all, at most.
const MOST_KEPT: usize = 256 << 20;

/// Bytes that are shared: a push may be held, passed on and sent again.
#[derive(Clone, Default)]
pub struct Body(Arc<Kept>);

#[derive(Default)]
struct Kept(Vec<u8>);

impl Body {
    /// These bytes.
    pub fn new(bytes: Vec<u8>) -> Body {
        Body(Arc::new(Kept(bytes)))
    }

    /// Copies of these bytes, in memory that was used before where there is some.
    pub fn copy_of(bytes: &[u8]) -> Body {
        let mut memory = empty(bytes.len());
        memory.extend_from_slice(bytes);
        Body::new(memory)
    }
}

impl Body {
    /// The bytes to be changed, where nobody else has them.
    pub(super) fn get_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(&mut self.0).map(|kept| &mut kept.0[..])
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.0
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::new(bytes)
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Body) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Memory that waits to be used again.
static POOL: Mutex<Pool> = Mutex::new(Pool { kept: Vec::new(), n_bytes: 0 });

struct Pool {
    kept: Vec<Vec<u8>>,
    n_bytes: usize,
}

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Kept {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        let capacity = memory.capacity();
        if capacity < SMALLEST {
            return;
        }
        let mut pool = pool();
        if pool.n_bytes + capacity <= MOST_KEPT {
            pool.n_bytes += capacity;
            pool.kept.push(memory);
        }
    }
}

/// Memory for so many bytes, with whatever is in it: a length below that may have been used before.
fn taken(n: usize) -> Option<Vec<u8>> {
    if n < SMALLEST {
        return None;
    }
    let mut pool = pool();
    // Not far more than is needed, or small bodies would sit on the memory of large ones.
    let fits = |memory: &&Vec<u8>| (n..=4 * n).contains(&memory.capacity());
    let best = pool.kept.iter().filter(fits).map(Vec::capacity).min()?;
    let idx = pool.kept.iter().rposition(|memory| memory.capacity() == best)?;
    pool.n_bytes -= best;
    Some(pool.kept.swap_remove(idx))
}

/// Nothing, with room for so many bytes.
pub(super) fn empty(n: usize) -> Vec<u8> {
    let mut memory = taken(n).unwrap_or_else(|| Vec::with_capacity(n));
    memory.clear();
    memory
}

/// So many bytes, which are to be overwritten: zeros, or what somebody had before.
pub(super) fn any(n: usize) -> Vec<u8> {
    match taken(n) {
        Some(mut memory) => {
            memory.resize(n, 0);
            memory
        }
        None => vec![0; n],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_bytes_are_those_that_were_put_in() {
        let bytes: Vec<u8> = (0..SMALLEST * 3).map(|n| n as u8).collect();
        let body = Body::copy_of(&bytes);
        let other = body.clone();
        drop(body);
        assert_eq!(other[..], bytes[..]);
        drop(other);
        let mut again = any(bytes.len() - 1);
        assert_eq!(again.len(), bytes.len() - 1);
        again.fill(7);
        assert!(empty(bytes.len()).is_empty());
    }
}
