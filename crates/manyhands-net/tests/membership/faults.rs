//! What goes wrong, and when.

use crate::world::{Happening, MS, SECOND, Time, World};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Crash { node: usize, down: Option<Time> },
    Freeze { node: usize, length: Time },
    Cut { from: usize, to: usize, length: Time },
    Partition { side: u64, length: Time },
    Reset { node: usize },
    BreakLink { node: usize, peer: usize },
    Drain { node: usize },
    Slow { node: usize, factor: f64 },
    CoordinatorCrash { after: usize, down: Time },
    Second { length: Time },
    Deaf { node: usize, length: Time },
    End,
}

impl World {
    pub(crate) fn plan_faults(&mut self) {
        self.faults_end = self.chance.between(2, 16) * SECOND;
        let n_faults = self.chance.between(0, 24);
        for _ in 0..n_faults {
            let at = self.chance.between(300, self.faults_end / MS) * MS;
            let fault = self.draw_fault(self.faults_end - at);
            self.after(at, Happening::Fault(fault));
        }
        self.after(self.faults_end, Happening::Fault(Fault::End));
    }

    fn draw_fault(&mut self, left: Time) -> Fault {
        let node = self.chance.between(0, self.n_workers as u64) as usize;
        let any = self.chance.between(0, self.n_workers as u64 + 2) as usize;
        let other = self.chance.between(0, self.n_workers as u64 + 2) as usize;
        // Short and long ones are as frequent.
        let length = match self.chance.between(0, 3) {
            0 => left.min(100 * MS),
            1 => left.min(2 * SECOND),
            _ => left,
        };
        let length = self.chance.between(MS, length.max(2 * MS));
        match self.chance.between(0, 17) {
            0..=2 => Fault::Crash { node, down: Some(length) },
            3 => Fault::Crash { node, down: None },
            4 | 5 => Fault::Freeze { node: any, length },
            6 | 7 => Fault::Cut { from: any, to: other, length },
            8 => Fault::Partition { side: self.chance.next(), length },
            9 => Fault::Reset { node: any },
            10 => Fault::BreakLink { node, peer: other },
            11 => Fault::Drain { node },
            12 => Fault::Slow { node, factor: self.chance.between(2, 100) as f64 },
            13 | 14 => {
                let after = self.chance.between(0, 30) as usize;
                Fault::CoordinatorCrash { after, down: length.min(4 * SECOND) }
            }
            15 => Fault::Deaf { node, length },
            _ if self.chance.once_in(2) => Fault::Second { length },
            _ => Fault::Crash { node: self.driver_node(), down: Some(length.min(3 * SECOND)) },
        }
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        if self.finished {
            return;
        }
        self.note(|| format!("FAULT {fault:?}"));
        let coordinator = self.server_node(0);
        match fault {
            Fault::Crash { node, down } => {
                self.kill(node);
                if let Some(down) = down {
                    self.after(down, Happening::Restart { node });
                }
            }
            Fault::Freeze { node, length } => self.frozen_until[node] = self.now + length,
            Fault::Cut { from, to, length } => self.cut_until[from][to] = self.now + length,
            Fault::Partition { side, length } => self.partition(side, self.now + length),
            Fault::Reset { node } => {
                for connection in 0..self.links.len() as u64 {
                    if self.is_link_of(connection, node) {
                        self.reset(connection);
                    }
                }
            }
            Fault::BreakLink { node, peer } => self.break_link(node, peer),
            Fault::Drain { node } => self.drain(node),
            Fault::Slow { node, factor } => {
                self.was_slow = true;
                if let Some(process) = &mut self.workers[node] {
                    process.slowness = factor;
                }
            }
            Fault::CoordinatorCrash { after, down } => {
                if let Some(process) = &mut self.coordinators[0] {
                    process.dies_after = Some(after);
                }
                self.after(down + 200 * MS, Happening::Restart { node: coordinator });
            }
            Fault::Second { length } => {
                if self.coordinators[1].is_none() {
                    self.start_coordinator(1, self.logs[0].clone());
                    self.after(length, Happening::KillSecond);
                }
            }
            Fault::Deaf { node, length } => self.deaf_until[node] = self.now + length,
            Fault::End => self.end_faults(),
        }
    }

    fn partition(&mut self, side: u64, until: Time) {
        let n = self.cut_until.len();
        for from in 0..n {
            for to in 0..n {
                if (side >> from) & 1 != (side >> to) & 1 {
                    self.cut_until[from][to] = until;
                }
            }
        }
    }

    /// All is well from now on: everybody runs, nothing is cut, frozen or slow.
    fn end_faults(&mut self) {
        self.cut_until.iter_mut().flatten().for_each(|until| *until = 0);
        self.deaf_until.iter_mut().for_each(|until| *until = 0);
        self.frozen_until.iter_mut().for_each(|until| *until = 0);
        if self.coordinators[1].is_some() {
            self.kill(self.server_node(1));
        }
        if let Some(process) = &mut self.coordinators[0] {
            process.dies_after = None;
        }
        self.workers.iter_mut().flatten().for_each(|process| process.slowness = 1.0);
        for node in 0..self.n_workers + 2 {
            self.after(10 * MS, Happening::Restart { node });
        }
    }
}
