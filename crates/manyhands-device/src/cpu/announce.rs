//! Telling the caller of a launch what has become final, while the launch goes on.
//!
//! Which instruction writes an output, or an updated parameter, for the last time is known when a program is compiled. The
//! thread of the caller looks after every instruction that it has done: all threads have met there, so what was written is seen, and
//! nobody writes it again. The other threads need not wait; they go on with the next instruction.

use std::cell::{Cell, UnsafeCell};

use manyhands_program::Program;

use super::buffers::Buffers;
use super::compile::Compiled;
use super::instruction::Instruction;
use super::memory::{ARGUMENTS, Layout};
use crate::device::{BufferId, Launch, Moment, ReadBuffers};

/// An argument that a program writes, and after which instruction it is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Final {
    after: usize,
    /// Its entry in the table of base pointers.
    base: u32,
}

/// What a program writes for its caller, in the order in which it becomes final; the last instructions are the layout's copies.
pub(super) fn finals(
    program: &Program,
    layout: &Layout,
    instructions: &[Instruction],
) -> Vec<Final> {
    let first_parameter = ARGUMENTS as usize + program.inputs().count();
    let parameters = program.parameters().enumerate();
    let is_updated = |value| program.updates().iter().any(|update| update.parameter == value);
    let updated = parameters.filter(|(_, (.., value))| is_updated(*value));
    let first_output = first_parameter + program.parameters().count();
    let written = updated.map(|(idx, _)| first_parameter + idx);
    let written = written.chain(first_output..first_output + program.outputs().len());
    let n_bases = first_output + program.outputs().len();
    // What nobody writes, if there is such a thing, is final at the end.
    let mut last: Vec<Option<usize>> = vec![None; n_bases];
    for (after, instruction) in instructions.iter().enumerate() {
        // Copies belong to no node.
        let Some(node) = program.nodes().get(instruction.node_idx) else { continue };
        for &result in &node.results {
            last[layout.place(result).base as usize] = Some(after);
        }
    }
    let first_copy = instructions.len() - layout.copies.len();
    for (idx, copy) in layout.copies.iter().enumerate() {
        last[copy.to.base as usize] = Some(first_copy + idx);
    }
    let mut finals: Vec<Final> = written
        .map(|base| Final { after: last[base].unwrap_or(usize::MAX), base: base as u32 })
        .collect();
    finals.sort_unstable();
    finals
}

/// The buffers of a launch, in the order in which they become final.
pub(super) fn final_buffers<'a>(
    compiled: &'a Compiled,
    launch: &'a Launch,
) -> impl Iterator<Item = BufferId> + 'a {
    let n_inputs = launch.inputs.len();
    compiled.finals.iter().map(move |found| {
        let place = found.base as usize - ARGUMENTS as usize - n_inputs;
        match place.checked_sub(launch.parameters.len()) {
            Some(output) => launch.outputs[output],
            None => launch.parameters[place],
        }
    })
}

/// What the caller's thread needs to announce. Only that thread uses it while the launch runs.
pub(super) struct Announcer<'a> {
    announce: UnsafeCell<&'a mut dyn FnMut(Moment<'_>)>,
    /// How many are final.
    n_final: Cell<usize>,
}

// SAFETY: one thread at a time uses it: the caller's during the run, as the callers of `look` promise.
unsafe impl Sync for Announcer<'_> {}

/// A launch that is announced while it runs.
#[derive(Clone, Copy)]
pub(super) struct Announced<'a> {
    pub(super) compiled: &'a Compiled,
    /// The launch's base pointers.
    pub(super) bases: &'a [*mut u8],
    pub(super) buffers: &'a Buffers,
    /// As [`final_buffers`] gives them.
    pub(super) ids: &'a [BufferId],
    /// The number of the run.
    pub(super) run: u64,
}

impl<'a> Announcer<'a> {
    pub(super) fn new(announce: &'a mut dyn FnMut(Moment<'_>)) -> Announcer<'a> {
        Announcer { announce: UnsafeCell::new(announce), n_final: Cell::new(0) }
    }

    /// Announces what is final after an instruction.
    ///
    /// # Safety
    /// Only one thread calls this during a run. All threads have done the instruction.
    pub(super) unsafe fn look(&self, announced: &Announced<'_>, instruction: usize) {
        let before = self.n_final.get();
        let finals = &announced.compiled.finals;
        let new = finals[before..].iter().take_while(|found| found.after <= instruction).count();
        if before + new == 0 {
            return;
        }
        self.n_final.set(before + new);
        let read = Readable { announced, n_final: before + new };
        // SAFETY: the caller's word; nothing else borrows it.
        let announce = unsafe { &mut *self.announce.get() };
        announce(Moment::new(&announced.ids[before..before + new], &read));
    }
}

/// What can be read at a moment.
struct Readable<'a> {
    announced: &'a Announced<'a>,
    n_final: usize,
}

impl ReadBuffers for Readable<'_> {
    fn bytes(&self, buffer: BufferId) -> Option<&[u8]> {
        let Announced { compiled, bases, buffers, ids, run } = *self.announced;
        if let Some(place) = ids.iter().position(|id| *id == buffer) {
            let base = compiled.finals[..self.n_final].get(place)?.base;
            let n_bytes = buffers.get(buffer).ok()?.ty.n_bytes();
            // SAFETY: the buffer was bound to this base, so it has its type's bytes there; nobody writes them until the end of
            // the run, which this reader does not outlive.
            return Some(unsafe {
                std::slice::from_raw_parts(bases[base as usize].cast_const(), n_bytes)
            });
        }
        buffers.bytes(buffer).ok().filter(|_| !buffers.is_written(buffer, run))
    }
}
