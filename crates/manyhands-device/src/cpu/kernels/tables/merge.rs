//! Merges the rows that grains have of a gradient: sorted by row, summed along the tree of grains.

use crate::cpu::kernels::Part;
use crate::cpu::kernels::fault::Fault;
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// The most partial sums of one row at a time: one for each bit of a grain's number, and one more.
const MOST_PARTIAL: usize = 34;

/// How rows are merged.
#[derive(Clone, Debug)]
pub(crate) struct MergePlan {
    /// Of each use: its grains, and the codes of one.
    uses: Vec<[usize; 2]>,
    width: usize,
    most: usize,
    /// Codes of all uses.
    n_codes: usize,
}

/// Where the operands and results of one run are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeArguments<'a> {
    pub(crate) codes: &'a [*const i32],
    pub(crate) values: &'a [*const f32],
    pub(crate) rows: *mut i32,
    pub(crate) sums: *mut f32,
    /// So many bytes as [`MergePlan::scratch_bytes`] says, aligned to 8.
    pub(crate) scratch: *mut u8,
}

impl MergePlan {
    pub(crate) fn new(uses: Vec<[usize; 2]>, width: usize, most: usize) -> MergePlan {
        let n_codes = uses.iter().map(|[n_grains, n]| n_grains * n).sum();
        MergePlan { uses, width, most, n_codes }
    }

    /// What each part needs for itself.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.n_codes * size_of::<u64>() + (MOST_PARTIAL + 1) * self.width * size_of::<f32>()
    }

    /// Does one part: some of the different rows. Every part sorts all codes, which takes no longer than if one did.
    ///
    /// # Safety
    /// `isa` is available. The pointers are valid for what the plan was made for, and nothing that is written overlaps anything
    /// else.
    pub(crate) unsafe fn run(
        &self,
        isa: Isa,
        arguments: MergeArguments<'_>,
        part: Part,
    ) -> Result<(), Fault> {
        // SAFETY: the scratch has room for all codes.
        let entries =
            unsafe { std::slice::from_raw_parts_mut(arguments.scratch.cast(), self.n_codes) };
        // SAFETY: as the caller says.
        let n_entries = unsafe { self.sort(entries, arguments.codes) };
        let entries = &entries[..n_entries];
        let row_of = |entry: &u64| entry >> 32;
        let groups = || entries.chunk_by(|a, b| row_of(a) == row_of(b));
        let n_rows = groups().count();
        if let Some(group) = groups().nth(self.most) {
            let (index, size) = (row_of(&group[0]) as i64, self.most);
            return Err(Fault::IndexOutOfRange { index, size, position: 0 });
        }
        let own = part.range(n_rows, 1);
        let rest = part.range(self.most - n_rows, 16);
        let rest = n_rows + rest.start..n_rows + rest.end;
        // SAFETY: as the caller says; there are at most as many groups as rows.
        unsafe {
            for (idx, group) in groups().enumerate().skip(own.start).take(own.len()) {
                *arguments.rows.add(idx) = row_of(&group[0]) as i32;
                isa.run(SumGroup { plan: self, arguments, group, idx });
            }
            std::slice::from_raw_parts_mut(arguments.rows.add(rest.start), rest.len()).fill(-1);
            let sums = arguments.sums.add(rest.start * self.width);
            std::slice::from_raw_parts_mut(sums, rest.len() * self.width).fill(0.0);
        }
        Ok(())
    }

    /// Writes row and place of every code that says one, by row and then by place; how many there are.
    ///
    /// # Safety
    /// There are codes for every use.
    unsafe fn sort(&self, entries: &mut [u64], codes: &[*const i32]) -> usize {
        let (mut n_entries, mut place) = (0, 0u64);
        for (&codes, [n_grains, n]) in codes.iter().zip(&self.uses) {
            // SAFETY: as the caller says.
            let codes = unsafe { std::slice::from_raw_parts(codes, n_grains * n) };
            for &code in codes {
                if code > 0 {
                    entries[n_entries] = (code as u64 - 1) << 32 | place;
                    n_entries += 1;
                }
                place += 1;
            }
        }
        entries[..n_entries].sort_unstable();
        n_entries
    }

    /// The use, the grain and the first value of a place.
    fn place(&self, mut place: usize) -> (usize, usize, usize) {
        for (idx, [n_grains, n]) in self.uses.iter().enumerate() {
            if place < n_grains * n {
                return (idx, place / n, place * self.width);
            }
            place -= n_grains * n;
        }
        unreachable!("places are counted over the uses")
    }
}

/// The sum of one row.
struct SumGroup<'a> {
    plan: &'a MergePlan,
    arguments: MergeArguments<'a>,
    group: &'a [u64],
    idx: usize,
}

impl Kernel for SumGroup<'_> {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let SumGroup { plan, arguments, group, idx } = self;
        let width = plan.width;
        // SAFETY: the result has a row for every group; the scratch ends with room for the partial sums.
        let (result, partials) = unsafe {
            let partials = arguments.scratch.cast::<u64>().add(plan.n_codes).cast::<f32>();
            (arguments.sums.add(idx * width), partials)
        };
        // SAFETY: there is room for so many.
        let partial = |depth: usize| unsafe { partials.add(depth.min(MOST_PARTIAL) * width) };
        // The bit at which each partial sum but the first parts from the one before.
        let mut bits = [0u32; MOST_PARTIAL + 1];
        let (mut depth, mut last, mut is_first_use) = (0, None, true);
        for &entry in group {
            let (own_use, grain, at) = plan.place(entry as u32 as usize);
            // SAFETY: the place is one of the use's; depth stays below the room for partial sums, as bits fall along it.
            unsafe {
                let value = arguments.values[own_use].add(at);
                match last {
                    Some((last_use, last_grain)) if (last_use, last_grain) == (own_use, grain) => {
                        add(l, partial(depth - 1), value, width);
                        continue;
                    }
                    Some((last_use, last_grain)) if last_use == own_use => {
                        let bit = usize::BITS - (grain ^ last_grain).leading_zeros();
                        while depth > 1 && bits[depth - 1] < bit {
                            add(l, partial(depth - 2), partial(depth - 1), width);
                            depth -= 1;
                        }
                        bits[depth] = bit;
                    }
                    Some(_) => {
                        finish(l, &partial, &mut depth, result, &mut is_first_use, width);
                    }
                    None => {}
                }
                std::ptr::copy_nonoverlapping(value, partial(depth), width);
                depth += 1;
                last = Some((own_use, grain));
            }
        }
        // SAFETY: as above.
        unsafe { finish(l, &partial, &mut depth, result, &mut is_first_use, width) };
    }
}

/// Adds up the partial sums of a use, and the use to those before.
///
/// # Safety
/// There are partial sums down to the depth, and a result, of the width.
#[inline(always)]
unsafe fn finish<L: Lanes>(
    l: L,
    partial: &impl Fn(usize) -> *mut f32,
    depth: &mut usize,
    result: *mut f32,
    is_first_use: &mut bool,
    width: usize,
) {
    // SAFETY: as the caller says.
    unsafe {
        while *depth > 1 {
            add(l, partial(*depth - 2), partial(*depth - 1), width);
            *depth -= 1;
        }
        match std::mem::take(is_first_use) {
            true => std::ptr::copy_nonoverlapping(partial(0), result, width),
            false => add(l, result, partial(0), width),
        }
        *depth = 0;
    }
}

/// # Safety
/// Both have `n` elements.
#[inline(always)]
unsafe fn add<L: Lanes>(l: L, own: *mut f32, other: *const f32, n: usize) {
    let mut at = 0;
    // SAFETY: as the caller says; partial vectors touch only what is inside.
    unsafe {
        while at + WIDTH <= n {
            l.store(own.add(at), l.add(l.load(own.add(at)), l.load(other.add(at))));
            at += WIDTH;
        }
        if at < n {
            let sum = l.add(l.load_first(own.add(at), n - at), l.load_first(other.add(at), n - at));
            l.store_first(own.add(at), sum, n - at);
        }
    }
}
