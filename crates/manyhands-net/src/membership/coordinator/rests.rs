//! Members that hold the others up at every step: one that gets the processor only now and then is slow not only with its grains,
//! which can be given to others, but in every exchange. The others are faster without it, so it rests, and is tried again later.
//!
//! This is about speed alone: nothing is lost by it, and who is wrongly sent to rest is back after a while.

use std::time::Duration;

use super::super::identity::MemberId;
use super::left_out::LeftOut;
use super::{Coordinator, Phase, Running};

/// How long a view is watched before somebody is sent to rest.
const WINDOW: Duration = Duration::from_secs(2);
/// After so long the watching begins anew, since speeds change.
const RENEW: Duration = Duration::from_secs(10);
/// And for how many steps: more than two rounds of sharing out anew, which is the milder remedy.
const LEAST_STEPS: u64 = 80;
/// It must itself wait for another for at most this part of what they wait for it: where two wait for each other alike, it is the way
/// between them that is slow.
const ONE_WAITS: f64 = 0.5;
/// The others must be so many times as fast without it.
const GAIN: f64 = 1.5;
/// The first rest; doubled each time.
const REST: Duration = Duration::from_secs(10);
/// The longest.
const MAX_REST: Duration = Duration::from_secs(300);

/// Nobody rests yet.
pub(super) fn rests() -> LeftOut {
    LeftOut::new(REST, MAX_REST)
}

/// What a member's heartbeats said first and last while it was watched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    first: Moment,
    last: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Duration,
    steps: u64,
    /// Whom it waited for alone for longest, and for how long.
    held_up: Option<(MemberId, f64)>,
}

impl Pace {
    fn window(&self) -> Duration {
        self.last.at.saturating_sub(self.first.at)
    }

    /// The share of its time for which it waited for this member alone.
    fn held_up_by(&self, id: MemberId) -> f64 {
        let seconds = |moment: &Moment| match moment.held_up {
            Some((by, seconds)) if by == id => Some(seconds),
            None => Some(0.0),
            Some(_) => None,
        };
        let waited =
            seconds(&self.last).zip(seconds(&self.first)).map_or(0.0, |(to, from)| to - from);
        waited / self.window().as_secs_f64().max(1e-9)
    }

    /// The share of its time for which it waited for one other alone, whoever it was; no less than it was.
    fn held_up_most(&self) -> f64 {
        let Some((by, seconds)) = self.last.held_up else { return 0.0 };
        let before = self.first.held_up.filter(|(before, _)| *before == by);
        let waited = seconds - before.map_or(0.0, |(_, seconds)| seconds);
        waited / self.window().as_secs_f64().max(1e-9)
    }

    fn n_steps(&self) -> u64 {
        self.last.steps.saturating_sub(self.first.steps)
    }
}

impl Coordinator {
    /// Takes note of what a member's last heartbeat says of its pace.
    pub(super) fn note_pace(&mut self, id: MemberId) {
        let now = self.now;
        let (Phase::Running(running), Some(member)) = (&mut self.phase, self.members.get(&id))
        else {
            return;
        };
        let heartbeat = &member.heartbeat;
        // The first step of a view has its costs.
        let Some(steps) = heartbeat.steps.filter(|steps| *steps > running.go.steps) else { return };
        // Nor does it count what was waited before the first word of it.
        if heartbeat.view != Some(running.go.view) || heartbeat.held_up.is_none() {
            return;
        }
        let here = Moment { at: now, steps, held_up: heartbeat.held_up };
        let pace = running.paces.entry(id).or_insert(Pace { first: here, last: here });
        if pace.window() > RENEW {
            *pace = Pace { first: pace.last, last: pace.last };
        }
        pace.last = here;
    }

    /// Sends a member to rest where the others are faster without it.
    pub(super) fn settle_rests(&mut self) {
        let Some((id, gain)) = self.holds_up() else { return };
        // A rest begins with a view, and without the driver there is none.
        let has_driver = self.job.as_ref().is_some_and(|job| job.connection.is_some());
        if self.holds_alone(id) || self.wanted.is_some() || !has_driver {
            return;
        }
        let Some(member) = self.members.get_mut(&id) else { return };
        member.was_sent_to_rest = true;
        let length = self.rests.begin(self.now, &member.join.name);
        self.want(format!(
            "{} holds the others up, who are {gain:.1} times as fast without it: it rests for {} s",
            self.name(id),
            length.as_secs()
        ));
    }

    /// Who holds all others up, and how much faster they would be.
    fn holds_up(&self) -> Option<(MemberId, f64)> {
        let Phase::Running(running) = &self.phase else { return None };
        let paces = &running.paces;
        let is_watched = |pace: &Pace| pace.window() >= WINDOW && pace.n_steps() >= LEAST_STEPS;
        if paces.len() < 2 || paces.len() < running.go.members.len() {
            return None;
        }
        if !paces.values().all(is_watched) {
            return None;
        }
        let named = paces.values().filter_map(|pace| Some(pace.last.held_up?.0));
        let gains = named.filter_map(|id| Some((id, self.gain_without(running, id)?)));
        gains.filter(|(_, gain)| *gain >= GAIN).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// How many times as fast the others are without a member.
    fn gain_without(&self, running: &Running, one: MemberId) -> Option<f64> {
        let pace = running.paces.get(&one)?;
        let others = running.paces.iter().filter(|(id, _)| **id != one);
        let share = others.map(|(_, pace)| pace.held_up_by(one)).fold(1.0, f64::min);
        if pace.held_up_most() > ONE_WAITS * share {
            return None;
        }
        let seconds = pace.window().as_secs_f64() / pace.n_steps() as f64;
        // They save what they wait for it, and do its grains.
        let without = self.seconds_without(running, one)?.max(seconds * (1.0 - share));
        Some(seconds / without.max(1e-9))
    }

    /// What a step's grains would take the others, going by what one takes them.
    fn seconds_without(&self, running: &Running, one: MemberId) -> Option<f64> {
        let others = running.paces.keys().filter(|id| **id != one);
        let rate = others
            .map(|id| {
                let seconds = self.members.get(id)?.heartbeat.seconds_per_grain?;
                (seconds > 0.0).then_some(1.0 / seconds)
            })
            .sum::<Option<f64>>()?;
        let n_grains = f64::from(running.go.grains.most());
        (rate > 0.0).then(|| n_grains / rate)
    }
}
