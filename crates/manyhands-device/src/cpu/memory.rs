//! The memory plan: where every value of a program lives, decided before it runs.
//!
//! Values that are the same bytes under another shape share a *root*. A root lives in an argument's buffer (inputs,
//! parameters, and results that can be written straight into an output or over a parameter), in the constants, or in the
//! arena, where roots that are never alive at the same time share memory.

use std::collections::HashMap;

use manyhands_program::{Addend, Binary, DType, Node, Op, Program, Spread, ValueId};

use super::lower::{reads_rows, writes_rows};

/// Arena offsets are multiples of this, a cache line.
const ALIGNMENT: usize = 64;

/// Where bytes are: an entry of the run's table of base pointers, and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Index into the table: 0 the arena, 1 the constants, then inputs, parameters and outputs in order.
    pub(super) base: u32,
    /// Bytes from there.
    pub(super) offset: usize,
}

/// The arena's entry in the table of base pointers.
pub(super) const ARENA: u32 = 0;
/// The constants' entry.
pub(super) const CONSTANTS: u32 = 1;
/// The first argument's entry.
pub(super) const ARGUMENTS: u32 = 2;

/// A copy at the end of a run, of a result that could not be written to its destination directly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) from: Place,
    pub(super) to: Place,
    pub(super) n_bytes: usize,
}

/// Where everything lives.
#[derive(Debug)]
pub(super) struct Layout {
    places: Vec<Place>,
    workspaces: HashMap<usize, Place>,
    /// What is copied at the end, in order.
    pub(super) copies: Vec<Copy>,
    /// The bytes of all constants, in their order.
    pub(super) constants: Vec<u8>,
    /// The size of the arena.
    pub(super) arena_bytes: usize,
}

impl Layout {
    /// Where a value lives.
    pub(super) fn place(&self, value: ValueId) -> Place {
        self.places[value.idx()]
    }

    /// The working space of a node that asked for one.
    pub(super) fn workspace(&self, node_idx: usize) -> Option<Place> {
        self.workspaces.get(&node_idx).copied()
    }

    /// Plans a program. `workspace` says how many arena bytes a node needs for itself while it runs.
    pub(super) fn plan(program: &Program, workspace: impl Fn(usize) -> usize) -> Layout {
        let mut planner = Planner::new(program);
        planner.bind_results();
        planner.share_in_place();
        planner.finish(workspace)
    }
}

/// From one row to the next of a slice of the last axis that is never copied out, because all who read it can step over
/// what lies between: the queries, keys and values that one product made side by side.
pub(super) fn side_by_side_row(program: &Program, value: ValueId) -> Option<usize> {
    let node = program.definer(value);
    let Op::Slice { start, limit, stride } = &node.op else { return None };
    let whole = &program.ty(node.operands[0]).shape;
    let last = whole.rank().checked_sub(1)?;
    let only_last = whole.rank() == 3
        && stride.iter().all(|&s| s == 1)
        && (0..last).all(|a| start[a] == 0 && limit[a] == whole[a]);
    let kept = program.outputs().iter().map(|output| output.value);
    let kept = kept.chain(program.updates().iter().map(|update| update.value));
    let read_in_rows = |user: &Node| {
        let uses = user.operands.iter().enumerate().filter(|(_, operand)| **operand == value);
        uses.into_iter().all(|(idx, _)| reads_rows(program, user, idx))
    };
    let fits = only_last
        && kept.into_iter().all(|other| other != value)
        && program.nodes().iter().all(read_in_rows);
    fits.then(|| whole[last])
}

/// The concatenation along the last axis into which a result is written directly, and at which byte of each row: the
/// gradients of queries, keys and values that were slices of one value.
pub(super) fn side_by_side_target(program: &Program, value: ValueId) -> Option<(ValueId, usize)> {
    let mut users = program.nodes().iter().filter(|node| node.operands.contains(&value));
    let (Some(user), None) = (users.next(), users.next()) else { return None };
    let Op::Concatenate { axis: 2 } = user.op else { return None };
    let counts = |operand: &ValueId| user.operands.iter().filter(|o| *o == operand).count();
    let kept = |operand: &ValueId| {
        program.outputs().iter().any(|output| output.value == *operand)
            || program.updates().iter().any(|update| update.value == *operand)
    };
    let fits = user.operands.iter().all(|operand| {
        let uses = program.nodes().iter().filter(|node| node.operands.contains(operand)).count();
        writes_rows(program, *operand) && uses == 1 && counts(operand) == 1 && !kept(operand)
    });
    let before = user.operands.iter().take_while(|operand| **operand != value);
    let offset = before.map(|&operand| program.ty(operand).shape.last()).sum::<usize>();
    fits.then(|| (user.results[0], offset * program.ty(value).dtype.size()))
}

/// The elements of the operand with which a node's result is identical, as an offset in bytes: such nodes do no work.
pub(super) fn alias_offset(program: &Program, node_idx: usize) -> Option<usize> {
    let node = &program.nodes()[node_idx];
    match &node.op {
        Op::Reshape { .. } => Some(0),
        // Its operands were written where they belong; the first lies at the start.
        Op::Concatenate { .. } if side_by_side_target(program, node.operands[0]).is_some() => {
            Some(0)
        }
        Op::Slice { start, .. } if side_by_side_row(program, node.results[0]).is_some() => {
            let (first, ty) = (start[start.len() - 1], program.ty(node.operands[0]));
            Some(first * ty.dtype.size())
        }
        Op::Slice { start, limit, stride } => {
            let ty = program.ty(node.operands[0]);
            let cut = (0..start.len()).find(|&a| limit[a] - start[a] != ty.shape[a])?;
            let contiguous = stride.iter().all(|&s| s == 1)
                && ty.shape[..cut].iter().all(|&size| size == 1)
                && (cut + 1..start.len()).all(|a| limit[a] - start[a] == ty.shape[a]);
            let inner: usize = ty.shape[cut + 1..].iter().product();
            contiguous.then(|| start[cut] * inner * ty.dtype.size())
        }
        _ => None,
    }
}

/// The operands whose memory a node's results may take over, because each element is read before it is written.
fn in_place_operands(program: &Program, node_idx: usize) -> Vec<usize> {
    let node = &program.nodes()[node_idx];
    match &node.op {
        Op::Fused(expression) => {
            let spreads = expression.operands.iter().enumerate();
            spreads.filter(|(_, spread)| **spread == Spread::Full).map(|(idx, _)| idx).collect()
        }
        Op::Binary(Binary::Add) if program.ty(node.results[0]).dtype == DType::I32 => vec![0, 1],
        Op::PutRows => vec![0],
        Op::PutGrain { .. } => (2..node.operands.len()).collect(),
        // The fast kernels add in place; the plain evaluator of other types does not.
        _ if node.results.first().is_none_or(|&v| program.ty(v).dtype != DType::F32) => Vec::new(),
        Op::Dense { add: Some(Addend::Matrix), .. } => vec![2],
        Op::ScatterAdd { .. } => vec![0],
        _ => Vec::new(),
    }
}

#[derive(Clone, Copy, Debug)]
struct Root {
    n_bytes: usize,
    /// Where it lives, if not in the arena.
    fixed: Option<Place>,
    /// The node that makes it, and the last one that reads it.
    born: usize,
    dies: usize,
    /// The root whose arena memory it takes over, for results written in place.
    heir_of: Option<usize>,
}

struct Planner<'a> {
    program: &'a Program,
    roots: Vec<Root>,
    /// The root of each value, and the offset in it.
    of: Vec<(usize, usize)>,
    constants: Vec<u8>,
    copies: Vec<(ValueId, Place)>,
}

impl<'a> Planner<'a> {
    fn new(program: &'a Program) -> Planner<'a> {
        let mut planner = Planner {
            program,
            roots: Vec::new(),
            of: Vec::with_capacity(program.n_values()),
            constants: Vec::new(),
            copies: Vec::new(),
        };
        // The root of a value, or of the concatenation that it is written into.
        let mut joined: HashMap<ValueId, usize> = HashMap::new();
        let n_inputs = program.inputs().count() as u32;
        let (mut next_input, mut next_parameter) = (ARGUMENTS, ARGUMENTS + n_inputs);
        for (idx, node) in program.nodes().iter().enumerate() {
            for operand in &node.operands {
                let (root, _) = planner.of[operand.idx()];
                planner.roots[root].dies = idx;
            }
            if let Some(offset) = alias_offset(program, idx) {
                let (root, base) = planner.of[node.operands[0].idx()];
                planner.of.push((root, base + offset));
                continue;
            }
            let argument = |next: &mut u32| {
                *next += 1;
                Some(Place { base: *next - 1, offset: 0 })
            };
            let fixed = match &node.op {
                Op::Input { .. } => argument(&mut next_input),
                Op::Parameter { .. } => argument(&mut next_parameter),
                Op::Constant(tensor) => Some(planner.store_constant(tensor.bytes())),
                _ => None,
            };
            for &result in &node.results {
                let (whole, offset) = match node.op {
                    Op::AttentionGrad(_) => side_by_side_target(program, result),
                    _ => None,
                }
                .unwrap_or((result, 0));
                let root = *joined.entry(whole).or_insert_with(|| {
                    let n_bytes = program.ty(whole).n_bytes();
                    planner.roots.push(Root {
                        n_bytes,
                        fixed,
                        born: idx,
                        dies: idx,
                        heir_of: None,
                    });
                    planner.roots.len() - 1
                });
                planner.of.push((root, offset));
            }
        }
        planner
    }

    fn store_constant(&mut self, bytes: &[u8]) -> Place {
        let offset = self.constants.len().next_multiple_of(ALIGNMENT);
        self.constants.resize(offset, 0);
        self.constants.extend_from_slice(bytes);
        Place { base: CONSTANTS, offset }
    }

    /// Lets results be written where they end up: over a parameter whose old value nobody reads afterwards, or into an
    /// output's buffer. What cannot is copied at the end, outputs first, so that they see parameters before updates.
    fn bind_results(&mut self) {
        let n_inputs = self.program.inputs().count() as u32;
        let n_parameters = self.program.parameters().count() as u32;
        let first_output = ARGUMENTS + n_inputs + n_parameters;
        let mut updates = Vec::new();
        for update in self.program.updates() {
            let (target, _) = self.of[update.parameter.idx()];
            let place = self.roots[target].fixed.expect("a parameter has its own buffer");
            if self.may_overwrite(update.value, target) {
                let (root, _) = self.of[update.value.idx()];
                self.roots[root].fixed = Some(place);
            } else {
                updates.push((update.value, place));
            }
        }
        for (idx, output) in self.program.outputs().iter().enumerate() {
            let place = Place { base: first_output + idx as u32, offset: 0 };
            let (root, _) = self.of[output.value.idx()];
            if self.is_whole_temporary(output.value) {
                self.roots[root].fixed = Some(place);
            } else {
                self.keep_to_the_end(root);
                self.copies.push((output.value, place));
            }
        }
        for (value, place) in updates {
            let (root, _) = self.of[value.idx()];
            self.keep_to_the_end(root);
            self.copies.push((value, place));
        }
    }

    fn keep_to_the_end(&mut self, root: usize) {
        self.roots[root].dies = self.program.nodes().len();
    }

    fn is_whole_temporary(&self, value: ValueId) -> bool {
        let (root, offset) = self.of[value.idx()];
        let root = &self.roots[root];
        root.fixed.is_none() && offset == 0 && root.n_bytes == self.program.ty(value).n_bytes()
    }

    /// Whether `value` may be written over the parameter `target` as soon as it is made.
    fn may_overwrite(&self, value: ValueId, target: usize) -> bool {
        let (root, _) = self.of[value.idx()];
        let (born, last_read) = (self.roots[root].born, self.roots[target].dies);
        let is_output =
            |output: &manyhands_program::Output| self.of[output.value.idx()].0 == target;
        let copied = self.program.updates().iter().any(|u| self.of[u.value.idx()].0 == target);
        self.is_whole_temporary(value)
            && !self.program.outputs().iter().any(is_output)
            && !copied
            && (last_read < born || (last_read == born && self.takes_over(born, target)))
    }

    /// Whether a node reads `root` only through an operand that its results may overwrite.
    fn takes_over(&self, node_idx: usize, root: usize) -> bool {
        let operands = &self.program.nodes()[node_idx].operands;
        let reads: Vec<usize> =
            (0..operands.len()).filter(|&idx| self.of[operands[idx].idx()].0 == root).collect();
        let allowed = in_place_operands(self.program, node_idx);
        reads.len() == 1 && reads.iter().all(|idx| allowed.contains(idx))
    }

    /// Lets results in the arena take over the memory of an operand that dies there.
    fn share_in_place(&mut self) {
        for (node_idx, node) in self.program.nodes().iter().enumerate() {
            let mut free: Vec<usize> = in_place_operands(self.program, node_idx);
            for &result in &node.results {
                let (root, _) = self.of[result.idx()];
                if self.roots[root].fixed.is_some() || self.of[result.idx()].1 != 0 {
                    continue;
                }
                let donor = free.iter().position(|&idx| {
                    let (donor, _) = self.of[node.operands[idx].idx()];
                    let donor_root = &self.roots[donor];
                    donor_root.fixed.is_none()
                        && donor_root.dies == node_idx
                        && donor_root.n_bytes == self.roots[root].n_bytes
                        && self.takes_over(node_idx, donor)
                });
                if let Some(position) = donor {
                    let idx = free.swap_remove(position);
                    self.roots[root].heir_of = Some(self.of[node.operands[idx].idx()].0);
                }
            }
        }
    }

    fn finish(mut self, workspace: impl Fn(usize) -> usize) -> Layout {
        // The first of each line of heirs stands for all of them.
        let mut first: Vec<usize> = Vec::with_capacity(self.roots.len());
        for idx in 0..self.roots.len() {
            first.push(self.roots[idx].heir_of.map_or(idx, |donor| first[donor]));
            let dies = self.roots[idx].dies;
            let ancestor = &mut self.roots[first[idx]];
            ancestor.dies = ancestor.dies.max(dies);
        }
        let mut blocks = Vec::new();
        for (idx, root) in self.roots.iter().enumerate() {
            if root.fixed.is_none() && root.heir_of.is_none() {
                blocks.push(Block {
                    owner: idx,
                    n_bytes: root.n_bytes,
                    born: root.born,
                    dies: root.dies,
                });
            }
        }
        let n_roots = self.roots.len();
        for node_idx in 0..self.program.nodes().len() {
            let n_bytes = workspace(node_idx);
            if n_bytes > 0 {
                let owner = n_roots + node_idx;
                blocks.push(Block { owner, n_bytes, born: node_idx, dies: node_idx });
            }
        }
        // A copy from a buffer that another copy overwrites (parameters that change places) goes by way of the arena.
        let end = self.program.nodes().len();
        let targets: Vec<u32> = self.copies.iter().map(|(_, to)| to.base).collect();
        let staged = |value: ValueId| {
            let fixed = self.roots[self.of[value.idx()].0].fixed;
            fixed.is_some_and(|place| targets.contains(&place.base))
        };
        for (idx, &(value, _)) in self.copies.iter().enumerate().filter(|(_, c)| staged(c.0)) {
            let n_bytes = self.program.ty(value).n_bytes();
            blocks.push(Block { owner: n_roots + end + idx, n_bytes, born: end, dies: end });
        }
        let (offsets, arena_bytes) = pack(blocks);
        let place_of = |(root, offset): (usize, usize)| {
            let owner = first[root];
            let mut place = self.roots[root].fixed.unwrap_or_else(|| Place {
                base: ARENA,
                offset: offsets.get(&owner).copied().unwrap_or(0),
            });
            place.offset += offset;
            place
        };
        let places: Vec<Place> = self.of.iter().map(|&of| place_of(of)).collect();
        let workspaces = offsets
            .iter()
            .filter(|(owner, _)| (n_roots..n_roots + end).contains(*owner))
            .map(|(&owner, &offset)| (owner - n_roots, Place { base: ARENA, offset }))
            .collect();
        let mut copies = Vec::new();
        let mut last = Vec::new();
        for (idx, &(value, to)) in self.copies.iter().enumerate() {
            let n_bytes = self.program.ty(value).n_bytes();
            let mut from = places[value.idx()];
            if let Some(&offset) = offsets.get(&(n_roots + end + idx)) {
                let stage = Place { base: ARENA, offset };
                copies.push(Copy { from, to: stage, n_bytes });
                from = stage;
            }
            last.push(Copy { from, to, n_bytes });
        }
        copies.extend(last);
        Layout { places, workspaces, copies, constants: self.constants, arena_bytes }
    }
}

/// Arena memory that is needed from one node to another.
struct Block {
    owner: usize,
    n_bytes: usize,
    born: usize,
    dies: usize,
}

/// Places blocks so that those alive at the same time do not overlap: largest first, each at the lowest offset that fits.
fn pack(mut blocks: Vec<Block>) -> (HashMap<usize, usize>, usize) {
    blocks.sort_by_key(|block| (std::cmp::Reverse(block.n_bytes), block.born, block.owner));
    let mut placed: Vec<(usize, usize, usize, usize)> = Vec::with_capacity(blocks.len());
    let mut offsets = HashMap::with_capacity(blocks.len());
    let mut total = 0;
    for block in blocks {
        let size = block.n_bytes.next_multiple_of(ALIGNMENT);
        let mut offset = 0;
        // `placed` is sorted by offset, so one walk finds the first gap.
        for &(start, end, born, dies) in &placed {
            if born <= block.dies && block.born <= dies {
                if offset + size <= start {
                    break;
                }
                offset = offset.max(end);
            }
        }
        let at = placed.partition_point(|entry| entry.0 < offset);
        placed.insert(at, (offset, offset + size, block.born, block.dies));
        offsets.insert(block.owner, offset);
        total = total.max(offset + size);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use manyhands_program::{Builder, DType, Init};

    #[test]
    fn values_never_alive_together_share_memory() {
        let g = Builder::new("chain");
        let mut x = g.input("x", DType::F32, [16, 16]).unwrap();
        for _ in 0..10 {
            x = x.softmax(1).unwrap();
        }
        g.output("y", &x).unwrap();
        let layout = Layout::plan(&g.finish(), |_| 0);
        assert_eq!(layout.arena_bytes, 2 * 16 * 16 * 4, "two buffers serve a chain of any length");
    }

    #[test]
    fn an_update_that_others_read_past_is_copied_at_the_end() {
        let g = Builder::new("late");
        let w = g.weight("w", [4], Init::Constant(1.0)).unwrap();
        let next = w.softmax(0).unwrap();
        let after = (w.softmax(0).unwrap() + &next).unwrap();
        g.output("after", &after).unwrap();
        g.update(&w, &next).unwrap();
        let layout = Layout::plan(&g.finish(), |_| 0);
        assert_eq!(layout.copies.len(), 1);
    }

    #[test]
    fn blocks_alive_together_do_not_overlap() {
        let block = |owner, n_bytes, born, dies| Block { owner, n_bytes, born, dies };
        let blocks = vec![
            block(0, 100, 0, 3),
            block(1, 300, 1, 2),
            block(2, 100, 3, 5),
            block(3, 64, 2, 4),
            block(4, 1000, 4, 5),
        ];
        let spans: Vec<_> = blocks.iter().map(|b| (b.owner, b.n_bytes, b.born, b.dies)).collect();
        let (offsets, total) = pack(blocks);
        for a in &spans {
            assert!(offsets[&a.0] + a.1 <= total);
            for b in &spans {
                let together = a.0 != b.0 && a.2 <= b.3 && b.2 <= a.3;
                let apart =
                    offsets[&a.0] + a.1 <= offsets[&b.0] || offsets[&b.0] + b.1 <= offsets[&a.0];
                assert!(!together || apart, "{a:?} and {b:?}");
            }
        }
    }
}
