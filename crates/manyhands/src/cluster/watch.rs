//! Named points in a worker's step, for those who want to know that a worker is there: tests that end it at each of them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use manyhands_net::transport::lending::{Lending, Lent};
use manyhands_net::transport::{Link, LinkError};

/// A place in a step at which a worker can be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Its inputs are there; grains are about to run.
    Grains,
    /// Its grains are done; sums are about to be exchanged.
    Exchange,
    /// Some bytes of its sums have left.
    Sending,
    /// Some bytes of others' sums have come.
    Reducing,
    /// The totals are there; the step is about to count.
    Commit,
    /// The step counts; the parameters are about to be updated.
    Update,
    /// The parameters are updated; nobody has been told.
    Done,
    /// Its state is about to be given to another.
    GiveState,
    /// The driver asked for the state, for a checkpoint; nothing of it has left.
    Checkpoint,
    /// Some bytes of what it tells the driver have left: of the state, or that a step is done.
    Telling,
}

/// Where somebody watches, no more bytes than this are taken by a link at once: so "some" are not all.
const SOME: usize = 1000;

/// Somebody who watches a worker.
#[derive(Clone)]
pub struct Watcher(Option<Arc<dyn Fn(Point) + Send + Sync>>);

impl Watcher {
    /// Nobody.
    pub fn none() -> Watcher {
        Watcher(None)
    }

    /// Somebody who is told in the thread that computes, or in that which exchanges sums meanwhile.
    pub fn new(tell: impl Fn(Point) + Send + Sync + 'static) -> Watcher {
        Watcher(Some(Arc::new(tell)))
    }

    pub(super) fn at(&self, point: Point) {
        if let Some(tell) = &self.0 {
            tell(point);
        }
    }

    /// A link on which sums travel, so that somebody knows when they do; the link itself where nobody watches.
    pub(super) fn watch_sums(&self, link: Box<dyn Link>) -> Box<dyn Link> {
        self.watch(link, Point::Sending, Some(Point::Reducing))
    }

    /// The link to the driver, in the same way.
    pub(super) fn watch_driver(&self, link: Box<dyn Link>) -> Box<dyn Link> {
        self.watch(link, Point::Telling, None)
    }

    fn watch(&self, link: Box<dyn Link>, sends: Point, receives: Option<Point>) -> Box<dyn Link> {
        match &self.0 {
            Some(_) => Box::new(WatchedLink { link, watcher: self.clone(), sends, receives }),
            None => link,
        }
    }
}

struct WatchedLink {
    link: Box<dyn Link>,
    watcher: Watcher,
    sends: Point,
    receives: Option<Point>,
}

impl Link for WatchedLink {
    fn try_send(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        let n = self.link.try_send(&bytes[..bytes.len().min(SOME)])?;
        if n > 0 {
            self.watcher.at(self.sends);
        }
        Ok(n)
    }

    fn try_receive(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        let n = self.link.try_receive(bytes)?;
        if let Some(point) = self.receives.filter(|_| n > 0) {
            self.watcher.at(point);
        }
        Ok(n)
    }

    fn try_flush(&mut self) -> Result<bool, LinkError> {
        self.link.try_flush()
    }

    fn sleepy(&mut self, wants_room: bool) -> Result<bool, LinkError> {
        self.link.sleepy(wants_room)
    }

    fn awake(&mut self) {
        self.link.awake();
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.link.bell()
    }

    fn room_is_writable(&self) -> bool {
        self.link.room_is_writable()
    }

    fn keep_near(&mut self) {
        self.link.keep_near();
    }

    fn can_lend(&self) -> bool {
        self.link.can_lend()
    }

    fn lend(&mut self, memory: &Arc<Lending>) -> Result<(), LinkError> {
        self.link.lend(memory)
    }

    fn lending(&self) -> Option<&Arc<Lending>> {
        self.link.lending()
    }

    fn lent(&mut self) -> Result<Option<&Arc<Lent>>, LinkError> {
        self.link.lent()
    }

    fn kind(&self) -> &'static str {
        self.link.kind()
    }
}
