//! The layout of a step that several workers share: what one of them runs for its grains, and its update.

use std::ops::Range;

use manyhands_program::{Partials, Piece, join_order, joining, maximal_subtrees_of, pieces};

use super::announce::{Ending, LateMerge};
use super::plan::{Lanes, Part, Plan};
use super::resources::{Resources, SlotPurpose};
use crate::device::{BufferGroup, GroupId, Launch};
use crate::error::DeviceError;

/// The most assignments of a plan that stay laid out. Between failures one or two come again and again.
const MAX_ASSIGNMENTS: usize = 256;

/// The sum of a range of grains, and the slot where it lies.
type PlacedSum = (Range<usize>, GroupId);

/// What a plan has for steps that are shared.
pub(super) struct SharedStep {
    /// Where the sums over all grains are put before the update.
    pub(super) totals: BufferGroup,
    /// The update, if anything follows the sums.
    pub(super) update: Option<Launch>,
    /// What was laid out so far, the oldest first.
    assignments: Vec<Assignment>,
    /// Updates from sets of sums that were not added up before, by those sets; the oldest first.
    joined: Vec<(Vec<PlacedSum>, Option<Launch>)>,
}

/// The partial sums of a step that a worker holds: one for each maximal complete subtree, in grain order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Held {
    /// The grains of each.
    pub(super) grains: Vec<Range<usize>>,
    /// The slot of each.
    pub(super) groups: Vec<GroupId>,
    /// The slots of the step before, where other workers may still read them.
    pub(super) lent: Vec<GroupId>,
}

/// Grains that were asked for on top of what was held, laid out.
pub(super) struct Assignment {
    grains: Vec<Range<usize>>,
    before: Held,
    /// Launches that run side by side, round after round, into slots that hold nothing.
    pub(super) rounds: Vec<Vec<Launch>>,
    /// Then sums that are added to others, one after the other: each has all threads.
    pub(super) merges: Vec<Launch>,
    /// What is held afterwards.
    pub(super) after: Held,
    /// Where sums are when the last launch of the rounds makes them final, if that can be told while it runs.
    pub(super) ending: Option<Ending>,
}

impl Held {
    /// Holds nothing any more; what is lent stays lent.
    pub(super) fn clear(&mut self) {
        self.grains.clear();
        self.groups.clear();
    }

    /// Becomes the same as another, in the memory that it has.
    pub(super) fn copy_from(&mut self, other: &Held) {
        self.grains.clone_from(&other.grains);
        self.groups.clone_from(&other.groups);
        self.lent.clone_from(&other.lent);
    }

    /// Holds nothing any more, and others may read what was held. Those who read what was lent before have done so.
    pub(super) fn lend(&mut self) {
        std::mem::swap(&mut self.groups, &mut self.lent);
        self.clear();
    }

    fn push(&mut self, grains: Range<usize>, group: GroupId) {
        self.grains.push(grains);
        self.groups.push(group);
    }
}

impl Plan {
    /// Gets the plan ready for steps that are shared, once.
    pub(super) fn share(&mut self, resources: &mut Resources) -> Result<(), DeviceError> {
        if self.shared_step.is_some() {
            return Ok(());
        }
        let totals = resources.slot(SlotPurpose::Totals, &self.sum_types)?;
        let step = Part::new(resources, self.parts.step.clone())?;
        let update = self.update_launch(resources, &step, std::slice::from_ref(&totals));
        let (assignments, joined) = (Vec::new(), Vec::new());
        self.shared_step = Some(SharedStep { totals, update, assignments, joined });
        Ok(())
    }

    /// The update from these sets of sums, which cover the step's grains; none if nothing follows the sums. Allocates nothing where the same was asked before.
    pub(super) fn joined_update(
        &mut self,
        resources: &mut Resources,
        sets: &[(Range<usize>, GroupId)],
    ) -> Result<Option<&Launch>, DeviceError> {
        let missing = || DeviceError::OtherSums {
            found: sets.iter().map(|(grains, _)| grains.clone()).collect(),
            n_grains: self.n_grains(),
        };
        let shared = self.shared_step.as_ref().ok_or_else(missing)?;
        let known = shared.joined.iter().position(|(known, _)| known == sets);
        let made = match known {
            Some(_) => None,
            None => {
                let subtrees: Vec<Range<usize>> =
                    sets.iter().map(|(grains, _)| grains.clone()).collect();
                let partials = Partials::of_subtrees(0..self.n_grains(), &subtrees);
                let joining = joining(&self.parts.step, &partials.ok_or_else(missing)?)?;
                let step = Part::new(resources, joining)?;
                let slots = sets.iter().map(|(_, group)| resources.slot_of(*group));
                let slots = slots.collect::<Result<Vec<_>, _>>()?;
                Some(self.update_launch(resources, &step, &slots))
            }
        };
        let Some(shared) = &mut self.shared_step else { return Ok(None) };
        if let Some(made) = made {
            if shared.joined.len() == MAX_ASSIGNMENTS {
                shared.joined.remove(0);
            }
            shared.joined.push((sets.to_vec(), made));
        }
        let at = known.unwrap_or(shared.joined.len() - 1);
        Ok(shared.joined[at].1.as_ref())
    }

    /// Forgets updates from sets of sums that are among these.
    pub(super) fn forget_joined(&mut self, gone: &[GroupId]) {
        let Some(shared) = &mut self.shared_step else { return };
        shared.joined.retain(|(sets, _)| !sets.iter().any(|(_, group)| gone.contains(group)));
    }

    /// The layout of these grains on top of what is held; none if the plan shares no steps yet. Allocates nothing where the
    /// same was asked before.
    pub(super) fn assignment(
        &mut self,
        resources: &mut Resources,
        held: &Held,
        grains: &[Range<usize>],
    ) -> Result<Option<&Assignment>, DeviceError> {
        let is_known = |known: &Assignment| known.grains == grains && known.before == *held;
        let Some(shared) = &self.shared_step else { return Ok(None) };
        let known = shared.assignments.iter().position(is_known);
        let made = match known {
            Some(_) => None,
            None => Some(self.lay_out(resources, held, grains)?),
        };
        let Some(shared) = &mut self.shared_step else { return Ok(None) };
        if let Some(made) = made {
            if shared.assignments.len() == MAX_ASSIGNMENTS {
                shared.assignments.remove(0);
            }
            shared.assignments.push(made);
        }
        Ok(match known {
            Some(idx) => shared.assignments.get(idx),
            None => shared.assignments.last(),
        })
    }

    fn lay_out(
        &self,
        resources: &mut Resources,
        held: &Held,
        grains: &[Range<usize>],
    ) -> Result<Assignment, DeviceError> {
        let new = self.new_grains(held, grains)?;
        let n_lanes = resources.n_lanes.clamp(1, new.len().max(1));
        let lane_of = |grain: usize| {
            let place = new.partition_point(|&other| other < grain);
            place * n_lanes / new.len().max(1)
        };
        let mut lanes = Lanes::default();
        let mut joins = Vec::new();
        let mut after = Held { lent: held.lent.clone(), ..Held::default() };
        let mut n_tried = 0;
        let all: Vec<Range<usize>> = held.grains.iter().chain(grains).cloned().collect();
        for subtree in maximal_subtrees_of(&all, self.n_grains()) {
            let (mut ranges, mut own) = (Vec::new(), Vec::new());
            for piece in pieces(subtree.clone(), &held.grains, &lane_of) {
                match piece {
                    Piece::Held(idx) => {
                        ranges.push(held.grains[idx].clone());
                        own.push(resources.slot_of(held.groups[idx])?);
                    }
                    Piece::New(partial) => {
                        let slot = self.free_slot(resources, held, &mut n_tried)?;
                        self.sum_grains(resources, &partial, &slot, &mut lanes)?;
                        ranges.push(partial.grains);
                        own.push(slot);
                    }
                }
            }
            let additions = join_order(subtree.clone(), &ranges);
            let additions = additions.expect("the pieces of a subtree cover it");
            joins.extend(additions.iter().map(|addition| {
                let (into, from) = (own[addition.into].clone(), own[addition.from].clone());
                LateMerge { into, from }
            }));
            after.push(subtree, own[0].id);
        }
        // With one lane, what is merged after the last grain can as well wait until the grains are kept.
        let (last, mut late) = lanes.take_late_merges();
        late.extend(joins);
        let ending = match &last {
            Some(last) => {
                let sets = after.groups.iter().map(|group| resources.slot_of(*group));
                Ending::new(last, &late, sets.collect::<Result<Vec<_>, _>>()?.into_iter())
            }
            None => None,
        };
        let merges = late.iter().filter_map(|late| self.merge_launch(&late.into, &late.from));
        Ok(Assignment {
            grains: grains.to_vec(),
            before: held.clone(),
            rounds: lanes.rounds(),
            merges: merges.collect(),
            after,
            ending,
        })
    }

    /// The next slot that does not hold anything and is not lent; `n_tried` goes on from one call to the next.
    fn free_slot(
        &self,
        resources: &mut Resources,
        held: &Held,
        n_tried: &mut usize,
    ) -> Result<BufferGroup, DeviceError> {
        loop {
            let purpose = SlotPurpose::Partial { idx: *n_tried };
            let slot = resources.slot(purpose, &self.sum_types)?;
            *n_tried += 1;
            if !held.groups.contains(&slot.id) && !held.lent.contains(&slot.id) {
                return Ok(slot);
            }
        }
    }

    /// The grains that were asked for, in order; an error where one does not exist or is there already.
    fn new_grains(&self, held: &Held, grains: &[Range<usize>]) -> Result<Vec<usize>, DeviceError> {
        let n = self.n_grains();
        if let Some(range) = grains.iter().find(|range| !range.is_empty() && range.end > n) {
            return Err(DeviceError::NoSuchIndex { what: "grain", idx: range.end - 1, n });
        }
        let mut new: Vec<usize> = grains.iter().cloned().flatten().collect();
        new.sort_unstable();
        let twice = new.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let is_held = |grain: &&usize| held.grains.iter().any(|held| held.contains(grain));
        match twice.or_else(|| new.iter().find(is_held).copied()) {
            Some(grain) => Err(DeviceError::GrainTwice { grain }),
            None => Ok(new),
        }
    }
}
