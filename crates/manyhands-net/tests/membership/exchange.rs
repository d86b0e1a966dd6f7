//! Runs the data planes of workers and driver: grains, exchanges, inputs and copies of the state.

use manyhands_net::membership::driver::Event as DriverEvent;
use manyhands_net::membership::identity::{MemberId, ViewId};
use manyhands_net::membership::message::{Go, Grains, Peer};
use manyhands_net::membership::worker::Event;

use crate::plane::{Brought, Run, State};
use crate::setup::Planted;
use crate::world::{Data, Happening, MS, World};

impl World {
    pub(crate) fn ask_for_state(&mut self, node: usize, view: ViewId, source: Peer) {
        let to = match source {
            Peer::Driver => Some(self.driver_node()),
            Peer::Member(id) => self.node_of(view, id),
        };
        let Some(to) = to else { return };
        self.send_or_fail(node, to, view, Data::CopyState { view });
        self.tell_worker(node, Event::Waiting { view, waiting_for: vec![source] });
    }

    fn node_of(&self, view: ViewId, id: MemberId) -> Option<usize> {
        let go = self.views.get(&view)?;
        let seat = go.members.iter().find(|seat| seat.id == id)?;
        seat.name[1..].parse().ok()
    }

    /// Sends by the data plane; a process that is not there refuses the connection.
    fn send_or_fail(&mut self, from: usize, to: usize, view: ViewId, data: Data) {
        let is_there = match to < self.n_workers {
            true => self.workers[to].is_some(),
            false => self.driver.is_some(),
        };
        if is_there {
            self.send_data(from, to, data);
        } else {
            let (life, delay) = (self.lives[from], self.delay());
            self.after(delay, Happening::LinkFailed { node: from, life, view, peer: to });
        }
    }

    pub(crate) fn break_link(&mut self, node: usize, peer: usize) {
        if node == peer || peer > self.n_workers {
            return;
        }
        for (node, peer) in [(node, peer), (peer, node)] {
            if let Some(Some(process)) = self.workers.get(node)
                && let Some(run) = &process.plane.run
            {
                let (view, life) = (run.go.view, self.lives[node]);
                self.broken.insert((view, node.min(peer), node.max(peer)));
                self.after(100, Happening::LinkFailed { node, life, view, peer });
            }
        }
    }

    /// A process dies: those that work with it find their connections closed, unless they are cut off.
    pub(crate) fn break_links_of(&mut self, dead: usize) {
        let name = format!("w{dead}");
        for node in (0..self.n_workers).filter(|node| *node != dead) {
            let Some(process) = &self.workers[node] else { continue };
            let Some(run) = &process.plane.run else { continue };
            let view = run.go.view;
            if run.go.members.iter().any(|seat| seat.name == name)
                && self.blocked(dead, node).is_none()
            {
                let (life, delay) = (self.lives[node], self.delay());
                self.after(delay, Happening::LinkFailed { node, life, view, peer: dead });
            }
        }
    }

    pub(crate) fn link_failed(&mut self, node: usize, life: u64, view: ViewId, peer: usize) {
        if self.lives[node] != life || node >= self.n_workers {
            return;
        }
        let name = format!("w{peer}");
        let peer = match peer == self.driver_node() {
            true => Some(Peer::Driver),
            false => self.views.get(&view).and_then(|go| {
                let seat = go.members.iter().find(|seat| seat.name == name)?;
                Some(Peer::Member(seat.id))
            }),
        };
        if let Some(peer) = peer {
            let reason = format!("the connection to {peer:?} failed");
            self.tell_worker(node, Event::Failed { view, peer, reason });
        }
    }

    pub(crate) fn drain(&mut self, node: usize) {
        self.tell_worker(node, Event::Drain);
    }

    pub(crate) fn start_run(&mut self, node: usize, go: Go, rank: usize) {
        let Some(process) = &mut self.workers[node] else { return };
        let (state, view) = (process.plane.state, go.view);
        process.job = Some(go.job);
        if state.map(|state| state.steps) != Some(go.steps) {
            let steps = go.steps;
            return self.violate(format!("w{node} starts view {view} at {steps} with {state:?}"));
        }
        let seat = &go.members[rank];
        let listed = |grains: &[Grains]| {
            grains.iter().flat_map(|grains| grains.start..grains.end).collect::<Vec<u32>>()
        };
        let (done, mut to_do) = (listed(&seat.done), listed(&seat.to_do));
        if let Some(lost) = done.iter().find(|grain| !process.plane.done.contains_key(grain)) {
            return self.violate(format!("w{node} has not done grain {lost} in view {view}"));
        }
        if self.planted == Some(Planted::GrainTwice) && rank > 0 && !go.is_holding() {
            to_do.extend(go.members[0].to_do.first().map(|grains| grains.start));
        }
        process.plane.done.retain(|grain, _| done.contains(grain));
        process.plane.epoch += 1;
        process.plane.run = Some(Run {
            go,
            rank,
            has_inputs: false,
            to_do,
            has_sent: false,
            brought: Default::default(),
            shares: None,
        });
        let copies = std::mem::take(&mut process.plane.early_copies);
        for (to, view) in copies {
            self.data_arrives(to, node, Data::CopyState { view });
        }
        self.begin_step(node);
    }

    fn begin_step(&mut self, node: usize) {
        let driver = self.driver_node();
        let Some(process) = &mut self.workers[node] else { return };
        let plane = &mut process.plane;
        let (Some(run), Some(state)) = (&plane.run, plane.state) else { return };
        let (view, n_to_do, step) = (run.go.view, run.to_do.len(), state.steps);
        if run.go.is_holding() {
            return;
        }
        let early = std::mem::take(&mut plane.early);
        let mixed = self.planted == Some(Planted::MixedViews);
        for brought in early {
            if brought.step == step && (brought.view == view || mixed) {
                plane.run.as_mut().unwrap().brought.insert(brought.rank, brought);
            } else if brought.view >= view && brought.step >= step {
                plane.early.push(brought);
            }
        }
        self.tell_worker(node, Event::StepBegun { view, n_to_do });
        self.send_or_fail(node, driver, view, Data::NeedInputs { view, step });
        self.tell_worker(node, Event::Waiting { view, waiting_for: vec![Peer::Driver] });
    }

    /// Starts the next grain, or brings what is done to the exchange.
    fn go_on(&mut self, node: usize) {
        let Some(process) = &mut self.workers[node] else { return };
        let (slowness, seconds) = (process.slowness, self.grain_time[node]);
        let plane = &mut process.plane;
        let (Some(run), Some(state)) = (&mut plane.run, plane.state) else { return };
        if plane.is_computing || !run.has_inputs || run.has_sent {
            return;
        }
        let view = run.go.view;
        if let Some(grain) = run.to_do.first().copied() {
            plane.is_computing = true;
            let time = (seconds as f64 * slowness) as u64;
            let time = time + self.chance.between(0, time / 4 + 1);
            let (life, epoch) = (self.lives[node], plane.epoch);
            let seconds = time as f64 / 1e6;
            return self.after(time, Happening::GrainEnds { node, life, epoch, grain, seconds });
        }
        run.has_sent = true;
        let brought = Brought {
            view,
            step: state.steps,
            rank: run.rank,
            grains: plane.done.iter().map(|(grain, result)| (*grain, *result)).collect(),
            seconds: seconds as f64 / 1e6 * slowness,
        };
        run.brought.insert(run.rank, brought.clone());
        let others: Vec<usize> =
            run.go.members.iter().map(|seat| seat.name[1..].parse().unwrap()).collect();
        for to in others.into_iter().filter(|to| *to != node) {
            self.send_or_fail(node, to, view, Data::Brought(brought.clone()));
        }
        self.exchange(node);
    }

    pub(crate) fn grain_ends(&mut self, node: usize, epoch: u64, grain: u32, seconds: f64) {
        let Some(process) = &mut self.workers[node] else { return };
        let plane = &mut process.plane;
        plane.is_computing = false;
        if plane.epoch == epoch
            && let (Some(run), Some(state)) = (&mut plane.run, plane.state)
        {
            run.to_do.retain(|other| *other != grain);
            plane.done.insert(grain, state.grain(grain));
            let view = run.go.view;
            self.tell_worker(node, Event::GrainDone { view, grain, seconds });
        }
        self.go_on(node);
    }

    fn exchange(&mut self, node: usize) {
        let Some(process) = &mut self.workers[node] else { return };
        let plane = &mut process.plane;
        let (Some(run), Some(state)) = (&mut plane.run, plane.state) else { return };
        let view = run.go.view;
        if !run.has_sent {
            return;
        }
        let waiting_for = run.missing();
        if !waiting_for.is_empty() {
            return self.tell_worker(node, Event::Waiting { view, waiting_for });
        }
        let all = run.brought.values().flat_map(|brought| brought.grains.iter().copied());
        let all: Vec<(u32, u64)> = all.collect();
        let sums = all.iter().copied().collect();
        let next = state.after(&sums);
        let is_right = sums.len() == all.len() && next == self.right_state(next.steps);
        if !is_right {
            let all: Vec<u32> = all.into_iter().map(|(grain, _)| grain).collect();
            return self.violate(format!("w{node} summed {all:?} for step {}", state.steps));
        }
        self.finish_step(node, next);
    }

    fn finish_step(&mut self, node: usize, next: State) {
        let n_grains = self.grains.of_step(next.steps);
        let driver = self.driver_node();
        let Some(process) = &mut self.workers[node] else { return };
        let plane = &mut process.plane;
        let Some(run) = &mut plane.run else { return };
        let (view, job) = (run.go.view, run.go.job);
        let shares = run.next_shares(n_grains);
        run.to_do = shares[run.rank].iter().flat_map(|grains| grains.start..grains.end).collect();
        run.shares = Some(shares);
        run.brought.clear();
        run.has_sent = false;
        run.has_inputs = false;
        plane.state = Some(next);
        plane.done.clear();
        plane.epoch += 1;
        if self.now > self.faults_end {
            self.recovered_at.get_or_insert(self.now);
        }
        self.note(|| format!("w{node} completed step {} in view {view}", next.steps));
        self.tell_worker(node, Event::StepDone { view, steps: next.steps });
        self.send_data(node, driver, Data::StepDone { job, state: next });
        self.begin_step(node);
    }

    /// The state as it must be after so many steps.
    fn right_state(&mut self, steps: u64) -> State {
        while self.right.len() as u64 <= steps {
            let last = self.right[self.right.len() - 1];
            self.right.push(last.rightly_after(self.grains.of_step(last.steps)));
        }
        self.right[steps as usize]
    }

    pub(crate) fn data_arrives(&mut self, from: usize, to: usize, data: Data) {
        if to == self.driver_node() {
            return self.data_at_driver(from, data);
        }
        let Some(process) = &mut self.workers[to] else { return };
        let view_here = process.side.view();
        let plane = &mut process.plane;
        let running = plane.run.as_ref().map(|run| run.go.view);
        match data {
            Data::Brought(brought) => {
                let step = plane.state.map(|state| state.steps);
                let is_now = running == Some(brought.view)
                    || (running.is_some() && self.planted == Some(Planted::MixedViews));
                if is_now && step == Some(brought.step) {
                    plane.run.as_mut().unwrap().brought.insert(brought.rank, brought);
                    self.exchange(to);
                } else if Some(brought.view) >= view_here {
                    plane.early.push(brought);
                }
            }
            Data::Inputs { view, step }
                if running == Some(view) && plane.state.is_some_and(|s| s.steps == step) =>
            {
                plane.run.as_mut().unwrap().has_inputs = true;
                self.tell_worker(to, Event::Waiting { view, waiting_for: Vec::new() });
                self.go_on(to);
            }
            Data::CopyState { view } => match plane.state {
                Some(state) if running == Some(view) => {
                    let time = self.copy_time;
                    let data = Data::StateCopy { view, state };
                    self.after(time, Happening::Data { from: to, to: from, data });
                }
                _ if Some(view) >= view_here => plane.early_copies.push((from, view)),
                _ => {}
            },
            Data::StateCopy { view, state }
                if plane
                    .copying
                    .is_some_and(|(wanted, _, steps)| (wanted, steps) == (view, state.steps)) =>
            {
                plane.copying = None;
                plane.state = Some(state);
                plane.done.clear();
                self.tell_worker(to, Event::Copied { view, steps: state.steps });
            }
            Data::Fetch { view } => {
                if let (Some(state), true) = (plane.state, running == Some(view)) {
                    let time = self.copy_time;
                    let data = Data::Fetched { view, state };
                    self.after(time, Happening::Data { from: to, to: from, data });
                }
            }
            _ => {}
        }
    }

    fn data_at_driver(&mut self, from: usize, data: Data) {
        let (n_steps, now, saved) = (self.n_steps, self.now, self.saved);
        let Some(driver) = &mut self.driver else { return };
        let view_here = driver.go.as_ref().map(|go| go.view);
        match data {
            Data::NeedInputs { view, step }
                if view_here == Some(view) && !driver.is_paused && step < n_steps =>
            {
                self.tell_driver(DriverEvent::InputsSent { steps: step + 1 });
                self.send_data(self.driver_node(), from, Data::Inputs { view, step });
            }
            // A view that the driver has not begun yet: it looks again a little later.
            Data::NeedInputs { view, .. } | Data::CopyState { view } if view_here < Some(view) => {
                let to = self.driver_node();
                self.after(20 * MS, Happening::Data { from, to, data });
            }
            Data::CopyState { view } if view_here == Some(view) => {
                let data = Data::StateCopy { view, state: saved };
                let (time, driver) = (self.copy_time, self.driver_node());
                self.after(time, Happening::Data { from: driver, to: from, data });
            }
            Data::StepDone { job, state } if driver.job == Some(job) => {
                driver.reached = driver.reached.max(state.steps);
            }
            // What arrives later must not replace what the driver has told of.
            Data::Fetched { view, state } if view_here == Some(view) && !driver.is_paused => {
                driver.fetch_at = now;
                if state.steps > saved.steps {
                    self.saved = state;
                    if state != self.right_state(state.steps) {
                        self.violate(format!("the driver fetched a wrong state: {state:?}"));
                    }
                    self.tell_driver(DriverEvent::Saved { steps: state.steps });
                }
            }
            _ => {}
        }
    }
}
