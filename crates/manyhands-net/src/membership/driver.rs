//! The driver's side: submits the job, follows the views, and returns when the connection was lost.

use std::time::Duration;

use super::following::{Connecting, Due, Following, Verdict};
use super::identity::{JobId, ViewId};
use super::message::{DriverHeartbeat, FromCoordinator, Go, Order, Ready, Submit, ToCoordinator};

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A connection to the coordinator is there.
    Connected,
    /// It could not be made, or is gone.
    Closed,
    /// The coordinator said something.
    Received(Box<FromCoordinator>),
    /// A state was fetched in a view that goes (see [`Driver::is_going`]) and saved here, with so many steps behind it.
    Saved {
        /// How many.
        steps: u64,
    },
    /// All inputs of the steps before this one were sent.
    InputsSent {
        /// Which.
        steps: u64,
    },
    /// The job is done.
    Finished,
    /// The job cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
    /// Time went by; sent as to workers.
    Tick,
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Connect to the coordinator.
    Connect,
    /// Close the connection to the coordinator.
    Disconnect,
    /// Send to the coordinator.
    Send(Box<ToCoordinator>),
    /// Members stop: send no inputs until the next view.
    Pause {
        /// The view that is to come.
        view: ViewId,
    },
    /// A view begins. If it holds (see [`Go::is_holding`]), fetch the state.
    Start {
        /// The view.
        go: Box<Go>,
    },
    /// The job has ended.
    End {
        /// Why.
        reason: String,
    },
    /// Tell people.
    Say(String),
}

/// A driver's side of membership. See the module.
#[derive(Debug)]
pub struct Driver {
    submit: Submit,
    following: Following,
    job: Option<JobId>,
    view: Option<ViewId>,
    /// Whether the view goes, rather than being prepared.
    is_going: bool,
    saved: u64,
    inputs_sent: u64,
    /// What is said at the end, again after each reconnection, until the coordinator says stop.
    last_word: Option<Result<(), String>>,
    is_over: bool,
}

impl Driver {
    /// One that is not connected yet, and holds a state with `saved` steps behind it.
    pub fn new(now: Duration, submit: Submit, saved: u64) -> Driver {
        Driver {
            submit,
            following: Following::new(now),
            job: None,
            view: None,
            is_going: false,
            saved,
            inputs_sent: saved,
            last_word: None,
            is_over: false,
        }
    }

    /// Takes what happened and returns what to do.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.is_over {
            return actions;
        }
        match event {
            Event::Connected => self.connected(now, &mut actions),
            Event::Closed => {
                if !matches!(self.following.state, Connecting::Apart { .. }) {
                    self.following.apart(now);
                }
            }
            Event::Received(message) => self.receive(now, *message, &mut actions),
            Event::Saved { steps } => self.saved = self.saved.max(steps),
            Event::InputsSent { steps } => self.inputs_sent = steps,
            Event::Finished => self.last_word = Some(Ok(())),
            Event::Failed { reason } => self.last_word = Some(Err(reason)),
            Event::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    /// Whether this view goes, so that inputs may be sent and a state fetched in it may be kept. A state that arrives later, or
    /// while a view is prepared, must not replace the one that the driver has told of: members may be about to copy that.
    pub fn is_going(&self, view: ViewId) -> bool {
        self.is_going && self.view == Some(view)
    }

    fn connected(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !matches!(self.following.state, Connecting::Trying { .. }) {
            return actions.push(Action::Disconnect);
        }
        self.following.connected(now);
        self.submit.follows = self.following.follows;
        self.submit.previous = self.job;
        send(actions, ToCoordinator::Submit(self.submit.clone()));
    }

    fn receive(&mut self, now: Duration, message: FromCoordinator, actions: &mut Vec<Action>) {
        if !matches!(self.following.state, Connecting::Connected { .. }) {
            return;
        }
        if let Verdict::Refuse(reason) = self.following.heard(now, &message) {
            actions.push(Action::Say(reason));
            self.following.apart(now);
            return actions.push(Action::Disconnect);
        }
        match message.order {
            Order::Accepted { job } => {
                self.following.accepted();
                self.job = Some(job);
            }
            Order::Refused { reason } => self.end(format!("refused: {reason}"), actions),
            Order::Stop { job, reason } if self.job == Some(job) => self.end(reason, actions),
            _ if !self.following.is_accepted() => {}
            Order::Prepare { view, .. } => self.prepare(view, actions),
            Order::Go(go) if self.view <= Some(go.view) => {
                let is_new = self.view < Some(go.view) || !self.is_going;
                if is_new && self.job == Some(go.job) {
                    self.view = Some(go.view);
                    self.is_going = true;
                    actions.push(Action::Start { go: Box::new(go) });
                }
            }
            _ => {}
        }
    }

    fn prepare(&mut self, view: ViewId, actions: &mut Vec<Action>) {
        let is_again = self.view == Some(view) && !self.is_going;
        if self.view >= Some(view) && !is_again {
            return;
        }
        if !is_again {
            self.view = Some(view);
            self.is_going = false;
            actions.push(Action::Pause { view });
        }
        let ready = Ready {
            view,
            steps: Some(self.saved),
            done: Vec::new(),
            seconds_per_grain: None,
            step_seconds: None,
        };
        send(actions, ToCoordinator::Ready(ready));
    }

    fn end(&mut self, reason: String, actions: &mut Vec<Action>) {
        self.is_over = true;
        actions.push(Action::Disconnect);
        actions.push(Action::End { reason });
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.following.tick(now) {
            Due::Nothing => {}
            Due::Connect => actions.push(Action::Connect),
            Due::Disconnect(reason) => {
                actions.push(Action::Say(reason));
                actions.push(Action::Disconnect);
            }
            Due::Heartbeat => self.beat(actions),
        }
    }

    fn beat(&self, actions: &mut Vec<Action>) {
        let heartbeat = DriverHeartbeat {
            view: self.view.filter(|_| self.is_going),
            saved: self.saved,
            inputs_sent: self.inputs_sent,
        };
        send(actions, ToCoordinator::DriverHeartbeat(heartbeat));
        let Some(job) = self.job else { return };
        match &self.last_word {
            Some(Ok(())) => send(actions, ToCoordinator::Finished { job }),
            Some(Err(reason)) => {
                send(actions, ToCoordinator::Failed { job, reason: reason.clone() });
            }
            None => {}
        }
    }
}

fn send(actions: &mut Vec<Action>, message: ToCoordinator) {
    actions.push(Action::Send(Box::new(message)));
}
