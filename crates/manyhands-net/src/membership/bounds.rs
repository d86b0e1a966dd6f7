//! The bounds of what coordinator, workers and drivers say to each other: whoever knows the secret may still be broken.

use super::identity::{Incarnation, JobId, MemberId, ViewId};
use super::message::{
    FromCoordinator, Go, GrainCounts, Grains, Join, MAX_ADDRESSES, MAX_COUNT, MAX_GRAINS,
    MAX_SERVERS, MAX_TEXT, Order, Reach, Ready, Seat, Submit, ToCoordinator,
};
use super::status::{JobStanding, MeshStanding};

impl ToCoordinator {
    /// Whether texts and lists are within their bounds and numbers are numbers; else what is not.
    pub fn check(&self) -> Result<(), String> {
        match self {
            ToCoordinator::Join(join) => join.check(),
            ToCoordinator::Submit(submit) => submit.check(),
            ToCoordinator::Ready(ready) => ready.check(),
            ToCoordinator::Heartbeat(heartbeat) => {
                count("its steps", heartbeat.steps.unwrap_or(0))?;
                heartbeat.view.map_or(Ok(()), |view| view.check())?;
                seconds(heartbeat.seconds_per_grain)?;
                seconds(Some(heartbeat.seconds_waiting))?;
                seconds(heartbeat.held_up.map(|(_, seconds)| seconds))
            }
            ToCoordinator::DriverHeartbeat(heartbeat) => {
                heartbeat.view.map_or(Ok(()), |view| view.check())?;
                heartbeat.standing.as_ref().map_or(Ok(()), |standing| standing.check())?;
                count("its steps", heartbeat.saved.max(heartbeat.inputs_sent))
            }
            ToCoordinator::Stalled(stalled) => {
                stalled.view.check()?;
                count("its steps", stalled.steps.unwrap_or(0))?;
                seconds(Some(stalled.seconds))?;
                bounded("whom it waits for", stalled.waiting_for.len(), MAX_GRAINS as usize)
            }
            ToCoordinator::Drain { name } => text("the worker's name", name),
            ToCoordinator::Failed { reason, .. } => text("the reason", reason),
            _ => Ok(()),
        }
    }
}

impl FromCoordinator {
    /// Whether lists are within their bounds and numbers are numbers; else what is not. A follower passes over nothing: such a coordinator is left.
    pub fn check(&self) -> Result<(), String> {
        self.incarnation.check()?;
        match &self.order {
            Order::Go(go) => go.check(),
            Order::Prepare { view, job, .. } => view.check().and(job.check()),
            Order::Accepted { job } | Order::Stop { job, .. } => job.check(),
            Order::Welcome { id } => id.check(),
            _ => Ok(()),
        }
    }
}

impl Go {
    pub(super) fn check(&self) -> Result<(), String> {
        self.view.check()?;
        self.job.check()?;
        self.grains.check()?;
        self.driver.check()?;
        count("the steps of the view", self.steps)?;
        seconds(self.step_seconds)?;
        bounded("the members", self.members.len(), MAX_GRAINS as usize)?;
        bounded("those who copy", self.copiers.len(), self.members.len())?;
        self.members.iter().try_for_each(Seat::check)
    }
}

impl Seat {
    fn check(&self) -> Result<(), String> {
        self.id.check()?;
        seconds(self.seconds_per_grain)?;
        bounded("a member's addresses", self.addresses.len(), MAX_ADDRESSES)?;
        in_order(&self.done).and(in_order(&self.to_do))
    }
}

impl Incarnation {
    pub(super) fn check(&self) -> Result<(), String> {
        count("a coordinator's life", self.epoch)
    }
}

impl ViewId {
    pub(super) fn check(&self) -> Result<(), String> {
        self.incarnation.check()?;
        count("the number of a view", self.number)
    }
}

impl JobId {
    pub(super) fn check(&self) -> Result<(), String> {
        self.incarnation.check()?;
        count("the number of a job", self.number)
    }
}

impl MemberId {
    pub(super) fn check(&self) -> Result<(), String> {
        // Half of them can still be given out.
        bounded("the number of a member", self.0 as usize, (u32::MAX / 2) as usize)
    }
}

impl GrainCounts {
    fn check(&self) -> Result<(), String> {
        let GrainCounts { full, last, steps_per_epoch } = *self;
        if full == 0 || last == 0 || steps_per_epoch == 0 {
            return Err("a step must have a grain and an epoch a step".to_string());
        }
        bounded("the grains of a step", full.max(last) as usize, MAX_GRAINS as usize)
    }
}

impl Reach {
    fn check(&self) -> Result<(), String> {
        text("the driver's host", &self.host)?;
        bounded("the driver's addresses", self.addresses.len(), MAX_ADDRESSES)?;
        self.addresses.iter().try_for_each(|address| text("an address", address))
    }
}

impl Join {
    pub(super) fn check(&self) -> Result<(), String> {
        self.follows.map_or(Ok(()), |(_, life)| life.check())?;
        self.view.map_or(Ok(()), |view| view.check())?;
        text("the worker's name", &self.name)?;
        text("the host", &self.host)?;
        text("the kernel set", &self.kernel_set)?;
        bounded("the addresses", self.addresses.len(), MAX_ADDRESSES)?;
        self.addresses.iter().try_for_each(|address| text("an address", address))
    }
}

impl Submit {
    pub(super) fn check(&self) -> Result<(), String> {
        self.follows.map_or(Ok(()), |(_, life)| life.check())?;
        text("the job's name", &self.name)?;
        text("the kernel set", &self.kernel_set)?;
        self.driver.check()?;
        self.grains.check()
    }
}

impl JobStanding {
    fn check(&self) -> Result<(), String> {
        count("its steps", self.steps)?;
        text("the consistency", self.consistency.as_deref().unwrap_or_default())?;
        if let Some(MeshStanding { formed, saved_in }) = &self.mesh {
            text("the mesh", formed.as_deref().unwrap_or_default())?;
            saved_in.map_or(Ok(()), |view| view.check())?;
        }
        bounded("the servers", self.servers.len(), MAX_SERVERS)?;
        bounded("the workers", self.workers.len(), MAX_GRAINS as usize)?;
        self.servers.iter().try_for_each(|server| {
            text("a server's name", &server.name)?;
            text("a server's address", &server.address)
        })?;
        self.workers.iter().try_for_each(|worker| {
            text("a worker's name", &worker.name)?;
            count("a worker's step", worker.step)
        })
    }
}

impl Ready {
    fn check(&self) -> Result<(), String> {
        self.view.check()?;
        count("its steps", self.steps.unwrap_or(0))?;
        seconds(self.seconds_per_grain)?;
        seconds(self.step_seconds)?;
        in_order(&self.done)
    }
}

fn in_order(grains: &[Grains]) -> Result<(), String> {
    let mut end = 0;
    for grains in grains {
        if grains.start < end || grains.is_empty() || grains.end > MAX_GRAINS {
            return Err("the grains are not in order".to_string());
        }
        end = grains.end;
    }
    Ok(())
}

pub(super) fn count(what: &str, n: u64) -> Result<(), String> {
    if n > MAX_COUNT { Err(format!("{what}: {n} cannot be")) } else { Ok(()) }
}

fn text(what: &str, text: &str) -> Result<(), String> {
    bounded(what, text.len(), MAX_TEXT)
}

fn bounded(what: &str, n: usize, most: usize) -> Result<(), String> {
    if n > most { Err(format!("{what}: {n} is more than {most}")) } else { Ok(()) }
}

fn seconds(seconds: Option<f64>) -> Result<(), String> {
    match seconds {
        Some(seconds) if !(0.0..=1e9).contains(&seconds) => {
            Err(format!("{seconds} is no number of seconds"))
        }
        _ => Ok(()),
    }
}
