//! A few pointers without memory from the heap: an exchange has one for each sum that a rank brings, mostly one or two.

/// Up to this many need no memory from the heap.
const FEW: usize = 8;

/// A list of pointers.
pub(super) struct Pointers<T> {
    few: [*mut T; FEW],
    /// All of them, where they are more.
    many: Vec<*mut T>,
}

impl<T> Pointers<T> {
    pub(super) fn one(pointer: *mut T) -> Pointers<T> {
        Pointers::of(1, |_| pointer)
    }

    pub(super) fn of(n: usize, at: impl Fn(usize) -> *mut T) -> Pointers<T> {
        let mut few = [std::ptr::null_mut(); FEW];
        if n > FEW {
            return Pointers { few, many: (0..n).map(at).collect() };
        }
        few[..n].iter_mut().enumerate().for_each(|(idx, pointer)| *pointer = at(idx));
        Pointers { few, many: Vec::new() }
    }

    pub(super) fn at(&self, idx: usize) -> *mut T {
        match self.many.is_empty() {
            true => self.few[idx],
            false => self.many[idx],
        }
    }
}
