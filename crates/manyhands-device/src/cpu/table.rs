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
}
