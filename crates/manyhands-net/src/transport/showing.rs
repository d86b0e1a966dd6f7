//! Bytes that the other side of a ring link reads where they lie, in memory that was lent to it ([`super::lending`]), instead of having them sent.
//!
//! What is shown has a flag in the memory of the link, which both sides see. It is up from before the other side hears of the bytes until that has done with them, in whatever
//! thread, and also after its side of the link is gone. As long as it is up the bytes stay as they are: who shows them keeps what owns them.
//! A link that ends leaves what is still up to those that wait for a flag to go down, or for a pipe to hang up: the other side holds an end of it as long as it can read at all, so also a
//! flag of which it never heard, and one whose reader was killed, is waited for no longer than that.
//!
//! This is for sides that trust each other, as those do that have proved the cluster's secret: one that writes where it shows tears what the other reads. Where it may read, and which
//! flags it may put down, is checked.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lending::{Lending, Lent};
use super::region::{FLAGS, Region};

/// What owns bytes that are shown.
pub type Keeper = Box<dyn Send>;

/// Where bytes are that are shown, as the other side is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownAt {
    /// Where they begin in the memory that is lent.
    place: u64,
    /// Their flag.
    flag_idx: u32,
}

impl ShownAt {
    /// Its length as bytes.
    pub const N_BYTES: usize = 12;

    /// As it is sent.
    pub fn to_bytes(self) -> [u8; ShownAt::N_BYTES] {
        let mut bytes = [0; ShownAt::N_BYTES];
        bytes[..8].copy_from_slice(&self.place.to_le_bytes());
        bytes[8..].copy_from_slice(&self.flag_idx.to_le_bytes());
        bytes
    }

    /// As it was sent.
    pub fn from_bytes(bytes: [u8; ShownAt::N_BYTES]) -> ShownAt {
        let [a, b, c, d, e, f, g, h, flag_idx @ ..] = bytes;
        let place = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        ShownAt { place, flag_idx: u32::from_le_bytes(flag_idx) }
    }
}

/// The flags of what one side shows.
#[derive(Clone)]
struct Flags {
    region: Arc<Region>,
    side_idx: usize,
}

impl Flags {
    fn at(&self, flag_idx: usize) -> &AtomicU8 {
        &self.region.header().shown[self.side_idx].0[flag_idx]
    }
}

/// Nothing is shown, or the other side has done with it.
const DOWN: u8 = 0;
/// It is shown, and the other side has not heard of it yet.
const UP: u8 = 1;
/// It is being read.
const TAKEN: u8 = 2;

/// What one side of a link shows.
pub(super) struct Shows {
    flags: Flags,
    /// Hangs up when the other side cannot read any more; nothing while no memory is lent.
    hangs_up: Option<Arc<OwnedFd>>,
    /// With their flags.
    kept: Vec<(usize, Kept)>,
    /// Flags that are down.
    free: Vec<usize>,
}

/// What owns bytes that are shown, and what hangs up when they cannot be read any more.
struct Kept {
    hangs_up: Arc<OwnedFd>,
    _keeper: Keeper,
}

impl Shows {
    /// Nothing yet, for this side of a link.
    pub(super) fn new(region: Arc<Region>, side_idx: usize) -> Shows {
        let flags = Flags { region, side_idx };
        Shows { flags, hangs_up: None, kept: Vec::new(), free: (0..FLAGS).rev().collect() }
    }

    /// What is shown from now on can be read until this hangs up.
    pub(super) fn until(&mut self, hangs_up: OwnedFd) {
        self.hangs_up = Some(Arc::new(hangs_up));
    }

    /// Shows bytes of lent memory. `None` where they lie elsewhere, too much is shown already, or it would not be known when nobody reads any more.
    pub(super) fn show(
        &mut self,
        lending: &Lending,
        bytes: &[u8],
        keeper: impl FnOnce() -> Keeper,
    ) -> Option<ShownAt> {
        let place = lending.place_of(bytes.as_ptr(), bytes.len())?;
        let hangs_up = Arc::clone(self.hangs_up.as_ref().filter(|_| Lent::can_be_at(place))?);
        let flag_idx = self.free.pop()?;
        self.kept.push((flag_idx, Kept { hangs_up, _keeper: keeper() }));
        // Seen by the other side before it hears of the bytes, since that comes through a ring.
        self.flags.at(flag_idx).store(UP, Ordering::Relaxed);
        Some(ShownAt { place, flag_idx: flag_idx as u32 })
    }

    /// Lets go of what the other side has done with.
    pub(super) fn look(&mut self) {
        // What the other side read is read before somebody writes there again.
        let is_done = |(flag_idx, _): &mut (usize, Kept)| {
            self.flags.at(*flag_idx).load(Ordering::Acquire) == DOWN
        };
        self.free.extend(self.kept.extract_if(.., is_done).map(|(flag_idx, _)| flag_idx));
    }
}

impl Drop for Shows {
    fn drop(&mut self) {
        self.look();
        let kept = std::mem::take(&mut self.kept).into_iter();
        let left = kept.map(|(flag_idx, kept)| Left { flags: self.flags.clone(), flag_idx, kept });
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).extend(left);
    }
}

/// What was shown on a link that is gone, and may still be read.
struct Left {
    flags: Flags,
    flag_idx: usize,
    kept: Kept,
}

impl Left {
    fn may_be_read(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ends = [PollFd::new(&self.kept.hangs_up, PollFlags::empty())];
        self.flags.at(self.flag_idx).load(Ordering::Acquire) != DOWN
            && !poll(&mut ends, Some(&now)).is_ok_and(|n_hung_up| n_hung_up > 0)
    }
}

static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// Lets go of what was shown on links that are gone and nobody reads any more.
pub fn let_go_of_left() {
    let mut all = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    let free: Vec<Left> = all.extract_if(.., |left| !left.may_be_read()).collect();
    drop(all);
    // What owns the bytes may do anything when it is dropped.
    drop(free);
}

/// Bytes that the other side shows. They stay as they are for as long as this lives.
pub struct Seen {
    _lent: Arc<Lent>,
    start: NonNull<u8>,
    len: usize,
    flags: Flags,
    flag_idx: usize,
}

// SAFETY: the bytes are only read, and the mapping that they are in is kept.
unsafe impl Send for Seen {}
// SAFETY: as above.
unsafe impl Sync for Seen {}

impl Seen {
    /// What the side of this index shows at a place of what it has lent; `None` where there is no such place, or it does not show it.
    pub(super) fn new(
        lent: Arc<Lent>,
        at: ShownAt,
        len: usize,
        (region, side_idx): (&Arc<Region>, usize),
    ) -> Option<Seen> {
        let flag_idx = usize::try_from(at.flag_idx).ok().filter(|idx| *idx < FLAGS)?;
        let start = lent.at(at.place, len)?;
        let flags = Flags { region: Arc::clone(region), side_idx };
        let flag = flags.at(flag_idx);
        flag.compare_exchange(UP, TAKEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Seen { _lent: lent, start, len, flags, flag_idx })
    }
}

impl Deref for Seen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as many bytes are mapped there. The other side, which is trusted in this, leaves them alone while the flag is up; nothing but the drop of this puts it down, since it was taken once.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.flags.at(self.flag_idx).store(DOWN, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::io::PipeReader;
    use std::time::{Duration, Instant};

    use super::*;

    /// Memory that one side lends, what the other has of it, and the flags between them.
    struct Scene {
        lending: Arc<Lending>,
        lent: Arc<Lent>,
        region: Arc<Region>,
        hangs_up: PipeReader,
    }

    impl Scene {
        fn new() -> Scene {
            let lending = Arc::new(Lending::new(1 << 20).unwrap());
            let (hangs_up, held) = std::io::pipe().unwrap();
            let lent = Arc::new(Lent::new_for_tests(&lending, held.into()));
            Scene { lending, lent, region: Arc::new(Region::on_heap(64).unwrap()), hangs_up }
        }

        fn bytes(&self, n: usize) -> &'static [u8] {
            let start = self.lending.take(n).unwrap();
            // SAFETY: so many bytes were taken, and the tests write nothing there. The tests keep the lending.
            unsafe { std::slice::from_raw_parts(start.as_ptr(), n) }
        }

        fn shows(&self) -> Shows {
            let mut shows = Shows::new(Arc::clone(&self.region), 0);
            shows.until(self.hangs_up.try_clone().unwrap().into());
            shows
        }

        fn see(&self, at: ShownAt, len: usize) -> Option<Seen> {
            let at = ShownAt::from_bytes(at.to_bytes());
            Seen::new(Arc::clone(&self.lent), at, len, (&self.region, 0))
        }
    }

    fn keeper(owner: &Arc<()>) -> impl FnOnce() -> Keeper + use<> {
        let owner = Arc::clone(owner);
        || Box::new(owner)
    }

    /// Another test may be just letting go of it.
    fn is_let_go_of(owner: &Arc<()>) -> bool {
        let until = Instant::now() + Duration::from_secs(10);
        let_go_of_left();
        while Arc::strong_count(owner) > 1 && Instant::now() < until {
            std::thread::yield_now();
        }
        Arc::strong_count(owner) == 1
    }

    #[test]
    fn what_is_shown_is_kept_until_it_is_read() {
        let (scene, owner) = (Scene::new(), Arc::new(()));
        let bytes = scene.bytes(100);
        let mut shows = scene.shows();
        let at = shows.show(&scene.lending, bytes, keeper(&owner)).unwrap();
        let seen = scene.see(at, 100).unwrap();
        shows.look();
        assert_eq!((Arc::strong_count(&owner), &seen[..]), (2, &[0; 100][..]));
        drop(seen);
        assert_eq!(Arc::strong_count(&owner), 2, "nobody has looked");
        shows.look();
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn what_is_still_read_outlives_its_link() {
        let (scene, owner) = (Scene::new(), Arc::new(()));
        let mut shows = scene.shows();
        let at = shows.show(&scene.lending, scene.bytes(100), keeper(&owner)).unwrap();
        let seen = scene.see(at, 100).unwrap();
        drop(shows);
        let_go_of_left();
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(seen);
        assert!(is_let_go_of(&owner));
    }

    #[test]
    fn what_nobody_can_read_any_more_is_let_go_of_also_where_nobody_heard_of_it() {
        let (mut scene, owner) = (Scene::new(), Arc::new(()));
        let mut shows = scene.shows();
        let mut show = || shows.show(&scene.lending, scene.bytes(100), keeper(&owner)).unwrap();
        let [first, _never_seen] = [show(), show()];
        let seen = scene.see(first, 100).unwrap();
        drop(shows);
        scene.lent =
            Arc::new(Lent::new_for_tests(&scene.lending, std::io::pipe().unwrap().1.into()));
        let_go_of_left();
        assert_eq!(Arc::strong_count(&owner), 3, "what is seen keeps all that was lent");
        drop(seen);
        assert!(is_let_go_of(&owner));
    }

    #[test]
    fn what_a_process_read_that_was_killed_is_let_go_of() {
        let (scene, owner) = (Scene::new(), Arc::new(()));
        let (hangs_up, held) = std::io::pipe().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").stdout(held).spawn().unwrap();
        let mut shows = scene.shows();
        shows.until(hangs_up.into());
        shows.show(&scene.lending, scene.bytes(100), keeper(&owner)).unwrap();
        drop(shows);
        let_go_of_left();
        assert_eq!(Arc::strong_count(&owner), 2, "it may be reading");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_let_go_of(&owner));
    }

    #[test]
    fn nothing_is_shown_that_cannot_be_read_or_known_to_be_read() {
        let (scene, owner) = (Scene::new(), Arc::new(()));
        let bytes = scene.bytes(200);
        let mut shows = Shows::new(Arc::clone(&scene.region), 0);
        assert_eq!(shows.show(&scene.lending, bytes, keeper(&owner)), None, "nobody hangs up");
        let mut shows = scene.shows();
        assert_eq!(shows.show(&scene.lending, &[0; 100], keeper(&owner)), None, "not lent");
        assert_eq!(shows.show(&scene.lending, &bytes[1..], keeper(&owner)), None, "no edge");
        let at = shows.show(&scene.lending, bytes, keeper(&owner)).unwrap();
        assert!(scene.see(at, usize::MAX).is_none());
        let nowhere = ShownAt { flag_idx: FLAGS as u32, ..at };
        assert!(scene.see(nowhere, 200).is_none());
        let not_shown = ShownAt { flag_idx: 1 + at.flag_idx, ..at };
        assert!(scene.see(not_shown, 200).is_none());
        let seen = scene.see(at, 200).unwrap();
        assert!(scene.see(at, 200).is_none(), "it is seen once");
        let all = (1..FLAGS).map(|_| shows.show(&scene.lending, bytes, keeper(&owner)).is_some());
        assert!(all.into_iter().all(|is_shown| is_shown));
        assert_eq!(shows.show(&scene.lending, bytes, keeper(&owner)), None, "all flags are up");
        assert_eq!((Arc::strong_count(&owner), seen.len()), (1 + FLAGS, 200));
    }
}
