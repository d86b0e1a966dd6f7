//! The operations of a group on slices.

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use super::algorithm::{Algorithm, Choice};
use super::call::Kind;
use super::direct::Brought;
use super::element::{Element, Reduction};
use super::error::CollectiveError;
use super::exchange::Exchange;
use super::group::Group;
use super::plan::Sharing;
use super::pointers::Pointers;
use super::run::Buffers;
use super::transfer::{Incoming, Outgoing};

/// From this many bytes on, a broadcast goes in parts that the ranks then give each other.
const SCATTERED_BROADCAST: usize = 256 << 10;

impl Group {
    /// All ranks get the reduction of what each has, in tree order over the ranks, by whatever way in that order is fast.
    pub fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        self.all_reduce_by(values, reduction, Algorithm::Auto)
    }

    /// As [`Group::all_reduce`], by a given algorithm.
    pub fn all_reduce_by<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        algorithm: Algorithm,
    ) -> Result<(), CollectiveError> {
        check_mean::<T>(reduction)?;
        let call = self.call::<T>(Kind::AllReduce, values.len())?;
        let call = call.reducing(reduction).with(algorithm as usize);
        if self.size() == 1 || values.is_empty() {
            return self.come_together(call);
        }
        let leaves = Arc::clone(&self.leaf_each);
        let sharing = Sharing { n_leaves: self.size(), brings: &leaves, reduction };
        let way = match self.choose(call, algorithm, &sharing, size_of_val(values))? {
            Choice::Ring => return self.ring(call, values, reduction),
            Choice::HalvingDoubling => return self.halving_doubling(call, values, reduction),
            Choice::Way(way) => way,
        };
        let plan = self.plan::<T>(sharing, slice::from_ref(&(0..values.len())), way)?;
        let out = values.as_mut_ptr();
        // SAFETY: the one sum is the result's own memory.
        let outcome = unsafe { self.carry_out(call, &plan, |_| out, out) };
        self.keep(plan);
        outcome
    }

    /// All ranks get the sum over all leaves of a tree, of which each brings partial sums: `brings` says who brings which.
    pub fn all_reduce_tree<T: Element>(
        &mut self,
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
        own: &Brought<'_, T>,
        result: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.all_reduce_tree_by(n_leaves, brings, own, result, Algorithm::Auto)
    }

    /// As [`Group::all_reduce_tree`], by a given algorithm: the bits are the same by any. Halving and doubling, which knows no subtrees, is a direct exchange
    /// here; a ring, which is not in tree order, is refused.
    pub fn all_reduce_tree_by<T: Element>(
        &mut self,
        n_leaves: usize,
        brings: &[Vec<Range<usize>>],
        own: &Brought<'_, T>,
        result: &mut [T],
        algorithm: Algorithm,
    ) -> Result<(), CollectiveError> {
        let n = result.len();
        let fits = brings.len() == self.size()
            && own.subtrees == brings[self.rank]
            && own.sums.len() == own.subtrees.len()
            && own.sums.iter().all(|sum| sum.len() == n);
        if !fits {
            let sentence =
                "what a rank brings must be what was said, with as many elements as the result";
            return Err(CollectiveError::Misuse(sentence.to_string()));
        }
        let call = self.call::<T>(Kind::AllReduce, n)?.reducing(Reduction::Sum);
        let call = call.with(algorithm as usize).sharing(n_leaves, brings);
        let sharing = Sharing { n_leaves, brings, reduction: Reduction::Sum };
        let way = self.choose_way(call, algorithm, &sharing, size_of_val(result))?;
        let plan = self.plan::<T>(sharing, slice::from_ref(&(0..n)), way)?;
        let sum = |idx: usize| own.sums[idx].as_ptr().cast_mut();
        // SAFETY: lengths were checked, and borrows keep the sums apart from the result; sums are only read.
        let outcome = unsafe { self.carry_out(call, &plan, sum, result.as_mut_ptr()) };
        self.keep(plan);
        outcome
    }

    /// Each rank gets its part of the reduction: `counts[r]` elements for rank r, one rank's after the other's.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        values: &[T],
        counts: &[usize],
        reduction: Reduction,
        result: &mut [T],
    ) -> Result<(), CollectiveError> {
        check_mean::<T>(reduction)?;
        let owned = self.parts(counts, values.len())?;
        let own = owned[self.rank].clone();
        check_len("the result", result.len(), own.len())?;
        let call = self.call::<T>(Kind::ReduceScatter, values.len())?.reducing(reduction);
        if values.is_empty() {
            return self.come_together(call);
        }
        let exchange = Exchange::new::<T>(self.size(), &self.leaf_each, values.len(), reduction)?;
        let out = result.as_mut_ptr().wrapping_sub(own.start);
        let sums = Pointers::one(values.as_ptr().cast_mut());
        let buffers = Buffers { sums, outs: Pointers::one(out) };
        // SAFETY: the result has the elements of this rank, which are all that is written.
        unsafe { self.exchange(call, &exchange.scattered(owned), &buffers) }
    }

    /// The root gets the reduction of what each has; the others' values stay as they are.
    pub fn reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        root: usize,
    ) -> Result<(), CollectiveError> {
        check_mean::<T>(reduction)?;
        self.check_root(root)?;
        let call = self.call::<T>(Kind::Reduce, values.len())?.reducing(reduction).with(root);
        if values.is_empty() {
            return self.come_together(call);
        }
        let n = values.len();
        let owned = (0..self.size()).map(|rank| if rank == root { 0..n } else { 0..0 }).collect();
        let exchange = Exchange::new::<T>(self.size(), &self.leaf_each, n, reduction)?;
        let buffers = Buffers::in_place(values.as_mut_ptr());
        // SAFETY: the one sum is the result's own memory.
        unsafe { self.exchange(call, &exchange.scattered(owned), &buffers) }
    }

    /// All ranks get what each has, one rank's after the other's; all have as many.
    pub fn all_gather<T: Element>(
        &mut self,
        values: &[T],
        result: &mut [T],
    ) -> Result<(), CollectiveError> {
        let n = values.len();
        check_len("the result", result.len(), n * self.size())?;
        let call = self.call::<T>(Kind::AllGather, n)?;
        result[self.rank * n..(self.rank + 1) * n].copy_from_slice(values);
        let bytes = bytemuck::cast_slice(values);
        let outgoing: Vec<Outgoing<'_>> = self.others().map(|to| Outgoing { to, bytes }).collect();
        let mut parts: Vec<&mut [T]> = match n {
            0 => (0..self.size()).map(|_| Default::default()).collect(),
            n => result.chunks_exact_mut(n).collect(),
        };
        let mut incoming = self.incoming(&mut parts);
        self.transfer(call, 0, &outgoing, &mut incoming)
    }

    /// Each rank gets what each other has for it: as many from each, in the order of the ranks.
    pub fn all_to_all<T: Element>(
        &mut self,
        values: &[T],
        result: &mut [T],
    ) -> Result<(), CollectiveError> {
        check_len("the result", result.len(), values.len())?;
        if !values.len().is_multiple_of(self.size()) {
            let (n, size) = (values.len(), self.size());
            let sentence = format!("{n} elements do not divide among {size} ranks");
            return Err(CollectiveError::Misuse(sentence));
        }
        let n = values.len() / self.size();
        let call = self.call::<T>(Kind::AllToAll, values.len())?;
        if n == 0 {
            return self.come_together(call);
        }
        let own = self.rank * n..(self.rank + 1) * n;
        result[own.clone()].copy_from_slice(&values[own]);
        let part = |to: usize| bytemuck::cast_slice(&values[to * n..(to + 1) * n]);
        let outgoing: Vec<_> = self.others().map(|to| Outgoing { to, bytes: part(to) }).collect();
        let mut parts: Vec<&mut [T]> = result.chunks_exact_mut(n).collect();
        let mut incoming = self.incoming(&mut parts);
        self.transfer(call, 0, &outgoing, &mut incoming)
    }

    /// All ranks get the root's values.
    pub fn broadcast<T: Element>(
        &mut self,
        values: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        self.check_root(root)?;
        let call = self.call::<T>(Kind::Broadcast, values.len())?.with(root);
        if size_of_val(values) >= SCATTERED_BROADCAST && self.size() > 2 {
            return self.broadcast_in_parts(call, values, root);
        }
        // Along a binomial tree, in which the root is 0: whoever has it gives it to the one 2^k further on.
        let (size, place) = (self.size(), (self.rank + self.size() - root) % self.size());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        if place > 0 {
            let from = (place - (1 << place.ilog2()) + root) % size;
            self.transfer(call, 0, &[], &mut [Incoming { from, bytes }])?;
        }
        let first = if place == 0 { 0 } else { place.ilog2() + 1 };
        let children = (first..usize::BITS).map(|bit| place + (1usize << bit));
        let children: Vec<_> = children.take_while(|child| *child < size).collect();
        let bytes: &[u8] = bytes;
        let outgoing: Vec<_> =
            children.iter().map(|child| Outgoing { to: (child + root) % size, bytes }).collect();
        self.transfer(call, 0, &outgoing, &mut [])
    }

    /// Parts of the root's values to each rank, then from each to all.
    fn broadcast_in_parts<T: Element>(
        &mut self,
        call: super::call::Call,
        values: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        let (rank, size) = (self.rank, self.size());
        let part = values.len().div_ceil(size);
        let mut parts: Vec<&mut [T]> = values.chunks_mut(part).collect();
        parts.resize_with(size, Default::default);
        let own = std::mem::take(&mut parts[rank]);
        if rank == root {
            let slices: Vec<&[T]> = parts.iter().map(|part| &**part).collect();
            let outgoing: Vec<_> = self
                .others()
                .map(|to| Outgoing { to, bytes: bytemuck::cast_slice(slices[to]) })
                .collect();
            self.transfer(call, 0, &outgoing, &mut [])?;
        } else {
            let bytes = bytemuck::cast_slice_mut(own);
            self.transfer(call, 0, &[], &mut [Incoming { from: root, bytes }])?;
        }
        let bytes = bytemuck::cast_slice(own);
        let outgoing: Vec<_> =
            self.others().filter(|to| *to != root).map(|to| Outgoing { to, bytes }).collect();
        let mut incoming = match rank == root {
            true => Vec::new(),
            false => self.incoming(&mut parts),
        };
        self.transfer(call, 1, &outgoing, &mut incoming)
    }

    /// Each rank gets its part of the root's values: `counts[r]` elements for rank r. Others than the root bring none.
    pub fn scatter<T: Element>(
        &mut self,
        values: &[T],
        counts: &[usize],
        root: usize,
        result: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.check_root(root)?;
        let n = if self.rank == root { values.len() } else { counts.iter().sum() };
        let parts = self.parts(counts, n)?;
        let own = parts[self.rank].clone();
        check_len("the result", result.len(), own.len())?;
        let call = self.call::<T>(Kind::Scatter, n)?.with(root);
        if self.rank != root {
            let bytes = bytemuck::cast_slice_mut(result);
            return self.transfer(call, 0, &[], &mut [Incoming { from: root, bytes }]);
        }
        result.copy_from_slice(&values[own]);
        let part = |to: usize| bytemuck::cast_slice(&values[parts[to].clone()]);
        let outgoing: Vec<_> = self.others().map(|to| Outgoing { to, bytes: part(to) }).collect();
        self.transfer(call, 0, &outgoing, &mut [])
    }

    /// Waits until all ranks have come here.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        let call = self.call::<u8>(Kind::Barrier, 0)?;
        self.come_together(call)
    }

    /// Sends to one rank, which must receive as many.
    pub fn send<T: Element>(&mut self, values: &[T], to: usize) -> Result<(), CollectiveError> {
        let call = self.pair_call::<T>(to, false, values.len())?;
        self.transfer(call, 0, &[Outgoing { to, bytes: bytemuck::cast_slice(values) }], &mut [])
    }

    /// Receives what one rank sends.
    pub fn receive<T: Element>(
        &mut self,
        values: &mut [T],
        from: usize,
    ) -> Result<(), CollectiveError> {
        let call = self.pair_call::<T>(from, true, values.len())?;
        let bytes = bytemuck::cast_slice_mut(values);
        self.transfer(call, 0, &[], &mut [Incoming { from, bytes }])
    }

    /// An empty frame to each and from each.
    fn come_together(&mut self, call: super::call::Call) -> Result<(), CollectiveError> {
        let outgoing: Vec<_> = self.others().map(|to| Outgoing { to, bytes: &[] }).collect();
        let mut incoming: Vec<_> =
            self.others().map(|from| Incoming { from, bytes: &mut [] }).collect();
        self.transfer(call, 0, &outgoing, &mut incoming)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.size()).filter(move |other| *other != rank)
    }

    fn incoming<'a, T: bytemuck::Pod>(&self, parts: &'a mut [&mut [T]]) -> Vec<Incoming<'a>> {
        let rank = self.rank;
        let others = parts.iter_mut().enumerate().filter(|(from, _)| *from != rank);
        others
            .map(|(from, part)| Incoming { from, bytes: bytemuck::cast_slice_mut(part) })
            .collect()
    }

    /// The ranges of parts of these sizes.
    fn parts(&self, counts: &[usize], n: usize) -> Result<Vec<Range<usize>>, CollectiveError> {
        check_len("the list of counts", counts.len(), self.size())?;
        check_len("all parts together", n, counts.iter().sum())?;
        let part = |end: &mut usize, count: &usize| {
            *end += count;
            Some(*end - count..*end)
        };
        Ok(counts.iter().scan(0, part).collect())
    }

    pub(super) fn check_root(&self, root: usize) -> Result<(), CollectiveError> {
        if root < self.size() {
            return Ok(());
        }
        let sentence = format!("there is no rank {root} among {}", self.size());
        Err(CollectiveError::Misuse(sentence))
    }
}

pub(super) fn check_len(what: &str, found: usize, wanted: usize) -> Result<(), CollectiveError> {
    if found == wanted {
        return Ok(());
    }
    Err(CollectiveError::Misuse(format!("{what} has {found} elements instead of {wanted}")))
}

fn check_mean<T: Element>(reduction: Reduction) -> Result<(), CollectiveError> {
    if reduction == Reduction::Mean && T::zeroed().divided(1).is_none() {
        let sentence = format!("{} has no mean: use a sum, or floats", T::TYPE.name());
        return Err(CollectiveError::Misuse(sentence));
    }
    Ok(())
}
