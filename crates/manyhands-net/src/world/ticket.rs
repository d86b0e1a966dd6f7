//! Operations that go on in the background: whoever starts one gets a ticket, and waits for it when the result is needed.
//!
//! A thread with links of its own does them one after the other, in the order in which they were started. All ranks must start the same ones in the
//! same order, as with operations in the foreground, but the two do not mind each other. Buffers are handed over and come back with the
//! result, so nobody can touch them meanwhile.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use super::error::WorldError;
use super::fabric::Fabric;
use super::{BUCKET_BYTES, World};
use crate::collective::{CollectiveError, Element, Group, Reduction};

type Task = Box<dyn FnOnce(Result<&mut Group, WorldError>) + Send>;

/// A result that is on its way.
#[must_use = "an operation's errors are told to whoever waits for its ticket"]
pub struct Ticket<R> {
    result: mpsc::Receiver<Result<R, WorldError>>,
}

impl<R> Ticket<R> {
    /// Waits until the operation is done.
    pub fn wait(self) -> Result<R, WorldError> {
        self.result.recv().unwrap_or(Err(WorldError::BackgroundGone))
    }
}

/// A thread that does operations on a group of its own.
pub(super) struct Background {
    tasks: Option<mpsc::Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    abort: Arc<AtomicBool>,
}

impl Background {
    /// The links are made by the thread: whoever starts it does not wait. All ranks must do so.
    pub(super) fn start(fabric: Arc<Fabric>, usage: &str) -> Background {
        let all: Vec<usize> = (0..fabric.size()).collect();
        let name = fabric.next_name(usage, &all);
        let (tasks, received) = mpsc::channel::<Task>();
        let abort = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&abort);
        let thread = std::thread::Builder::new().name(format!("manyhands {usage}"));
        // Without a thread the channel is closed, and every ticket says so.
        let thread = thread.spawn(move || serve(&fabric, &name, &all, &received, flag)).ok();
        Background { tasks: Some(tasks), thread, abort }
    }

    /// Does this after all that was started before.
    pub(super) fn submit<R: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Group) -> Result<R, CollectiveError> + Send + 'static,
    ) -> Ticket<R> {
        let (sender, result) = mpsc::channel();
        let task: Task = Box::new(move |group| {
            let done = group.and_then(|group| Ok(operation(group)?));
            // Whoever dropped the ticket does not want to know.
            let _ = sender.send(done);
        });
        if let Some(tasks) = &self.tasks {
            // A closed channel drops the task, and with it the sender: the ticket says so.
            let _ = tasks.send(task);
        }
        Ticket { result }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // What was started is done first, since the other ranks count on this one; but not where this one is failing.
        if std::thread::panicking() {
            self.abort.store(true, Ordering::Relaxed);
        }
        drop(self.tasks.take());
        if let Some(thread) = self.thread.take() {
            // A panic of an operation was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn serve(
    fabric: &Fabric,
    name: &str,
    ranks: &[usize],
    tasks: &mpsc::Receiver<Task>,
    abort: Arc<AtomicBool>,
) {
    let mut group = fabric.group(name, ranks, abort);
    let failed = group.as_ref().err().map(|error| error.to_string());
    while let Ok(task) = tasks.recv() {
        match &mut group {
            Ok(group) => {
                group.set_patience(fabric.patience());
                task(Ok(group));
            }
            Err(_) => task(Err(WorldError::Disagreement(failed.clone().unwrap_or_default()))),
        }
    }
}

impl World {
    fn background(&self) -> &Background {
        self.background.get_or_init(|| Background::start(Arc::clone(&self.fabric), "background"))
    }

    /// Starts any operations on a group of all ranks, after those that were started before.
    pub fn start<R: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Group) -> Result<R, CollectiveError> + Send + 'static,
    ) -> Ticket<R> {
        self.background().submit(operation)
    }

    /// Starts an all-reduce; the values come back reduced.
    pub fn start_all_reduce<T: Element>(
        &self,
        mut values: Vec<T>,
        reduction: Reduction,
    ) -> Ticket<Vec<T>> {
        self.start(move |group| {
            group.all_reduce(&mut values, reduction)?;
            Ok(values)
        })
    }

    /// Starts all-reduces of many; small ones travel together, with the same result as one by one.
    pub fn start_all_reduce_grouped<T: Element>(
        &self,
        values: Vec<Vec<T>>,
        reduction: Reduction,
    ) -> Ticket<Vec<Vec<T>>> {
        self.start(move |group| all_reduce_grouped(group, values, reduction))
    }

    /// Starts an all-gather; what each rank has comes back by rank, and may be of any sizes.
    pub fn start_all_gather<T: Element>(&self, values: Vec<T>) -> Ticket<Vec<Vec<T>>> {
        self.start(move |group| group.all_gather_uneven(&values))
    }

    /// Starts a reduce-scatter; this rank's part of the reduction comes back.
    pub fn start_reduce_scatter<T: Element>(
        &self,
        values: Vec<T>,
        counts: Vec<usize>,
        reduction: Reduction,
    ) -> Ticket<Vec<T>> {
        self.start(move |group| {
            let n = counts.get(group.rank()).copied().unwrap_or(0);
            let mut result = vec![T::zeroed(); n];
            group.reduce_scatter(&values, &counts, reduction, &mut result)?;
            Ok(result)
        })
    }

    /// Starts an all-to-all; what each rank has for this one comes back by rank.
    pub fn start_all_to_all<T: Element>(&self, parts: Vec<Vec<T>>) -> Ticket<Vec<Vec<T>>> {
        self.start(move |group| {
            let parts: Vec<&[T]> = parts.iter().map(Vec::as_slice).collect();
            group.all_to_all_uneven(&parts)
        })
    }

    /// Starts a broadcast; the root's values come back.
    pub fn start_broadcast<T: Element>(&self, mut values: Vec<T>, root: usize) -> Ticket<Vec<T>> {
        self.start(move |group| {
            group.broadcast(&mut values, root)?;
            Ok(values)
        })
    }

    /// Starts a barrier, which is past when all ranks have come to it.
    pub fn start_barrier(&self) -> Ticket<()> {
        self.start(Group::barrier)
    }
}

/// Which of so many lengths travel together: neighbours, as long as they fit.
pub(super) fn buckets<T: Element>(lens: &[usize]) -> Vec<Range<usize>> {
    let most = (BUCKET_BYTES / size_of::<T>()).max(1);
    let mut buckets: Vec<Range<usize>> = Vec::new();
    let mut n_elements = 0;
    for (idx, len) in lens.iter().enumerate() {
        match buckets.last_mut() {
            Some(last) if n_elements + len <= most => {
                last.end = idx + 1;
                n_elements += len;
            }
            _ => {
                buckets.push(idx..idx + 1);
                n_elements = *len;
            }
        }
    }
    buckets
}

fn all_reduce_grouped<T: Element>(
    group: &mut Group,
    mut values: Vec<Vec<T>>,
    reduction: Reduction,
) -> Result<Vec<Vec<T>>, CollectiveError> {
    let lens: Vec<usize> = values.iter().map(Vec::len).collect();
    for bucket in buckets::<T>(&lens) {
        if let [one] = &mut values[bucket.clone()] {
            group.all_reduce(one, reduction)?;
            continue;
        }
        let mut packed = values[bucket.clone()].concat();
        group.all_reduce(&mut packed, reduction)?;
        let mut rest = &packed[..];
        for one in &mut values[bucket] {
            let (front, back) = rest.split_at(one.len());
            one.copy_from_slice(front);
            rest = back;
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn buckets_hold_all_in_order_and_no_more_than_fits(
            lens in proptest::collection::vec(0usize..3_000_000, 0..40)
        ) {
            let most = BUCKET_BYTES / 4;
            let buckets = buckets::<f32>(&lens);
            let listed: Vec<usize> = buckets.iter().cloned().flatten().collect();
            prop_assert_eq!(listed, (0..lens.len()).collect::<Vec<_>>());
            let full = |bucket: &Range<usize>| lens[bucket.clone()].iter().sum::<usize>();
            prop_assert!(buckets.iter().all(|bucket| bucket.len() == 1 || full(bucket) <= most));
            // No two neighbours would have fitted into one.
            let wasted = buckets.windows(2).any(|pair| full(&pair[0]) + lens[pair[1].start] <= most);
            prop_assert!(!wasted);
        }
    }
}
