//! From an expression and its shapes to a [`Tape`]: where every value lives and in which order the
//! instructions run.
//!
//! Memory is walked in blocks that stay in the first cache. Values between instructions live in
//! blocks of the scratch memory, results are written where they belong. A result may be the memory
//! of an operand: where a later instruction still reads that operand, a second schedule is kept
//! that writes nothing before the last instruction has read its block.

use manyhands_program::Shape;
use manyhands_program::{Expression, Spread};

use super::graph::{Cut, Graph, Node};
use super::superoperators::{Code, Instruction, MAX_SOURCES};
use crate::cpu::simd::WIDTH;

/// Elements of a block.
pub(super) const BLOCK: usize = 512;

/// Rows shorter than this are laid end to end in scratch memory, longer ones cut the blocks.
const SHORT_ROW: usize = 256;

/// Runs of one per-row number shorter than this are written out, longer ones cut the blocks.
const SHORT_RUN: usize = 64;

/// An expression compiled for the shapes of its operands.
#[derive(Debug)]
pub(crate) struct Tape {
    pub(super) n_elements: usize,
    pub(super) n_operands: usize,
    pub(super) n_results: usize,
    pub(super) numbers: Vec<Row>,
    /// Writes results as soon as they are known.
    pub(super) direct: Schedule,
    /// Writes results after everything is read; for results that are the memory of a conflict.
    pub(super) staged: Option<Schedule>,
    /// Results that are written before an operand is read for the last time: (result, operand).
    pub(super) conflicts: Vec<(u16, u16)>,
}

/// A number, once for every lane.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Row(pub(super) [f32; WIDTH]);

/// The instructions and where their values are.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// What each entry of the table of addresses is; those that move with the blocks come first.
    pub(super) slots: Vec<Slot>,
    pub(super) n_moving: usize,
    /// How the operands are made ready that are not one element each.
    pub(super) spreads: Vec<Spreading>,
    /// Blocks end at multiples of these.
    pub(super) cuts: Vec<usize>,
    /// Run once, on rows.
    pub(super) once: Vec<Instruction>,
    /// Run for every block, on rows: what depends on the number of a run and nothing finer.
    pub(super) rows: Vec<Instruction>,
    /// Run for every block, on its elements.
    pub(super) body: Vec<Instruction>,
    /// The most elements of a block.
    pub(super) block: usize,
    /// Scratch memory in f32, without the table and the alignment.
    pub(super) scratch: usize,
}

/// An address that instructions use. Places in scratch memory are offsets in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The block's elements of an operand.
    Operand(u16),
    /// The block's elements of a result.
    Result(u16),
    /// A row of the tape.
    Number(u16),
    /// Fixed scratch memory.
    Scratch(usize),
    /// Set anew for every block by a [`Spreading`].
    Set(u16),
}

/// How an operand that is not one element each reaches the instructions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spreading {
    /// One number: a row, written once.
    Scalar { operand: usize, row: usize },
    /// A long repeated row, read in place.
    Row { operand: usize, period: usize, slot: usize },
    /// A short repeated row, laid end to end `len` elements long, once; blocks start inside the
    /// first.
    Repeated { operand: usize, period: usize, slot: usize, place: usize, len: usize },
    /// One number for each long run: a row, written for every block.
    Run { operand: usize, run: usize, row: usize },
    /// One number for each short run, written out for every block.
    Runs { operand: usize, run: usize, place: usize },
}

/// What an operand's spread means for the shapes at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Each,
    Same,
    /// Repeats with this period.
    Period(usize),
    /// Each element is for a run of this length.
    Run(usize),
}

impl Reach {
    /// Whether the elements of a block see one number.
    fn is_row(self) -> bool {
        self == Reach::Same || self.is_long_run()
    }

    fn is_long_run(self) -> bool {
        matches!(self, Reach::Run(run) if run >= SHORT_RUN)
    }
}

impl Tape {
    /// Compiles an expression that has passed type inference, for results of the given shape and
    /// operands of theirs.
    pub(crate) fn new(expression: &Expression, shape: &Shape, operand_shapes: &[&Shape]) -> Tape {
        let n = shape.n_elements();
        let reaches: Vec<Reach> = expression
            .operands
            .iter()
            .zip(operand_shapes)
            .map(|(spread, own)| reach(*spread, n, own.n_elements()))
            .collect();
        let graph = Graph::new(expression, |operand| reaches[operand].is_row());
        let cuts = graph.cuts();
        let mut numbers = Vec::new();
        let mut schedule =
            |staged| Scheduler::new(&graph, &reaches, n, &mut numbers).build(&cuts, staged);
        let direct = schedule(false);
        let conflicts = conflicts(&direct);
        let staged = (!conflicts.is_empty()).then(|| schedule(true));
        Tape {
            n_elements: n,
            n_operands: reaches.len(),
            n_results: graph.results.len(),
            numbers: numbers.into_iter().map(|bits| Row([f32::from_bits(bits); WIDTH])).collect(),
            direct,
            staged,
            conflicts,
        }
    }

    /// How much scratch memory each thread needs, in f32. Any alignment will do.
    pub(crate) fn scratch_len(&self) -> usize {
        let of = |schedule: &Schedule| schedule.table_len() + schedule.scratch + WIDTH;
        of(&self.direct).max(self.staged.as_ref().map_or(0, of))
    }
}

impl Schedule {
    /// The table of addresses, in f32.
    pub(super) fn table_len(&self) -> usize {
        (self.slots.len() * (size_of::<*mut f32>() / size_of::<f32>())).next_multiple_of(WIDTH)
    }
}

fn reach(spread: Spread, n: usize, own: usize) -> Reach {
    match spread {
        Spread::Full => Reach::Each,
        Spread::Scalar => Reach::Same,
        Spread::Trailing | Spread::Leading if own == n => Reach::Each,
        Spread::Trailing | Spread::Leading if own == 1 => Reach::Same,
        Spread::Trailing => Reach::Period(own),
        Spread::Leading => Reach::Run(n / own.max(1)),
    }
}

fn conflicts(schedule: &Schedule) -> Vec<(u16, u16)> {
    let mut found = Vec::new();
    for (idx, writer) in schedule.body.iter().enumerate() {
        let Slot::Result(result) = schedule.slots[usize::from(writer.dst)] else { continue };
        for reader in &schedule.body[idx + 1..] {
            for slot in reader.sources {
                if let Slot::Operand(operand) = schedule.slots[usize::from(slot)] {
                    found.push((result, operand));
                }
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Gives every value a place while the schedule is made.
struct Scheduler<'a> {
    graph: &'a Graph,
    reaches: &'a [Reach],
    n_elements: usize,
    numbers: &'a mut Vec<u32>,
    schedule: Schedule,
    /// The slot of each node that has one already.
    slot_of: Vec<Option<u16>>,
    /// For nodes that are rows: whether they hold another number in another block.
    row_varies: Vec<bool>,
    /// Blocks of scratch memory that are free again.
    free: Vec<u16>,
}

impl<'a> Scheduler<'a> {
    fn new(
        graph: &'a Graph,
        reaches: &'a [Reach],
        n_elements: usize,
        numbers: &'a mut Vec<u32>,
    ) -> Scheduler<'a> {
        Scheduler {
            graph,
            reaches,
            n_elements,
            numbers,
            schedule: Schedule::default(),
            slot_of: vec![None; graph.nodes.len()],
            row_varies: vec![false; graph.nodes.len()],
            free: Vec::new(),
        }
    }

    fn build(mut self, cuts: &[Cut], staged: bool) -> Schedule {
        self.moving_slots(cuts);
        let last_use = self.last_uses(cuts);
        for (idx, cut) in cuts.iter().enumerate() {
            let sources = cut.sources.map(|source| source.map(|node| self.place(node)));
            if self.graph.same[cut.node] {
                let row = self.scratch(WIDTH);
                let dst = self.slot(Slot::Scratch(row));
                self.slot_of[cut.node] = Some(dst);
                let instruction = self.instruction(cut, sources, dst);
                let varies = cut.sources.iter().flatten().any(|node| self.varies(*node));
                self.row_varies[cut.node] = varies;
                let rows = if varies { &mut self.schedule.rows } else { &mut self.schedule.once };
                rows.push(instruction);
                continue;
            }
            // A block that is read for the last time here may be written here.
            for node in cut.sources.iter().flatten().filter(|node| last_use[**node] == idx) {
                self.release(*node);
            }
            let result = self.graph.results.iter().position(|node| *node == cut.node);
            let dst = match result {
                Some(result) if !staged => self.result_slot(result),
                _ => self.block(),
            };
            self.slot_of[cut.node] = Some(dst);
            let instruction = self.instruction(cut, sources, dst);
            self.schedule.body.push(instruction);
        }
        self.write_results(staged);
        self.settle()
    }

    /// Operands and results that move with the blocks get the first slots.
    fn moving_slots(&mut self, cuts: &[Cut]) {
        let graph = self.graph;
        let read = cuts.iter().flat_map(|cut| cut.sources.into_iter().flatten());
        let mut read: Vec<usize> = read.chain(graph.results.iter().copied()).collect();
        read.sort_unstable();
        read.dedup();
        for node in read {
            if let Node::Operand(operand) = graph.nodes[node]
                && self.reaches[operand] == Reach::Each
            {
                self.slot_of[node] = Some(self.slot(Slot::Operand(operand as u16)));
            }
        }
        for result in 0..graph.results.len() {
            self.slot(Slot::Result(result as u16));
        }
        self.schedule.n_moving = self.schedule.slots.len();
    }

    /// For each node the last instruction that reads it; none for results, which live on.
    fn last_uses(&self, cuts: &[Cut]) -> Vec<usize> {
        let mut last = vec![usize::MAX; self.graph.nodes.len()];
        for (idx, cut) in cuts.iter().enumerate() {
            cut.sources.iter().flatten().for_each(|node| last[*node] = idx);
        }
        self.graph.results.iter().for_each(|node| last[*node] = usize::MAX);
        last
    }

    fn write_results(&mut self, staged: bool) {
        let results = self.graph.results.clone();
        // Operands that are results are read before anything is written.
        let mut from: Vec<u16> = results.iter().map(|node| self.place(*node)).collect();
        if staged {
            for (slot, node) in from.iter_mut().zip(&results) {
                if matches!(self.schedule.slots[usize::from(*slot)], Slot::Operand(_)) {
                    let block = self.block();
                    let copy = copy(*slot, !self.graph.same[*node], block);
                    self.schedule.body.push(copy);
                    *slot = block;
                }
            }
        }
        for (result, node) in results.iter().enumerate() {
            let dst = self.result_slot(result);
            if from[result] != dst {
                let copy = copy(from[result], !self.graph.same[*node], dst);
                self.schedule.body.push(copy);
            }
        }
    }

    /// Decides the length of blocks: one instruction without scratch memory needs no blocks.
    fn settle(mut self) -> Schedule {
        let schedule = &mut self.schedule;
        let in_blocks = schedule.body.len() > 1
            || schedule.spreads.iter().any(|spread| {
                matches!(spread, Spreading::Repeated { .. } | Spreading::Runs { .. })
            });
        schedule.block = if in_blocks { BLOCK } else { usize::MAX };
        schedule.cuts.sort_unstable();
        schedule.cuts.dedup();
        self.schedule
    }

    /// The slot of a node that is a source.
    fn place(&mut self, node: usize) -> u16 {
        if let Some(slot) = self.slot_of[node] {
            return slot;
        }
        let slot = match self.graph.nodes[node] {
            Node::Number(bits) => {
                let known = self.numbers.iter().position(|other| *other == bits);
                let idx = known.unwrap_or_else(|| {
                    self.numbers.push(bits);
                    self.numbers.len() - 1
                });
                self.slot(Slot::Number(idx as u16))
            }
            Node::Operand(operand) => self.place_operand(operand),
            _ => unreachable!("instructions come after those whose values they read"),
        };
        self.slot_of[node] = Some(slot);
        slot
    }

    fn place_operand(&mut self, operand: usize) -> u16 {
        let n = self.n_elements;
        match self.reaches[operand] {
            Reach::Each => unreachable!("operands of one element each have slots from the start"),
            Reach::Same => {
                let row = self.scratch(WIDTH);
                self.schedule.spreads.push(Spreading::Scalar { operand, row });
                self.slot(Slot::Scratch(row))
            }
            Reach::Period(period) if period >= SHORT_ROW || n <= 2 * period => {
                let slot = self.schedule.slots.len();
                self.schedule.spreads.push(Spreading::Row { operand, period, slot });
                self.schedule.cuts.push(period);
                self.slot(Slot::Set(operand as u16))
            }
            Reach::Period(period) => {
                let slot = self.schedule.slots.len();
                let len = BLOCK.min(n) + period;
                let place = self.scratch(len);
                let spreading = Spreading::Repeated { operand, period, slot, place, len };
                self.schedule.spreads.push(spreading);
                self.slot(Slot::Set(operand as u16))
            }
            Reach::Run(run) if run >= SHORT_RUN => {
                let row = self.scratch(WIDTH);
                self.schedule.spreads.push(Spreading::Run { operand, run, row });
                self.schedule.cuts.push(run);
                self.slot(Slot::Scratch(row))
            }
            Reach::Run(run) => {
                // Whole vectors are written, so the last may reach past the block.
                let place = self.scratch(BLOCK + WIDTH);
                self.schedule.spreads.push(Spreading::Runs { operand, run, place });
                self.slot(Slot::Scratch(place))
            }
        }
    }

    fn instruction(&self, cut: &Cut, slots: [Option<u16>; MAX_SOURCES], dst: u16) -> Instruction {
        let is_array = |node: &Option<usize>| node.is_some_and(|node| !self.graph.same[node]);
        let arrays = cut.sources.iter().enumerate().filter(|(_, node)| is_array(node));
        let arrays = arrays.fold(0, |bits, (i, _)| bits | 1 << i);
        let sources = slots.map(|slot| slot.unwrap_or(dst));
        Instruction { code: cut.code, arrays, dst, sources }
    }

    /// Whether a row holds another number in another block.
    fn varies(&self, node: usize) -> bool {
        match self.graph.nodes[node] {
            Node::Operand(operand) => self.reaches[operand].is_long_run(),
            _ => self.row_varies[node],
        }
    }

    fn result_slot(&self, result: usize) -> u16 {
        let slot = Slot::Result(result as u16);
        let idx = self.schedule.slots.iter().position(|other| *other == slot);
        idx.expect("results have slots from the start") as u16
    }

    fn block(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            let place = self.scratch(BLOCK);
            self.slot(Slot::Scratch(place))
        })
    }

    fn release(&mut self, node: usize) {
        let is_block = !self.graph.is_leaf(node) && !self.graph.same[node];
        if is_block && let Some(slot) = self.slot_of[node].take() {
            self.free.push(slot);
        }
    }

    fn slot(&mut self, slot: Slot) -> u16 {
        self.schedule.slots.push(slot);
        u16::try_from(self.schedule.slots.len() - 1).expect("a fused expression is small")
    }

    fn scratch(&mut self, len: usize) -> usize {
        let place = self.schedule.scratch;
        self.schedule.scratch += len.next_multiple_of(WIDTH);
        place
    }
}

fn copy(from: u16, is_array: bool, dst: u16) -> Instruction {
    let mut sources = [dst; MAX_SOURCES];
    sources[0] = from;
    Instruction { code: Code::CopyOf, arrays: u8::from(is_array), dst, sources }
}
