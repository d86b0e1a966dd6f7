//! Carries out what the state machines ask for, as event loops do, and runs the data planes.

use manyhands_net::membership::coordinator::{Action as CoordinatorAction, Event as ServerEvent};
use manyhands_net::membership::driver::{Action as DriverAction, Event as DriverEvent};
use manyhands_net::membership::identity::MemberId;
use manyhands_net::membership::log::{self, Entry};
use manyhands_net::membership::message::{Go, Order, ToCoordinator};
use manyhands_net::membership::remembered::Remembered;
use manyhands_net::membership::worker::{Action, Event};

use crate::setup::{KINDS, Planted};
use crate::world::{Data, Happening, MS, SECOND, Time, WorkerProcess, World};

impl World {
    pub(crate) fn tell_server(&mut self, which: usize, event: ServerEvent) {
        let now = self.time();
        if self.trace.is_some()
            && let ServerEvent::Received { from, message } = &event
            && !matches!(message, ToCoordinator::Heartbeat(_) | ToCoordinator::DriverHeartbeat(_))
        {
            let text = format!("coordinator {which} <- {}: {message:?}", from.0);
            self.note(|| text);
        }
        let Some(process) = &mut self.coordinators[which] else { return };
        let actions = process.side.handle(now, event);
        self.carry_out(which, actions);
    }

    pub(crate) fn carry_out(&mut self, which: usize, mut actions: Vec<CoordinatorAction>) {
        if self.planted == Some(Planted::LateLog) {
            actions.sort_by_key(|action| matches!(action, CoordinatorAction::Log(_)));
        }
        for action in actions {
            if self.dies_now(which, &action) {
                return;
            }
            match action {
                CoordinatorAction::Log(entry) => self.write_log(which, &entry),
                CoordinatorAction::Send { to, message } => {
                    match &message.order {
                        Order::Go(go) => self.check_go(go),
                        Order::Welcome { id } => self.check_welcome(which, to.0, *id),
                        _ => {}
                    }
                    self.send_from_coordinator(to.0, message);
                }
                CoordinatorAction::Close { connection } => self.close_by_server(connection.0),
                CoordinatorAction::Say(decision) => {
                    for (kind, count) in KINDS.iter().zip(&mut self.decisions) {
                        *count += u64::from(decision.sentence.contains(kind));
                    }
                    self.note(|| format!("coordinator {which}: {}", decision.sentence));
                }
                CoordinatorAction::StepDown { .. } => {
                    let node = self.server_node(which);
                    self.kill(node);
                    if which == 0 {
                        self.after(500 * MS, Happening::Restart { node });
                    }
                    return;
                }
            }
        }
    }

    /// Counts down to a planned death, which may tear the entry that is being written.
    fn dies_now(&mut self, which: usize, action: &CoordinatorAction) -> bool {
        let Some(process) = &mut self.coordinators[which] else { return true };
        match &mut process.dies_after {
            Some(0) => {
                if let CoordinatorAction::Log(entry) = action {
                    let line = log::encode(entry).unwrap();
                    let cut = self.chance.between(0, line.len() as u64 + 1) as usize;
                    self.logs[which].extend_from_slice(&line.as_bytes()[..cut]);
                }
                self.kill(self.server_node(which));
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    fn write_log(&mut self, which: usize, entry: &Entry) {
        self.logs[which].extend_from_slice(log::encode(entry).unwrap().as_bytes());
        // Not by chance, so that schedules do not depend on it.
        if self.logs[which].len().is_multiple_of(8) {
            self.shorten_log(which);
        }
        if let Entry::Dropped { id, reason } = entry {
            self.n_dropped += 1;
            if !reason.contains(&format!("(member {id})")) {
                self.violate(format!("member {id} was dropped without being named: {reason}"));
            }
            if reason.contains("nothing passes")
                && !(reason.starts_with("worker w")
                    && reason.contains(&format!("{id}) is dropped:")))
            {
                self.violate(format!("another than the culprit comes first: {reason}"));
            }
            let is_patience =
                ["has been silent", "did not stop", "did not take up", "nothing passes"];
            if is_patience.iter().any(|words| reason.contains(words)) {
                self.check_dropped(which, *id);
            }
        }
    }

    /// Puts the shortest log that comes to the same in a log's place, as an event loop does when it has grown.
    pub(crate) fn shorten_log(&mut self, which: usize) {
        let entries = log::decode(&self.logs[which]).unwrap().entries;
        let shortest = Remembered::read(&entries).unwrap().entries();
        let lines = shortest.iter().map(|entry| log::encode(entry).unwrap());
        self.logs[which] = lines.collect::<String>().into_bytes();
    }

    /// A member that lives and was heard of not long ago is not dropped if nobody else has its state.
    fn check_dropped(&mut self, which: usize, id: MemberId) {
        let Some(&(node, life)) = self.ids.get(&(which, id)) else { return };
        let recent = |at: Time| self.now < at + 9 * SECOND;
        let Some(process) = self.workers.get(node).and_then(Option::as_ref) else { return };
        let Some(state) = process.plane.state else { return };
        let has_as_much = |other: &WorkerProcess| {
            let theirs = other.plane.state.map(|theirs| theirs.steps + 1);
            other.job == process.job && theirs >= Some(state.steps)
        };
        let others = self.workers.iter().enumerate().filter(|(other, _)| *other != node);
        let is_alone = !others.filter_map(|(_, other)| other.as_ref()).any(has_as_much);
        let job = self.driver.as_ref().and_then(|driver| driver.job);
        if self.lives[node] == life
            && self.told_state[node] == Some(life)
            && recent(self.heard_at[node])
            && is_alone
            && process.job == job
            && state.steps > self.saved.steps
            && !self.holder_died_at.is_some_and(recent)
        {
            let steps = state.steps;
            self.violate(format!("w{node} is dropped, which alone has the state after {steps}"));
        }
    }

    pub(crate) fn tell_worker(&mut self, node: usize, event: Event) {
        let now = self.time();
        let Some(process) = &mut self.workers[node] else { return };
        for action in process.side.handle(now, event) {
            self.worker_acts(node, action);
        }
    }

    fn worker_acts(&mut self, node: usize, action: Action) {
        let Some(process) = &mut self.workers[node] else { return };
        match action {
            Action::Connect => self.begin_connect(node),
            Action::Disconnect => {
                if let Some(connection) = process.connection.take() {
                    self.close_by_client(connection);
                }
            }
            Action::Send(message) => {
                if self.planted == Some(Planted::NoStalls)
                    && matches!(*message, ToCoordinator::Stalled(_))
                {
                    return;
                }
                let connection = process.connection;
                self.send_to_coordinator(connection, (*message).clone());
                if let (ToCoordinator::Ready(_), Some(process)) =
                    (&*message, &mut self.workers[node])
                {
                    process.last_ready = Some(*message);
                }
            }
            Action::Abort => {
                process.plane.copying = None;
                if self.planted != Some(Planted::NoAbort) {
                    process.plane.run = None;
                    process.plane.epoch += 1;
                }
            }
            Action::Forget => {
                process.plane.state = None;
                process.plane.done.clear();
            }
            Action::Copy { go, .. } => {
                let (view, source, steps) = (go.view, go.source, go.steps);
                process.plane.copying = Some((view, source, steps));
                self.note(|| format!("w{node} copies {steps} from {source:?}"));
                self.ask_for_state(node, view, source);
            }
            Action::Start { go, rank } => self.start_run(node, *go, rank),
            Action::Say(sentence) => self.note(|| format!("w{node}: {sentence}")),
            Action::End => {
                self.kill(node);
                let down = self.chance.between(MS, 2 * SECOND);
                self.after(down, Happening::Restart { node });
            }
        }
    }

    pub(crate) fn tell_driver(&mut self, event: DriverEvent) {
        let now = self.time();
        let Some(process) = &mut self.driver else { return };
        for action in process.side.handle(now, event) {
            self.driver_acts(action);
        }
    }

    fn driver_acts(&mut self, action: DriverAction) {
        let node = self.driver_node();
        let Some(process) = &mut self.driver else { return };
        match action {
            DriverAction::Connect => self.begin_connect(node),
            DriverAction::Disconnect => {
                if let Some(connection) = process.connection.take() {
                    self.close_by_client(connection);
                }
            }
            DriverAction::Send(message) => {
                let connection = process.connection;
                self.send_to_coordinator(connection, *message);
            }
            DriverAction::Pause { .. } => process.is_paused = true,
            DriverAction::Start { go } => {
                process.job = Some(go.job);
                process.is_paused = false;
                process.go = Some(*go);
                process.fetch_at = 0;
            }
            DriverAction::End { reason } => {
                process.is_over = true;
                self.note(|| format!("the driver's job ended: {reason}"));
                if self.saved.steps >= self.n_steps {
                    self.finished = true;
                } else {
                    // As a user would: resume from what was saved.
                    self.kill(node);
                    self.after(300 * MS, Happening::Restart { node });
                }
            }
            DriverAction::Say(sentence) => self.note(|| format!("driver: {sentence}")),
        }
    }

    /// The driver fetches the state now and then, at the end, and from those that leave all together.
    pub(crate) fn driver_works(&mut self) {
        let (saved, n_steps, now) = (self.saved.steps, self.n_steps, self.now);
        let from = self.driver_node();
        let Some(driver) = &mut self.driver else { return };
        if saved >= n_steps {
            return self.tell_driver(DriverEvent::Finished);
        }
        let Some(go) = &driver.go else { return };
        let is_due = driver.reached >= saved + 7 || driver.reached >= n_steps || go.is_holding();
        if is_due && now >= driver.fetch_at {
            driver.fetch_at = now + SECOND;
            let view = go.view;
            let names: Vec<String> = go.members.iter().map(|seat| seat.name.clone()).collect();
            for name in names {
                self.send_data(from, name[1..].parse().unwrap(), Data::Fetch { view });
            }
        }
    }

    /// A view is one thing, whoever hears of it; and nothing that a member has is thrown away.
    fn check_go(&mut self, go: &Go) {
        match self.views.get(&go.view) {
            Some(known) if known == go => return,
            Some(_) => return self.violate(format!("two views have the number {}", go.view)),
            None => {}
        }
        self.views.insert(go.view, go.clone());
        let mut counts = vec![0; self.grains.of_step(go.steps) as usize];
        for seat in &go.members {
            for grain in seat.done.iter().chain(&seat.to_do).flat_map(|g| g.start..g.end) {
                counts[grain as usize] += 1;
            }
        }
        if counts.iter().any(|count| *count != 1) && !go.is_holding() {
            self.violate(format!("view {} assigns grains {counts:?} times", go.view));
        }
        let mut lost = None;
        for seat in &go.members {
            let node: usize = seat.name[1..].parse().unwrap();
            let Some(process) = &self.workers[node] else { continue };
            // A process that was started anew meanwhile has another seat to come.
            if process.side.view() == Some(go.view)
                && process.job == Some(go.job)
                && process.plane.state.is_some_and(|state| state.steps > go.steps)
            {
                lost = Some(format!("view {} goes back to {}", go.view, go.steps));
            }
        }
        if let Some(lost) = lost {
            self.violate(lost);
        }
    }
}
