//! Links between threads of one process: rings on the heap.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::LinkError;
use super::region::Region;
use super::ring_link::RingLink;

/// The two sides of a link whose rings hold `capacity` bytes in each direction, a power of two.
pub fn pair(capacity: usize) -> Result<(RingLink, RingLink), LinkError> {
    let region = Arc::new(Region::on_heap(capacity)?);
    let (one_bell, other_bell) = UnixStream::pair()?;
    let one = RingLink::new(region.clone(), 0, one_bell, "in-process")?;
    let other = RingLink::new(region, 1, other_bell, "in-process")?;
    Ok((one, other))
}
