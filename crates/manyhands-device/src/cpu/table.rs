//! What a device holds by handle. A slot that is given up is used again, but never under the same handle, so a stale handle
//! finds nothing instead of a stranger's things.

/// A slot's index and how often it was taken.
pub(super) type Handle = u64;

/// Things by handle.
pub(super) struct Table<T> {
    slots: Vec<(u32, Option<T>)>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table { slots: Vec::new() }
    }

    pub(super) fn insert(&mut self, kept: T) -> Handle {
        let idx = self.slots.iter().position(|(_, kept)| kept.is_none()).unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() - 1
        });
        let (turn, slot) = &mut self.slots[idx];
        *turn = turn.wrapping_add(1);
        *slot = Some(kept);
        u64::from(*turn) << 32 | idx as u64
    }

    pub(super) fn get(&self, handle: Handle) -> Option<&T> {
        let (turn, kept) = self.slots.get(handle as u32 as usize)?;
        kept.as_ref().filter(|_| u64::from(*turn) == handle >> 32)
    }

    pub(super) fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let (turn, kept) = self.slots.get_mut(handle as u32 as usize)?;
        kept.as_mut().filter(|_| u64::from(*turn) == handle >> 32)
    }

    pub(super) fn remove(&mut self, handle: Handle) -> Option<T> {
        self.get(handle)?;
        self.slots[handle as u32 as usize].1.take()
    }

    /// One thing to change, beside all others to look at.
    pub(super) fn split_mut(&mut self, handle: Handle) -> Option<(&mut T, Others<'_, T>)> {
        self.get(handle)?;
        let (before, rest) = self.slots.split_at_mut_checked(handle as u32 as usize)?;
        let ((_, kept), after) = rest.split_first_mut()?;
        Some((kept.as_mut()?, Others { before, after }))
    }
}

/// All things of a table but one.
pub(super) struct Others<'a, T> {
    before: &'a [(u32, Option<T>)],
    after: &'a [(u32, Option<T>)],
}

impl<'a, T> Others<'a, T> {
    pub(super) fn get(&self, handle: Handle) -> Option<&'a T> {
        let idx = handle as u32 as usize;
        let (turn, kept) = match idx.checked_sub(self.before.len()) {
            None => self.before.get(idx)?,
            // The slot between the two is the one that is left out.
            Some(beyond) => self.after.get(beyond.checked_sub(1)?)?,
        };
        kept.as_ref().filter(|_| u64::from(*turn) == handle >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_finds_nothing() {
        let mut table = Table::new();
        let (a, b) = (table.insert('a'), table.insert('b'));
        assert_eq!(table.remove(a), Some('a'));
        let c = table.insert('c');
        assert_eq!((table.get(a), table.get(b), table.get(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!((table.remove(a), table.get_mut(a)), (None, None));
        assert_eq!(table.slots.len(), 2, "the slot is used again");
    }

    #[test]
    fn one_thing_is_changed_while_the_others_are_seen() {
        let mut table = Table::new();
        let handles = ['a', 'b', 'c'].map(|kept| table.insert(kept));
        let (b, others) = table.split_mut(handles[1]).unwrap();
        *b = 'B';
        assert_eq!(handles.map(|handle| others.get(handle)), [Some(&'a'), None, Some(&'c')]);
        table.remove(handles[2]);
        assert!(table.split_mut(handles[2]).is_none());
        let (_, others) = table.split_mut(handles[0]).unwrap();
        assert_eq!(handles.map(|handle| others.get(handle)), [None, Some(&'B'), None]);
    }
}
