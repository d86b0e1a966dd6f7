//! Who holds the newest state, and how long such a member is waited for.
//!
//! Dropping a member must not be what loses the state while that member may come back. So one who alone has the newest state is given
//! far more time than others, as long as its connection has not been closed from its side: that is the end of its process, unless it
//! said that it comes back.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::identity::MemberId;
use super::members::Member;
use super::{Coordinator, Phase};

impl Coordinator {
    /// How many steps the state of a member is known to have behind it.
    fn known_steps(&self, id: MemberId) -> Option<u64> {
        let heartbeat = &self.members.get(&id)?.heartbeat;
        match &self.phase {
            Phase::Preparing(preparing) if preparing.ready.contains_key(&id) => {
                preparing.ready[&id].steps
            }
            Phase::Running(running) if self.has_state_of_view(id) => {
                heartbeat.steps.max(Some(running.go.steps))
            }
            _ => heartbeat.steps,
        }
    }

    /// Whether a member of the view that runs has the view's state, rather than an older one or none.
    fn has_state_of_view(&self, id: MemberId) -> bool {
        let (Phase::Running(running), Some(member)) = (&self.phase, self.members.get(&id)) else {
            return false;
        };
        let heartbeat = &member.heartbeat;
        running.go.rank(id).is_some()
            && match heartbeat.view == Some(running.go.view) {
                // One that is back in its view after a restart has said nothing of its state yet.
                true => heartbeat.steps.is_some() || heartbeat.number == 0,
                false => !running.go.copiers.contains(&id),
            }
    }

    /// Whether a member can be relied on: it is connected and not silent.
    pub(super) fn is_well(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|member| {
            member.connection.is_some() && !member.arrivals.is_silent(self.now)
        })
    }

    /// Whether nobody else that is well has the state of this member: without it the job goes back. Who stands one step behind has it
    /// as well, and members of one view stand no further apart, whatever their last heartbeats say (M3).
    pub(super) fn holds_alone(&self, id: MemberId) -> bool {
        let (Some(job), Some(steps)) = (&self.job, self.known_steps(id)) else { return false };
        let may_be_further = self.may_be_further(id);
        let has_as_much = |other: &MemberId| {
            let is_near = self.goes_on(id) && self.goes_on(*other);
            let theirs = self.known_steps(*other);
            let reaches = !may_be_further && theirs.is_some_and(|theirs| theirs + 1 >= steps);
            *other != id && self.is_well(*other) && (is_near || reaches)
        };
        (steps > job.saved || may_be_further) && !self.members.keys().any(has_as_much)
    }

    /// Whether a member does steps, or did before the view that is prepared: all that do stand close together.
    fn goes_on(&self, id: MemberId) -> bool {
        match &self.phase {
            Phase::Idle => false,
            Phase::Preparing(preparing) => preparing.went_on.contains(&id),
            Phase::Running(_) => self.has_state_of_view(id),
        }
    }

    /// Whether a member may have gone on since it last said how far it is.
    fn may_be_further(&self, id: MemberId) -> bool {
        self.goes_on(id)
            && match &self.phase {
                Phase::Idle => false,
                Phase::Preparing(preparing) => !preparing.ready.contains_key(&id),
                Phase::Running(running) => !running.go.is_holding(),
            }
    }

    /// Those that do steps, for when a view is prepared.
    pub(super) fn going_on(&self) -> BTreeSet<MemberId> {
        self.in_view().into_iter().filter(|id| self.goes_on(*id)).collect()
    }

    /// Whether a member that should be dropped is waited for still, since it alone has the newest state. `waited` is how long it has
    /// been so far, and `reason` what it should be dropped for. People are told once.
    pub(super) fn is_spared(&mut self, id: MemberId, waited: Duration, reason: &str) -> bool {
        let steps = self.known_steps(id).unwrap_or(0);
        if !self.holds_alone(id) {
            return false;
        }
        let Some(member) = self.members.get(&id) else { return false };
        let limit = member.arrivals.long_patience();
        if waited > limit {
            return false;
        }
        if self.spared.insert(id) && !self.spared_before.contains(&id) {
            self.say(format!(
                "{reason}; it alone has the state after step {steps} and is waited for up to {:.1} s",
                limit.as_secs_f64()
            ));
        }
        true
    }

    /// After everything was looked at: those who are waited for no longer, and are here, have caught up.
    pub(super) fn note_spared(&mut self) {
        let spared = std::mem::take(&mut self.spared);
        let before = std::mem::replace(&mut self.spared_before, spared);
        for id in before {
            if !self.spared_before.contains(&id) && self.members.contains_key(&id) {
                self.say(format!("{} is waited for no longer", self.name(id)));
            }
        }
    }

    /// The member that is waited for, as people should read it.
    pub(super) fn waited_for(&self) -> Option<String> {
        let id = *self.spared_before.first()?;
        let silence = self.members.get(&id)?.arrivals.silent_for(self.now).as_secs_f64();
        let (name, steps) = (self.name(id), self.known_steps(id).unwrap_or(0));
        Some(format!(
            "waits for {name}, which alone has the state after step {steps} and was last heard {silence:.1} s ago"
        ))
    }

    /// Whether none of those that are back after a restart is known to have the newest state: then one that is not may have it.
    pub(super) fn state_may_be_away(&self) -> bool {
        let Some(job) = &self.job else { return false };
        let has_it = |(id, member): (&MemberId, &Member)| {
            let has_told = member.connection.is_some() && member.heartbeat.steps.is_some();
            has_told && (self.has_state_of_view(*id) || member.heartbeat.steps > Some(job.saved))
        };
        !self.members.iter().any(has_it)
    }
}
