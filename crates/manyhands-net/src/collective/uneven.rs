//! Operations in which ranks bring as much as they like: first everyone says how much, then it comes.
//!
//! What another announces costs no memory before it is there: it comes in pieces, and room is made for the next piece only.

use super::call::{Call, Kind};
use super::element::Element;
use super::error::CollectiveError;
use super::group::Group;
use super::operations::check_len;
use super::port::Trouble;
use super::transfer::{Incoming, Outgoing};

/// Bytes of a piece.
const PIECE: usize = 4 << 20;

impl Group {
    /// All ranks get what each has, which may be more on one than on another.
    pub fn all_gather_uneven<T: Element>(
        &mut self,
        values: &[T],
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let call = self.call::<T>(Kind::AllGather, 0)?;
        let gives = vec![Some(values); self.size()];
        self.uneven(call, &gives, &vec![true; self.size()])
    }

    /// Each rank gets what each other has for it, `parts[r]` for rank r, of any sizes.
    pub fn all_to_all_uneven<T: Element>(
        &mut self,
        parts: &[&[T]],
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        check_len("what goes to the ranks", parts.len(), self.size())?;
        let call = self.call::<T>(Kind::AllToAll, 0)?;
        let gives: Vec<Option<&[T]>> = parts.iter().map(|part| Some(*part)).collect();
        self.uneven(call, &gives, &vec![true; self.size()])
    }

    /// The root gets what each has, by rank; the others get nothing. Sizes may differ.
    pub fn gather<T: Element>(
        &mut self,
        values: &[T],
        root: usize,
    ) -> Result<Option<Vec<Vec<T>>>, CollectiveError> {
        self.check_root(root)?;
        let call = self.call::<T>(Kind::Gather, 0)?.with(root);
        let mut gives = vec![None; self.size()];
        gives[root] = Some(values);
        let is_root = self.rank == root;
        let gathered = self.uneven(call, &gives, &vec![is_root; self.size()])?;
        Ok(is_root.then_some(gathered))
    }

    /// Gives each rank what is for it, and gets what those have who give something to this one.
    fn uneven<T: Element>(
        &mut self,
        call: Call,
        gives: &[Option<&[T]>],
        takes: &[bool],
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let rank = self.rank;
        let counts = self.exchange_counts::<T>(call, gives, takes)?;
        let mut result: Vec<Vec<T>> = vec![Vec::new(); self.size()];
        if let Some(own) = gives[rank].filter(|_| takes[rank]) {
            result[rank] = own.to_vec();
        }
        let given = gives.iter().enumerate().filter(|(to, _)| *to != rank);
        let given: Vec<(usize, &[T])> =
            given.filter_map(|(to, values)| Some((to, (*values)?))).collect();
        let longest = given.iter().map(|(_, values)| values.len()).chain(counts.clone()).max();
        let per_piece = (PIECE / size_of::<T>()).max(1);
        for (idx, start) in (0..longest.unwrap_or(0)).step_by(per_piece).enumerate() {
            let piece = |n: usize| start..n.min(start.saturating_add(per_piece));
            let left = given.iter().filter(|(_, values)| values.len() > start);
            let outgoing: Vec<_> = left
                .map(|(to, values)| Outgoing {
                    to: *to,
                    bytes: bytemuck::cast_slice(&values[piece(values.len())]),
                })
                .collect();
            let mut incoming = Vec::new();
            let mut without_room = None;
            for (from, values) in result.iter_mut().enumerate().filter(|(_, v)| v.len() == start) {
                let end = piece(counts[from]).end;
                if from == rank || end <= start {
                    continue;
                }
                match values.try_reserve(end - start) {
                    Ok(()) => values.resize(end, T::zeroed()),
                    Err(_) => without_room = Some(from),
                }
                incoming
                    .push(Incoming { from, bytes: bytemuck::cast_slice_mut(&mut values[start..]) });
            }
            if let Some(from) = without_room {
                return Err(self.refuse::<T>(call, from, counts[from] as u64));
            }
            self.transfer(call, 1 + idx, &outgoing, &mut incoming)?;
        }
        Ok(result)
    }

    /// How many elements come from each rank; none from this one.
    fn exchange_counts<T: Element>(
        &mut self,
        call: Call,
        gives: &[Option<&[T]>],
        takes: &[bool],
    ) -> Result<Vec<usize>, CollectiveError> {
        let own: Vec<Option<[u64; 1]>> =
            gives.iter().map(|values| values.map(|values| [values.len() as u64])).collect();
        let mut announced = vec![[0u64; 1]; self.size()];
        let outgoing: Vec<_> = self
            .others()
            .filter_map(|to| Some(Outgoing { to, bytes: bytemuck::cast_slice(own[to].as_ref()?) }))
            .collect();
        let rank = self.rank;
        let mut incoming: Vec<_> = announced
            .iter_mut()
            .enumerate()
            .filter(|(from, _)| takes[*from] && *from != rank)
            .map(|(from, count)| Incoming { from, bytes: bytemuck::cast_slice_mut(count) })
            .collect();
        self.transfer(call, 0, &outgoing, &mut incoming)?;
        let mut counts = Vec::with_capacity(announced.len());
        for (from, [count]) in announced.into_iter().enumerate() {
            let n_bytes = count.checked_mul(size_of::<T>() as u64);
            match n_bytes.is_some_and(|n_bytes| n_bytes <= isize::MAX as u64) {
                true => counts.push(count as usize),
                false => return Err(self.refuse::<T>(call, from, count)),
            }
        }
        Ok(counts)
    }

    /// Fails since another announced more than there can be room for.
    fn refuse<T: Element>(&mut self, call: Call, from: usize, count: u64) -> CollectiveError {
        let why = format!("it announced {count} elements of {}: there is no room", T::TYPE.name());
        let failed = self.drive(call, |_, _| Err((from, Trouble::Refused(why.clone()))));
        failed.err().unwrap_or(CollectiveError::Misuse(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Link, in_process};

    /// Runs a body on all ranks of a group.
    fn on_all<R: Send>(size: usize, body: impl Fn(&mut Group) -> R + Sync) -> Vec<R> {
        let mut links: Vec<Vec<Option<Box<dyn Link>>>> =
            (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
        let pairs = (0..size).flat_map(|one| (one + 1..size).map(move |other| (one, other)));
        for (one, other) in pairs {
            let (a, b) = in_process::pair(1 << 16).unwrap();
            links[one][other] = Some(Box::new(a));
            links[other][one] = Some(Box::new(b));
        }
        let body = &body;
        std::thread::scope(|scope| {
            let ranks = links.into_iter().enumerate().map(|(rank, links)| {
                scope.spawn(move || body(&mut Group::new(rank, links).unwrap()))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    /// Nothing, little, a piece, a bit more, and more than two.
    fn values(from: usize, to: usize) -> Vec<i32> {
        let n = [0, 3, PIECE / 4, PIECE / 4 + 1, 2 * PIECE / 4 + 7][(from * 2 + to) % 5];
        (0..n).map(|idx| (idx + 100 * from + 10 * to) as i32).collect()
    }

    #[test]
    fn what_is_longer_than_a_piece_and_what_is_nothing_arrive() {
        for size in 1..=3 {
            let got = on_all(size, |group| {
                let parts: Vec<_> = (0..size).map(|to| values(group.rank(), to)).collect();
                let parts: Vec<&[i32]> = parts.iter().map(Vec::as_slice).collect();
                let all = group.all_to_all_uneven(&parts).unwrap();
                let gathered = group.gather(parts[0], size - 1).unwrap();
                group.barrier().unwrap();
                (all, gathered)
            });
            for (rank, (all, gathered)) in got.into_iter().enumerate() {
                let sent_to = |to| -> Vec<_> { (0..size).map(|from| values(from, to)).collect() };
                assert!(all == sent_to(rank), "rank {rank} of {size}");
                let wanted = (rank == size - 1).then(|| sent_to(0));
                assert!(gathered == wanted, "rank {rank} of {size} as root");
            }
        }
    }
}
