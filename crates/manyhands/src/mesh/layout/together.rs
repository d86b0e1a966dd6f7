//! Actions that several workers do together: totals, sums over parts, scattered sums, gathered shards.

use std::collections::HashMap;
use std::ops::Range;

use manyhands_device::BufferGroup;
use manyhands_program::mesh::{Into, Place, SCATTERED, shard_ranges};
use manyhands_program::{GrainAction, TensorType, join_order, tree_schedule};

use super::{Gather, Instruction, Resources, Tree, Walk, label};
use crate::mesh::error::MeshError;
use crate::mesh::exchange::{Exchange, Goal, Places, Segment, Swap, packed_bytes};
use crate::mesh::memory::{Cell, SumTypes, cells_of_slot};
use crate::mesh::scatter::{Scatter, ShardAction, ShardOf, shard_bytes};

impl Walk<'_> {
    /// This worker's place among members.
    fn me(&self, among: &[usize]) -> Result<usize, MeshError> {
        match among.iter().position(|&member| member == self.program.worker) {
            Some(me) => Ok(me),
            None => self.cannot("the worker is not among the members"),
        }
    }

    pub(super) fn all_reduce(
        &mut self,
        values: &[String],
        grain: Option<usize>,
        among: &[usize],
    ) -> Result<(), MeshError> {
        let me = self.me(among)?;
        if among.len() == 1 {
            return Ok(());
        }
        let (mut places, mut whole) = (Places::new(), Vec::new());
        for (tensor, name) in values.iter().enumerate() {
            let cell = self.cell_at(&Place::Value(name.clone()), grain)?;
            let Some(place) = cell.group else {
                return self.cannot(format!("`{name}` has truth values, which have no sum"));
            };
            places.push(place);
            whole.push(Segment { tensor, bytes: 0..cell.ty.n_bytes(), dtype: cell.ty.dtype });
        }
        let label = label("all_reduce", &values.join(" "), grain);
        let what = format!("{} for the sum of all parts", values.join(", "));
        if let [first, second] = among {
            self.resources.memory.needs_scratch(packed_bytes(&whole));
            let (other, other_is_first) = if me == 0 { (*second, false) } else { (*first, true) };
            let swap = Swap { label, what, other, other_is_first, places, values: whole };
            self.push(Instruction::Swap(swap));
            return Ok(());
        }
        let n = among.len();
        let owned: Vec<Vec<Segment>> = (0..n).map(|owner| equal_share(&whole, owner, n)).collect();
        self.exchange(Exchange {
            label,
            what,
            members: among.to_vec(),
            me,
            n_sets: vec![1; n],
            own: vec![places.clone()],
            owned,
            joins: (1..n).map(|from| (0, from)).collect(),
            result: 0,
            goal: Goal::Whole(places),
        });
        Ok(())
    }

    fn exchange(&mut self, exchange: Exchange) {
        self.resources.memory.needs_scratch(exchange.scratch_bytes());
        self.push(Instruction::Exchange(exchange));
    }

    pub(super) fn total(
        &mut self,
        piece: usize,
        only: Option<&[String]>,
        among: &[usize],
        brings: &[Vec<Range<usize>>],
        into: Into,
    ) -> Result<(), MeshError> {
        let me = self.me(among)?;
        let sums = self.sums(piece);
        if sums.is_empty() {
            return Ok(());
        }
        let mut sets: Vec<(Range<usize>, usize)> =
            brings.iter().flatten().cloned().enumerate().map(|(idx, one)| (one, idx)).collect();
        sets.sort_by_key(|(grains, _)| grains.start);
        let subtrees: Vec<Range<usize>> = sets.iter().map(|(grains, _)| grains.clone()).collect();
        let Some(order) = join_order(0..self.program.n_grains, &subtrees) else {
            return self.cannot("the sums that members bring are not those of all grains");
        };
        if among.len() == 1 && into == Into::Whole {
            for addition in order {
                self.merge(piece, sets[addition.into].1, sets[addition.from].1)?;
            }
            let totals = self.slot_cells(piece, sets[0].1)?;
            for ((name, _), cell) in sums.iter().zip(totals) {
                self.put(name, None, cell);
            }
            return Ok(());
        }
        let joins = order.iter().map(|one| (sets[one.into].1, sets[one.from].1)).collect();
        self.total_among((piece, only), (among, me), brings, into, joins, sets[0].1)
    }

    fn total_among(
        &mut self,
        (piece, only): (usize, Option<&[String]>),
        (among, me): (&[usize], usize),
        brings: &[Vec<Range<usize>>],
        into: Into,
        joins: Vec<(usize, usize)>,
        result: usize,
    ) -> Result<(), MeshError> {
        let all = self.sums(piece);
        let is_meant = |name: &String| only.is_none_or(|only| only.contains(name));
        let meant: Vec<usize> = (0..all.len()).filter(|idx| is_meant(&all[*idx].0)).collect();
        let sums: SumTypes = meant.iter().map(|idx| all[*idx].clone()).collect();
        if sums.is_empty() {
            return Ok(());
        }
        let of_slot = |cells: Vec<Cell>| -> Vec<Cell> {
            meant.iter().map(|idx| cells[*idx].clone()).collect()
        };
        let mut own = Vec::new();
        for slot in 0..brings[me].len() {
            own.push(places_of(&of_slot(self.slot_cells(piece, slot)?)));
        }
        let n = among.len();
        let (owned, goal) = match into {
            Into::Shard => (shards_of(&sums, n), Goal::Shard(self.shard_cells(&sums, me, n)?)),
            Into::Whole => {
                // A member without grains has no sums of its own, but the totals all the same.
                let totals = of_slot(self.slot_cells(piece, 0)?);
                let places = places_of(&totals);
                for ((name, _), cell) in sums.iter().zip(totals) {
                    self.put(name, None, cell);
                }
                let is_all = sums.len() == all.len();
                let shares = if is_all { shares_of_slot(&sums, n) } else { shares_of(&sums, n) };
                (shares, Goal::Whole(places))
            }
        };
        let n_sets: Vec<usize> = brings.iter().map(Vec::len).collect();
        let name = &self.program.pieces[piece].name;
        self.exchange(Exchange {
            label: label("total", &sums[0].0, None),
            what: format!("sums over grains of {name}"),
            members: among.to_vec(),
            me,
            n_sets,
            own,
            owned,
            joins,
            result,
            goal,
        });
        Ok(())
    }

    /// Values for this member's shards of the totals.
    fn shard_cells(
        &mut self,
        sums: &SumTypes,
        me: usize,
        n: usize,
    ) -> Result<Vec<Cell>, MeshError> {
        shard_types(sums, me, n).iter().map(|(name, ty)| self.give(name, None, ty)).collect()
    }

    pub(super) fn scatter(
        &mut self,
        piece: usize,
        among: &[usize],
        grains: &[Option<usize>],
    ) -> Result<(), MeshError> {
        let me = self.me(among)?;
        let sums = self.scattered(piece);
        if sums.is_empty() {
            return Ok(());
        }
        let tree = self.tree(piece);
        for (member, grain) in grains.iter().enumerate() {
            if let Some(grain) = grain {
                self.trees[tree].came.insert(*grain, member);
            }
        }
        let grain_label = |grain: usize| label("scatter", &sums[0].0, Some(grain));
        let n = among.len();
        let owned = shards_of(&sums, n);
        let n_bytes = shard_bytes(&owned[me]);
        self.resources.memory.needs_scratch(n_bytes);
        self.put_root(tree, &sums, me, n)?;
        let own = grains.get(me).copied().flatten();
        let own_cells = match own {
            Some(grain) => self.scattered_cells(&sums, grain)?,
            None => Vec::new(),
        };
        let mut actions = Vec::new();
        while let Some(&action) = self.trees[tree].schedule.get(self.trees[tree].n_done) {
            actions.push(match action {
                GrainAction::Merge { into, from } => {
                    let into = self.slot_of_tree(tree, into, n_bytes)?;
                    let from = self.slot_of_tree(tree, from, n_bytes)?;
                    self.trees[tree].slots.retain(|_, cell| cell.buffer != from.buffer);
                    self.resources.memory.give_back(from.clone());
                    ShardAction::Merge { into, from }
                }
                GrainAction::Write { grain, slot } | GrainAction::Accumulate { grain, slot } => {
                    let Some(&member) = self.trees[tree].came.get(&grain) else { break };
                    let into = self.slot_of_tree(tree, slot, n_bytes)?;
                    let from = match self.trees[tree].kept.remove(&grain) {
                        Some(cell) => {
                            self.resources.memory.give_back(cell.clone());
                            ShardOf::Kept(cell)
                        }
                        None if member == me => ShardOf::Own,
                        None => ShardOf::Member { member, label: grain_label(grain) },
                    };
                    let adds = matches!(action, GrainAction::Accumulate { .. });
                    ShardAction::Take { from, into, adds }
                }
            });
            self.trees[tree].n_done += 1;
        }
        let is_own =
            |action: &ShardAction| matches!(action, ShardAction::Take { from: ShardOf::Own, .. });
        let kept = match own.filter(|_| !actions.iter().any(is_own)) {
            Some(grain) => Some(self.keep_shard(tree, grain, n_bytes)?),
            None => None,
        };
        let is_done = self.trees[tree].n_done == self.trees[tree].schedule.len();
        if is_done && !actions.is_empty() {
            self.trees[tree].slots.clear();
            let types = shard_types(&sums, me, n);
            let totals = self.shard_slot(&types)?;
            for ((name, _), cell) in types.iter().zip(cells_of_slot(&totals, &types)) {
                self.put(name, None, cell);
            }
        }
        let places = places_of(&own_cells);
        own_cells.into_iter().for_each(|cell| self.resources.memory.give_back(cell));
        let what = format!("sums of a grain of {}", self.program.pieces[piece].name);
        self.push(Instruction::Scatter(Scatter {
            what,
            members: among.to_vec(),
            me,
            own: own.map(|grain| (grain_label(grain), places)),
            kept,
            owned,
            actions,
        }));
        Ok(())
    }

    /// Where the own sums of a grain lie that are scattered. They are not used again.
    fn scattered_cells(&mut self, sums: &SumTypes, grain: usize) -> Result<Vec<Cell>, MeshError> {
        let mut cells = Vec::new();
        for (name, _) in sums {
            let name = format!("{SCATTERED}{name}");
            cells.push(self.cell_at(&Place::Value(name.clone()), Some(grain))?);
            self.live.remove(&(name, Some(grain)));
        }
        Ok(cells)
    }

    /// Has the first level of a tree, where the totals are in the end, lie in a slot: the update takes them from there.
    fn put_root(
        &mut self,
        tree: usize,
        sums: &SumTypes,
        me: usize,
        n: usize,
    ) -> Result<(), MeshError> {
        if self.trees[tree].n_done > 0 || !self.trees[tree].slots.is_empty() {
            return Ok(());
        }
        let types = shard_types(sums, me, n);
        let slot = self.shard_slot(&types)?;
        if let Some(cell) = Cell::of_slot(&slot, &types) {
            self.trees[tree].slots.insert(0, cell);
        }
        Ok(())
    }

    /// Memory for shards of the totals of a piece.
    fn shard_slot(&mut self, types: &SumTypes) -> Result<BufferGroup, MeshError> {
        let Resources { memory, device, .. } = &mut *self.resources;
        let slot = memory.slot(device.as_mut(), types, 0);
        self.on_device(slot)
    }

    /// The cell of a level of a tree, a new one where it has none.
    fn slot_of_tree(
        &mut self,
        tree: usize,
        slot: usize,
        n_bytes: usize,
    ) -> Result<Cell, MeshError> {
        if let Some(cell) = self.trees[tree].slots.get(&slot) {
            return Ok(cell.clone());
        }
        let cell = self.shard_cell(n_bytes)?;
        self.trees[tree].slots.insert(slot, cell.clone());
        Ok(cell)
    }

    /// A cell for the own shard of a grain whose turn has not come.
    fn keep_shard(&mut self, tree: usize, grain: usize, n_bytes: usize) -> Result<Cell, MeshError> {
        let cell = self.shard_cell(n_bytes)?;
        self.trees[tree].kept.insert(grain, cell.clone());
        Ok(cell)
    }

    fn shard_cell(&mut self, n_bytes: usize) -> Result<Cell, MeshError> {
        let Resources { memory, device, .. } = &mut *self.resources;
        let cell = memory.shard(device.as_mut(), n_bytes);
        self.on_device(cell)
    }

    /// How far the scatters of a piece are: an index.
    fn tree(&mut self, piece: usize) -> usize {
        if let Some(idx) = self.trees.iter().position(|tree| tree.piece == piece) {
            return idx;
        }
        let schedule = tree_schedule(self.program.n_grains);
        self.trees.push(Tree {
            piece,
            schedule,
            n_done: 0,
            came: HashMap::new(),
            slots: HashMap::new(),
            kept: HashMap::new(),
        });
        self.trees.len() - 1
    }

    pub(super) fn gather(
        &mut self,
        shard: &Place,
        into: &Place,
        among: &[usize],
    ) -> Result<(), MeshError> {
        let me = self.me(among)?;
        let own = self.cell_at(shard, None)?;
        let whole = self.new_cell_at(into, None)?;
        let (Some(from), Some(goal)) = (own.group, whole.group) else {
            return self.cannot(format!("{shard} has truth values, which have no shards"));
        };
        self.push(Instruction::Gather(Gather {
            label: label("offer", &shard.to_string(), None),
            what: format!("the shard of {shard}"),
            shard: from,
            n_own: own.ty.n_bytes(),
            into: goal,
            n_bytes: whole.ty.n_bytes(),
            members: among.to_vec(),
            me,
        }));
        Ok(())
    }
}

fn places_of(cells: &[Cell]) -> Places {
    // Sums have no truth values, so all of them are in groups.
    cells.iter().filter_map(|cell| cell.group).collect()
}

/// What a member has of every sum where each has a shard.
fn shard_types(sums: &SumTypes, member: usize, n: usize) -> SumTypes {
    let shard = |(name, ty): &(String, TensorType)| {
        let range = shard_ranges(ty.shape.n_elements(), n)[member].clone();
        (name.clone(), TensorType::new(ty.dtype, vec![range.len()]))
    };
    sums.iter().map(shard).collect()
}

/// By member: its shard of every sum.
fn shards_of(sums: &SumTypes, n: usize) -> Vec<Vec<Segment>> {
    let shard = |tensor: usize, ty: &TensorType, member: usize| {
        let (size, range) =
            (ty.dtype.size(), shard_ranges(ty.shape.n_elements(), n)[member].clone());
        Segment { tensor, bytes: range.start * size..range.end * size, dtype: ty.dtype }
    };
    let of_member = |member: usize| {
        let all = sums.iter().enumerate();
        all.map(|(tensor, (_, ty))| shard(tensor, ty, member)).collect()
    };
    (0..n).map(of_member).collect()
}

/// By member: an equal share of a slot. Sums of one type are shared out as one run of bytes: what lies between them is zeros, which may be added.
fn shares_of_slot(sums: &SumTypes, n: usize) -> Vec<Vec<Segment>> {
    let types: Vec<TensorType> = sums.iter().map(|(_, ty)| ty.clone()).collect();
    let dtype = types[0].dtype;
    if types.iter().all(|ty| ty.dtype == dtype) {
        let (_, n_bytes) = manyhands_device::group_offsets(&types);
        let whole = [Segment { tensor: 0, bytes: 0..n_bytes, dtype }];
        return (0..n).map(|owner| equal_share(&whole, owner, n)).collect();
    }
    shares_of(sums, n)
}

/// By member: an equal share of every sum.
fn shares_of(sums: &SumTypes, n: usize) -> Vec<Vec<Segment>> {
    let whole: Vec<Segment> = sums
        .iter()
        .enumerate()
        .map(|(tensor, (_, ty))| Segment { tensor, bytes: 0..ty.n_bytes(), dtype: ty.dtype })
        .collect();
    (0..n).map(|owner| equal_share(&whole, owner, n)).collect()
}

/// One of `n` equal shares of whole tensors.
fn equal_share(whole: &[Segment], owner: usize, n: usize) -> Vec<Segment> {
    let share = |segment: &Segment| {
        let size = segment.dtype.size();
        let edge = |idx: usize| segment.bytes.len() / size * idx / n * size;
        Segment { bytes: edge(owner)..edge(owner + 1), ..segment.clone() }
    };
    whole.iter().map(share).filter(|segment| !segment.bytes.is_empty()).collect()
}
