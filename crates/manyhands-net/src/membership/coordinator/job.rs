//! The job and its driver.

use std::time::Duration;

use super::super::arrivals::Arrivals;
use super::super::identity::{Connection, JobId, ViewId};
use super::super::log::Entry;
use super::super::message::{DriverHeartbeat, Order, Submit, ToCoordinator};
use super::super::status::JobStanding;
use super::{Action, Coordinator, Phase, are_here, n_workers};

/// How long a driver may be away before its job ends: a cut network may heal, and nothing but time is lost meanwhile.
const DRIVER_RETURN: Duration = Duration::from_secs(30);

/// The job that runs.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) submit: Submit,
    /// None while the driver is away.
    pub(super) connection: Option<Connection>,
    arrivals: Arrivals,
    /// Since when it is away, or back.
    pub(super) away_since: Duration,
    pub(super) view: Option<ViewId>,
    pub(super) saved: u64,
    pub(super) inputs_sent: u64,
    /// What the driver told of it last.
    pub(super) standing: JobStanding,
}

impl Job {
    pub(super) fn new(now: Duration, id: JobId, submit: Submit, on: Option<Connection>) -> Job {
        let arrivals = Arrivals::new(now);
        Job {
            id,
            submit,
            connection: on,
            arrivals,
            away_since: now,
            view: None,
            saved: 0,
            inputs_sent: 0,
            standing: JobStanding::default(),
        }
    }

    pub(super) fn forgive(&mut self, gap: Duration) {
        self.arrivals.forgive(gap);
        self.away_since += gap;
    }
}

impl Coordinator {
    pub(super) fn submit(&mut self, from: Connection, submit: Submit) {
        let who = format!("the driver of {}", submit.name);
        if !self.may_follow(&who, from, submit.follows) {
            return;
        }
        let now = self.now;
        if let Some(job) = &mut self.job {
            if job.submit.instance == submit.instance {
                let id = job.id;
                let old = job.connection.replace(from);
                job.arrivals = Arrivals::new(now);
                job.away_since = now;
                job.view = None;
                if let Some(connection) = old.filter(|old| *old != from) {
                    self.actions.push(Action::Close { connection });
                }
                self.say(format!("{who} is back"));
                return self.send(from, Order::Accepted { job: id });
            }
            if job.connection.is_some() {
                let reason = format!("the cluster is busy with {}", job.submit.name);
                return self.refuse(from, reason);
            }
            self.end_job("its driver is gone, and another came".to_string());
        }
        if let Some(job) = submit.previous {
            let reason = format!("{who} was away for too long, its job has ended");
            self.say(reason.clone());
            return self.send(from, Order::Stop { job, reason });
        }
        self.accept(from, submit);
    }

    fn accept(&mut self, from: Connection, submit: Submit) {
        let fits = self.members.values().filter(|m| m.join.kernel_set == submit.kernel_set).count();
        if fits == 0 && !self.members.is_empty() {
            let reason = format!(
                "{} needs kernels {}, which nobody here has ({})",
                submit.name,
                submit.kernel_set,
                n_workers(self.members.len())
            );
            return self.refuse(from, reason);
        }
        let id = JobId { incarnation: self.incarnation, number: self.next_job };
        self.next_job += 1;
        self.actions.push(Action::Log(Entry::Accepted { job: id, submit: submit.clone() }));
        self.say(format!("{} is accepted; {} for it", submit.name, are_here(fits)));
        self.job = Some(Job::new(self.now, id, submit, Some(from)));
        self.send(from, Order::Accepted { job: id });
    }

    pub(super) fn driver_said(&mut self, from: Connection, message: ToCoordinator) {
        let now = self.now;
        let Some(job) = &mut self.job else { return };
        job.arrivals.heard(now);
        let id = job.id;
        match message {
            ToCoordinator::Submit(submit) => self.submit(from, submit),
            ToCoordinator::DriverHeartbeat(heartbeat) => self.driver_heartbeat(from, heartbeat),
            ToCoordinator::Ready(ready) => {
                if let Phase::Preparing(preparing) = &mut self.phase
                    && preparing.view == ready.view
                {
                    preparing.driver_ready = Some(ready);
                }
            }
            ToCoordinator::Finished { job } if job == id => {
                self.end_job("it is finished".to_string());
            }
            ToCoordinator::Failed { job, reason } if job == id => {
                let reason = format!("its driver ended before it was done: {reason}");
                self.last_failure = Some(reason.clone());
                self.end_job(reason);
            }
            ToCoordinator::StatusRequest => self.tell_status(from),
            _ => {}
        }
    }

    fn driver_heartbeat(&mut self, from: Connection, heartbeat: DriverHeartbeat) {
        let Some(job) = &mut self.job else { return };
        job.view = heartbeat.view;
        job.saved = job.saved.max(heartbeat.saved);
        job.inputs_sent = heartbeat.inputs_sent;
        if let Some(standing) = heartbeat.standing {
            job.standing = *standing;
        }
        let view = job.view;
        let is_formed = job.standing.mesh.as_ref().is_some_and(|mesh| mesh.formed.is_some());
        self.send(from, Order::Alive);
        let is_of_view =
            |phase: &Phase| matches!(phase, Phase::Running(one) if view == Some(one.go.view));
        if is_formed && is_of_view(&self.phase) {
            self.note_view_cost();
        }
        match &self.phase {
            Phase::Running(running) if view != Some(running.go.view) => {
                let go = running.go.clone();
                self.send(from, Order::Go(go));
            }
            Phase::Preparing(preparing) if preparing.driver_ready.is_none() => {
                if let Some(order) = self.prepare_order() {
                    self.send(from, order);
                }
            }
            _ => {}
        }
    }

    pub(super) fn driver_closed(&mut self, from: Connection) {
        if let Some(job) = &self.job
            && job.connection == Some(from)
        {
            let sentence = format!("the connection of the driver of {} closed", job.submit.name);
            self.driver_away(sentence);
        }
    }

    fn driver_away(&mut self, sentence: String) {
        let now = self.now;
        if let Some(job) = &mut self.job {
            job.away_since = now;
            if let Some(connection) = job.connection.take() {
                self.actions.push(Action::Close { connection });
            }
            // What it said last about a view that is being prepared may not be so when it is back.
            if let Phase::Preparing(preparing) = &mut self.phase {
                preparing.driver_ready = None;
            }
            self.say(format!("{sentence}; it has {} s to return", DRIVER_RETURN.as_secs()));
        }
    }

    pub(super) fn settle_driver(&mut self) {
        let now = self.now;
        let Some(job) = &self.job else { return };
        let name = job.submit.name.clone();
        if job.connection.is_some() && job.arrivals.is_silent(now) {
            let silence = job.arrivals.silent_for(now).as_secs_f64();
            self.driver_away(format!("the driver of {name} has been silent for {silence:.1} s"));
        } else if job.connection.is_none() && now > job.away_since + DRIVER_RETURN {
            self.end_job("its driver did not return".to_string());
        }
        let is_deaf = matches!(&self.phase, Phase::Preparing(preparing)
            if preparing.driver_ready.is_none() && now > preparing.since + 2 * DRIVER_RETURN);
        if is_deaf {
            self.end_job("its driver did not stop for a view".to_string());
        }
    }

    fn end_job(&mut self, reason: String) {
        let Some(job) = self.job.take() else { return };
        self.actions.push(Action::Log(Entry::Ended { job: job.id, reason: reason.clone() }));
        self.say(format!("{} ends: {reason}", job.submit.name));
        let to = self.members.values().filter_map(|member| member.connection);
        let to: Vec<Connection> = to.chain(job.connection).collect();
        for to in to {
            self.send(to, Order::Stop { job: job.id, reason: reason.clone() });
        }
        self.phase = Phase::Idle;
        self.wanted = None;
        self.retried = None;
        self.rate = None;
        // Its state was waited for, and its grains were to be done by others.
        self.spared.clear();
        self.spared_before.clear();
        self.excused.clear();
        self.slow_since.clear();
        self.members.values_mut().for_each(|member| {
            member.heartbeat.steps = None;
            member.heartbeat.view = None;
        });
    }
}
