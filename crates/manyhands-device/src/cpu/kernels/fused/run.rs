//! Carries out a [`Tape`], block by block.

use super::compile::{Schedule, Slot, Spreading, Tape};
use super::superoperators::{Instruction, execute};
use crate::cpu::kernels::Part;
use crate::cpu::simd::{Isa, Kernel, Lanes, WIDTH};

/// Parts are cut at multiples of so many elements, so that threads share no cache line.
const GRANULE: usize = 64;

/// Computes one part of the results of a tape. Allocates nothing.
///
/// # Safety
/// The machine has the instruction set. `operands` and `results` are those of the expression, with
/// the shapes that the tape was compiled for; a result may be the very memory of a full operand
/// (each operand serves one result) and overlaps nothing otherwise. `scratch` has
/// [`Tape::scratch_len`] f32 that no other thread uses meanwhile.
pub(crate) unsafe fn run(
    isa: Isa,
    tape: &Tape,
    operands: &[*const f32],
    results: &[*mut f32],
    scratch: *mut f32,
    part: Part,
) {
    assert!(operands.len() == tape.n_operands && results.len() == tape.n_results);
    let range = part.range(tape.n_elements, GRANULE);
    if range.is_empty() {
        return;
    }
    let in_place = |&(result, operand): &(u16, u16)| {
        results[usize::from(result)].cast_const() == operands[usize::from(operand)]
    };
    let schedule = match &tape.staged {
        Some(staged) if tape.conflicts.iter().any(in_place) => staged,
        _ => &tape.direct,
    };
    let skip = scratch.align_offset(WIDTH * size_of::<f32>());
    // SAFETY: the scratch memory has room for the alignment, then for the table, then for the rest.
    unsafe {
        let table = scratch.add(skip);
        let memory = table.add(schedule.table_len());
        let table = table.cast::<*mut f32>();
        isa.run(Walk { tape, schedule, operands, results, table, memory, range });
    }
}

struct Walk<'a> {
    tape: &'a Tape,
    schedule: &'a Schedule,
    operands: &'a [*const f32],
    results: &'a [*mut f32],
    /// The addresses of the slots.
    table: *mut *mut f32,
    /// What places in scratch memory count from.
    memory: *mut f32,
    range: std::ops::Range<usize>,
}

impl Kernel for Walk<'_> {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let schedule = self.schedule;
        // SAFETY: the table has an address for every slot; blocks stay inside the range and are no
        // longer than their places in scratch memory.
        unsafe {
            self.fill_table();
            schedule.spreads.iter().for_each(|spread| self.spread_once(l, *spread));
            self.execute(l, &schedule.once, WIDTH);
            let mut at = self.range.start;
            while at < self.range.end {
                let mut len = schedule.block.min(self.range.end - at);
                for cut in &schedule.cuts {
                    len = len.min(cut - at % cut);
                }
                for spread in &schedule.spreads {
                    self.spread_block(l, *spread, at, len);
                }
                self.execute(l, &schedule.rows, WIDTH);
                self.execute(l, &schedule.body, len);
                for slot in 0..schedule.n_moving {
                    let address = self.table.add(slot);
                    *address = (*address).add(len);
                }
                at += len;
            }
        }
    }
}

impl Walk<'_> {
    /// # Safety
    /// As for [`run`].
    #[inline(always)]
    unsafe fn execute<L: Lanes>(&self, l: L, instructions: &[Instruction], n: usize) {
        for instruction in instructions {
            // SAFETY: as the caller says.
            unsafe { execute(l, self.table, instruction, n) };
        }
    }

    /// # Safety
    /// As for [`run`].
    #[inline(always)]
    unsafe fn fill_table(&self) {
        let start = self.range.start;
        for (idx, slot) in self.schedule.slots.iter().enumerate() {
            // SAFETY: the part starts inside operands and results; places are inside the scratch
            // memory; the table has every slot.
            unsafe {
                *self.table.add(idx) = match *slot {
                    Slot::Operand(operand) => {
                        self.operands[usize::from(operand)].add(start).cast_mut()
                    }
                    Slot::Result(result) => self.results[usize::from(result)].add(start),
                    Slot::Number(idx) => self.tape.numbers[usize::from(idx)].0.as_ptr().cast_mut(),
                    Slot::Scratch(place) => self.memory.add(place),
                    Slot::Set(operand) => self.operands[usize::from(operand)].cast_mut(),
                };
            }
        }
    }

    /// Makes an operand ready for all blocks.
    ///
    /// # Safety
    /// As for [`run`].
    #[inline(always)]
    unsafe fn spread_once<L: Lanes>(&self, l: L, spread: Spreading) {
        // SAFETY: operands have the sizes that were compiled for; places are as long as they say.
        unsafe {
            match spread {
                Spreading::Scalar { operand, row } => {
                    l.store(self.memory.add(row), l.splat(*self.operands[operand]));
                }
                Spreading::Repeated { operand, period, place, len, .. } => {
                    let place = self.memory.add(place);
                    place.copy_from_nonoverlapping(self.operands[operand], period);
                    let mut done = period;
                    while done < len {
                        let more = done.min(len - done);
                        place.add(done).copy_from_nonoverlapping(place, more);
                        done += more;
                    }
                }
                Spreading::Row { .. } | Spreading::Run { .. } | Spreading::Runs { .. } => {}
            }
        }
    }

    /// Makes an operand ready for the block of `len` elements at `at`.
    ///
    /// # Safety
    /// As for [`run`].
    #[inline(always)]
    unsafe fn spread_block<L: Lanes>(&self, l: L, spread: Spreading, at: usize, len: usize) {
        // SAFETY: `at` is an element of the results, so its row and run are in the operand; the
        // place of written-out runs is a vector longer than a block.
        unsafe {
            match spread {
                Spreading::Scalar { .. } => {}
                Spreading::Row { operand, period, slot } => {
                    *self.table.add(slot) = self.operands[operand].add(at % period).cast_mut();
                }
                Spreading::Repeated { period, slot, place, .. } => {
                    *self.table.add(slot) = self.memory.add(place + at % period);
                }
                Spreading::Run { operand, run, row } => {
                    let number = *self.operands[operand].add(at / run);
                    l.store(self.memory.add(row), l.splat(number));
                }
                Spreading::Runs { operand, run, place } => {
                    let place = self.memory.add(place);
                    let mut number = self.operands[operand].add(at / run);
                    let (mut done, mut left) = (0, run - at % run);
                    // Each vector may run over what the next number then overwrites.
                    while done < len {
                        let end = len.min(done + left);
                        let x = l.splat(*number);
                        while done < end {
                            l.store(place.add(done), x);
                            done += WIDTH;
                        }
                        done = end;
                        (number, left) = (number.add(1), run);
                    }
                }
            }
        }
    }
}
