//! The driver's side: submits the job, follows the views, and returns when the connection was lost.

use std::time::Duration;

use super::following::{Due, Following, Heard};
use super::identity::{JobId, ViewId};
use super::message::{
    DriverHeartbeat, FromCoordinator, Go, MAX_TEXT, Order, Ready, Submit, ToCoordinator,
};
use super::status::JobStanding;

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A connection to the coordinator is there.
    Connected,
    /// It could not be made, or is gone.
    Closed,
    /// The coordinator said something.
    Received(Box<FromCoordinator>),
    /// A state was fetched in a view that goes and saved here, with so many steps behind it. A view goes from its [`Action::Start`] to the
    /// next [`Action::Pause`]: a state that arrives later must not replace the one that the driver has told of, which members may be about
    /// to copy.
    Saved {
        /// How many.
        steps: u64,
    },
    /// All inputs of the steps before this one were sent.
    InputsSent {
        /// Which.
        steps: u64,
    },
    /// How the job stands beyond what workers know: told with every heartbeat from now on.
    Stands(Box<JobStanding>),
    /// The job is done.
    Finished,
    /// The driver ends before the job is done.
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
    standing: Option<Box<JobStanding>>,
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
            standing: None,
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
        // As for workers.
        if matches!(event, Event::Connected | Event::Closed | Event::Received(_) | Event::Tick) {
            self.following.pass_time(now);
        }
        match event {
            Event::Connected => self.connected(now, &mut actions),
            Event::Closed => self.following.closed(now),
            Event::Received(message) => self.receive(now, *message, &mut actions),
            Event::Saved { steps } => self.saved = self.saved.max(steps),
            Event::InputsSent { steps } => self.inputs_sent = steps,
            Event::Stands(standing) => self.standing = Some(standing),
            Event::Finished => self.end_with(Ok(()), &mut actions),
            Event::Failed { reason } => self.end_with(Err(shortened(reason)), &mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    fn connected(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !self.following.connected(now) {
            return actions.push(Action::Disconnect);
        }
        self.submit.follows = self.following.follows;
        self.submit.previous = self.job;
        send(actions, ToCoordinator::Submit(self.submit.clone()));
    }

    fn receive(&mut self, now: Duration, message: FromCoordinator, actions: &mut Vec<Action>) {
        let order = match self.following.hear(now, message) {
            Heard::Order(order) => order,
            Heard::Nothing => return,
            Heard::Refused(reason) => {
                actions.push(Action::Say(reason));
                return actions.push(Action::Disconnect);
            }
        };
        match order {
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
            standing: self.standing.clone(),
        };
        send(actions, ToCoordinator::DriverHeartbeat(heartbeat));
        self.say_last_word(actions);
    }

    fn end_with(&mut self, word: Result<(), String>, actions: &mut Vec<Action>) {
        self.last_word = Some(word);
        if self.following.is_accepted() {
            self.say_last_word(actions);
        }
    }

    fn say_last_word(&self, actions: &mut Vec<Action>) {
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

/// As much of a reason as a message may carry.
fn shortened(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(MAX_TEXT));
    reason
}

fn send(actions: &mut Vec<Action>, message: ToCoordinator) {
    actions.push(Action::Send(Box::new(message)));
}

#[cfg(test)]
mod tests {
    use super::super::identity::{ClusterId, Incarnation, Instance};
    use super::super::message::{GrainCounts, Reach};
    use super::*;

    fn said(actions: Vec<Action>) -> Vec<ToCoordinator> {
        let sent = |action| match action {
            Action::Send(message) => Some(*message),
            _ => None,
        };
        actions.into_iter().filter_map(sent).collect()
    }

    #[test]
    fn why_it_ends_is_said_at_once_and_no_longer_than_a_message_may_be() {
        let submit = Submit {
            name: "job".to_string(),
            instance: Instance(1),
            grains: GrainCounts { full: 1, last: 1, steps_per_epoch: 1 },
            kernel_set: "k".to_string(),
            driver: Reach::default(),
            follows: None,
            previous: None,
        };
        let now = Duration::ZERO;
        let incarnation = Incarnation { epoch: 1, nonce: 1 };
        let job = JobId { incarnation, number: 1 };
        let mut driver = Driver::new(now, submit, 0);
        driver.handle(now, Event::Tick);
        driver.handle(now, Event::Connected);
        let order = Order::Accepted { job };
        let message = FromCoordinator { cluster: ClusterId(1), incarnation, order };
        driver.handle(now, Event::Received(Box::new(message)));
        let reason = "ä".repeat(MAX_TEXT);
        let said = said(driver.handle(now, Event::Failed { reason }));
        let [failed @ ToCoordinator::Failed { reason, .. }] = &said[..] else { panic!("{said:?}") };
        assert_eq!(failed.check(), Ok(()));
        assert_eq!(reason.len(), MAX_TEXT);
    }
}
