//! Scan and cond: instructions that run a compiled body.

use manyhands_program::{Node, Program, ScanSpec};

use super::{Bodies, Lowered};
use crate::cpu::compile::Compiled;
use crate::cpu::instruction::{Context, Stop};
use crate::cpu::kernels::Part;
use crate::cpu::memory::{ARGUMENTS, Place};

/// Places in the arena are multiples of a cache line apart.
fn aligned(n_bytes: usize) -> usize {
    n_bytes.next_multiple_of(64)
}

/// The body's arena, then one spare buffer per carried value: iterations write the final place and the spare in turn.
pub(super) fn scan_workspace(
    program: &Program,
    node: &Node,
    scan: &ScanSpec,
    bodies: &Bodies,
) -> usize {
    let Bodies::One(body) = bodies else { unreachable!("a scan has one body") };
    let spares = node.results[..scan.n_carried].iter();
    aligned(body.arena_bytes)
        + spares.map(|&v| aligned(program.ty(v).n_bytes())).sum::<usize>()
        + 64
}

pub(super) fn cond_workspace(bodies: &Bodies) -> usize {
    let Bodies::Two(then, otherwise) = bodies else { unreachable!("a cond has two bodies") };
    aligned(then.arena_bytes.max(otherwise.arena_bytes)) + 64
}

/// The bytes of scratch in front of the body's own: its table of base pointers, and the iteration.
fn table_bytes(n_arguments: usize) -> usize {
    aligned((ARGUMENTS as usize + n_arguments) * size_of::<*mut u8>()) + 64
}

/// How the argument of a body moves from one iteration to the next.
#[derive(Clone, Copy)]
enum Argument {
    /// The iteration itself.
    Iteration,
    /// The same at every iteration.
    Still(Place),
    /// One element further at every iteration.
    Moving { place: Place, stride: usize },
    /// Comes from `first` at the first iteration, then from where the last one wrote it.
    CarriedIn { first: Place, last: Place, spare: Place },
    /// Goes to `last` at the last iteration, and in turn to the spare before.
    CarriedOut { last: Place, spare: Place },
}

struct Scan {
    body: Box<Compiled>,
    arguments: Vec<Argument>,
    length: usize,
    reverse: bool,
    arena: Place,
    /// What carried values become when there are no iterations: from, to, bytes.
    carried: Vec<(Place, Place, usize)>,
}

pub(super) fn scan(out: &mut Lowered<'_>, spec: &ScanSpec, bodies: Bodies) {
    let Bodies::One(body) = bodies else { unreachable!("a scan has one body") };
    let workspace = out.workspace();
    let mut next = workspace.offset + aligned(body.arena_bytes);
    let spares: Vec<Place> = (0..spec.n_carried)
        .map(|idx| {
            let place = Place { base: workspace.base, offset: next };
            next += aligned(out.result_type(idx).n_bytes());
            place
        })
        .collect();
    let element = |n_bytes: usize| n_bytes / spec.length.max(1);
    let mut arguments = vec![Argument::Iteration];
    for idx in 0..out.node.operands.len() {
        let place = out.operand(idx);
        arguments.push(if let Some(&spare) = spares.get(idx) {
            Argument::CarriedIn { first: place, last: out.result(idx), spare }
        } else if idx < spec.n_carried + spec.n_scanned {
            Argument::Moving { place, stride: element(out.operand_type(idx).n_bytes()) }
        } else {
            Argument::Still(place)
        });
    }
    for (idx, _) in out.node.results.iter().enumerate() {
        let place = out.result(idx);
        arguments.push(match spares.get(idx) {
            Some(&spare) => Argument::CarriedOut { last: place, spare },
            None => Argument::Moving { place, stride: element(out.result_type(idx).n_bytes()) },
        });
    }
    let carried = (0..spec.n_carried)
        .map(|idx| (out.operand(idx), out.result(idx), out.result_type(idx).n_bytes()))
        .collect();
    let scratch = table_bytes(arguments.len()) + body.scratch_bytes;
    let (length, reverse) = (spec.length, spec.reverse);
    let scan = Scan { body, arguments, length, reverse, arena: workspace, carried };
    out.emit_bytes(scratch, Box::new(move |context, part| scan.run(context, part)));
}

impl Scan {
    fn run(&self, context: &Context<'_>, part: Part) -> Result<(), Stop> {
        if self.length == 0 {
            for &(from, to, n_bytes) in self.carried.iter().filter(|_| part.idx == 0) {
                // SAFETY: the plan gives both places so many bytes, and they do not overlap.
                unsafe {
                    std::ptr::copy_nonoverlapping(context.at::<u8>(from), context.at(to), n_bytes)
                };
            }
            return Ok(());
        }
        for turn in 0..self.length {
            let element = if self.reverse { self.length - 1 - turn } else { turn };
            self.body.run_inside(context, part, self.arena, |idx, iteration| {
                self.address(context, idx, turn, element, iteration)
            })?;
        }
        Ok(())
    }

    /// The address of argument `idx` of the body at a turn; `iteration` is this thread's place for the iteration.
    fn address(
        &self,
        context: &Context<'_>,
        idx: usize,
        turn: usize,
        element: usize,
        iteration: *mut i32,
    ) -> *mut u8 {
        // Counting from the end, even turns write the final place and odd ones the spare.
        let written = |turn: usize, last: Place, spare: Place| {
            if (self.length - 1 - turn).is_multiple_of(2) { last } else { spare }
        };
        match self.arguments[idx] {
            Argument::Iteration => {
                // SAFETY: the pointer is into this thread's scratch, which has room for it.
                unsafe { *iteration = element as i32 };
                iteration.cast()
            }
            Argument::Still(place) => context.at(place),
            Argument::Moving { place, stride } => {
                context.at::<u8>(place).wrapping_add(element * stride)
            }
            Argument::CarriedIn { first, .. } if turn == 0 => context.at(first),
            Argument::CarriedIn { last, spare, .. } => context.at(written(turn - 1, last, spare)),
            Argument::CarriedOut { last, spare } => context.at(written(turn, last, spare)),
        }
    }
}

pub(super) fn cond(out: &mut Lowered<'_>, bodies: Bodies) {
    let Bodies::Two(then, otherwise) = bodies else { unreachable!("a cond has two bodies") };
    let n_then = then.n_arguments - out.node.results.len();
    let operands: Vec<Place> = (1..out.node.operands.len()).map(|idx| out.operand(idx)).collect();
    let results: Vec<Place> = (0..out.node.results.len()).map(|idx| out.result(idx)).collect();
    let (yes, no) = operands.split_at(n_then);
    let arguments = |own: &[Place]| own.iter().chain(&results).copied().collect::<Vec<_>>();
    let (yes, no) = (arguments(yes), arguments(no));
    let (condition, arena) = (out.operand(0), out.workspace());
    let scratch =
        table_bytes(yes.len().max(no.len())) + then.scratch_bytes.max(otherwise.scratch_bytes);
    out.emit_bytes(
        scratch,
        Box::new(move |context, part| {
            // SAFETY: the condition is a bool scalar: one byte that is there.
            let holds = unsafe { *context.at::<u8>(condition) != 0 };
            let (body, arguments) = if holds { (&then, &yes) } else { (&otherwise, &no) };
            body.run_inside(context, part, arena, |idx, _| context.at(arguments[idx]))
        }),
    );
}

impl Compiled {
    /// Runs this body as part of an instruction of the program around it. `address` gives the address of each argument;
    /// it is handed this thread's place for an iteration.
    fn run_inside(
        &self,
        context: &Context<'_>,
        part: Part,
        arena: Place,
        address: impl Fn(usize, *mut i32) -> *mut u8,
    ) -> Result<(), Stop> {
        let n_bases = ARGUMENTS as usize + self.n_arguments;
        let table = table_bytes(self.n_arguments);
        let iteration = context.scratch.wrapping_add(table - 64).cast::<i32>();
        // SAFETY: the scratch begins with room for the table and the iteration; nothing else refers to it.
        let bases =
            unsafe { std::slice::from_raw_parts_mut(context.scratch.cast::<*mut u8>(), n_bases) };
        bases[0] = context.at(arena);
        bases[1] = self.constants_ptr();
        for idx in 0..self.n_arguments {
            bases[ARGUMENTS as usize + idx] = address(idx, iteration);
        }
        let inner = Context {
            bases,
            scratch: context.scratch.wrapping_add(table),
            scratch_bytes: context.scratch_bytes - table,
            ..*context
        };
        self.run_part(&inner, part)
    }
}
