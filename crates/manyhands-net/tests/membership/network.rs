//! Connections to coordinators, and the network that delays, holds back and repeats what is sent on them.

use manyhands_net::membership::coordinator;
use manyhands_net::membership::driver;
use manyhands_net::membership::identity::Connection;
use manyhands_net::membership::message::{FromCoordinator, Order, ToCoordinator};
use manyhands_net::membership::worker;

use crate::setup::Planted;
use crate::world::{Data, Happening, MS, SECOND, Time, World};

/// A connection of a process to a coordinator.
pub(crate) struct Link {
    pub(crate) client: usize,
    pub(crate) client_life: u64,
    pub(crate) server: usize,
    pub(crate) client_open: bool,
    pub(crate) server_open: bool,
    /// When the last message in each direction arrives.
    last: [Time; 2],
}

impl World {
    pub(crate) fn delay(&mut self) -> Time {
        match self.chance.between(0, 40) {
            0 => self.chance.between(MS, 200 * MS),
            _ => self.chance.between(50, 3 * MS),
        }
    }

    /// Until when nothing gets from one to the other, if anything stops it now.
    pub(crate) fn blocked(&self, from: usize, to: usize) -> Option<Time> {
        let until = self.cut_until[from][to].max(self.frozen_until[to]);
        (until > self.now).then_some(until)
    }

    pub(crate) fn close_by_client(&mut self, connection: u64) {
        let link = &mut self.links[connection as usize];
        if !std::mem::take(&mut link.client_open) {
            return;
        }
        let wait = link.last[0].saturating_sub(self.now) + 100;
        self.after(wait, Happening::ClosedAtServer { connection });
    }

    pub(crate) fn close_by_server(&mut self, connection: u64) {
        let link = &mut self.links[connection as usize];
        if !std::mem::take(&mut link.server_open) {
            return;
        }
        let wait = link.last[1].saturating_sub(self.now) + 100;
        self.after(wait, Happening::ClosedAtClient { connection });
    }

    pub(crate) fn closed_at_server(&mut self, connection: u64) {
        let link = &self.links[connection as usize];
        let (client, server) = (link.client, link.server);
        if !link.server_open {
            return;
        }
        if let Some(until) = self.blocked(client, self.server_node(server)) {
            return self.later(until, Happening::ClosedAtServer { connection });
        }
        self.links[connection as usize].server_open = false;
        self.tell_server(server, coordinator::Event::Closed { from: Connection(connection) });
    }

    pub(crate) fn closed_at_client(&mut self, connection: u64) {
        let link = &self.links[connection as usize];
        let (client, server) = (link.client, link.server);
        if !link.client_open {
            return;
        }
        if let Some(until) = self.blocked(self.server_node(server), client) {
            return self.later(until, Happening::ClosedAtClient { connection });
        }
        self.links[connection as usize].client_open = false;
        self.client_lost(client, connection);
    }

    fn client_lost(&mut self, client: usize, connection: u64) {
        if client < self.n_workers {
            if let Some(process) = &mut self.workers[client]
                && process.connection == Some(connection)
            {
                process.connection = None;
                self.tell_worker(client, worker::Event::Closed);
            }
        } else if let Some(process) = &mut self.driver
            && process.connection == Some(connection)
        {
            process.connection = None;
            self.tell_driver(driver::Event::Closed);
        }
    }

    pub(crate) fn begin_connect(&mut self, node: usize) {
        let second = self.coordinators[1].is_some() && self.chance.once_in(3);
        let (delay, life) = (self.delay(), self.lives[node]);
        self.after(delay, Happening::Connect { node, life, to: usize::from(second) });
    }

    pub(crate) fn connect(&mut self, node: usize, life: u64, to: usize) {
        let server = self.server_node(to);
        if self.lives[node] != life
            || self.blocked(server, node).is_some()
            || self.blocked(node, server).is_some()
        {
            return;
        }
        let is_there = self.coordinators[to].is_some();
        let connection = self.links.len() as u64;
        if is_there {
            self.links.push(Link {
                client: node,
                client_life: life,
                server: to,
                client_open: true,
                server_open: true,
                last: [0, 0],
            });
        }
        if node < self.n_workers {
            if let Some(process) = &mut self.workers[node] {
                let event = match is_there {
                    true => worker::Event::Connected,
                    false => worker::Event::Closed,
                };
                process.connection = is_there.then_some(connection);
                self.tell_worker(node, event);
            }
        } else if let Some(process) = &mut self.driver {
            let event = match is_there {
                true => driver::Event::Connected,
                false => driver::Event::Closed,
            };
            process.connection = is_there.then_some(connection);
            self.tell_driver(event);
        }
    }

    pub(crate) fn send_to_coordinator(&mut self, connection: Option<u64>, message: ToCoordinator) {
        let Some(connection) = connection else { return };
        if !self.links[connection as usize].client_open {
            return;
        }
        let delay = self.in_order(connection, 0);
        let message = Box::new(message);
        if self.is_unordered && self.chance.once_in(20) {
            let late = self.chance.between(0, 2 * SECOND);
            let message = message.clone();
            self.after(late, Happening::ToCoordinator { connection, message });
        }
        self.after(delay, Happening::ToCoordinator { connection, message });
    }

    /// The delay of a message: after those before it, unless order is not kept.
    fn in_order(&mut self, connection: u64, direction: usize) -> Time {
        let delay = self.delay();
        let link = &mut self.links[connection as usize];
        let at = (self.now + delay).max(link.last[direction]);
        link.last[direction] = at;
        if self.is_unordered { delay } else { at - self.now }
    }

    pub(crate) fn deliver_to_coordinator(&mut self, connection: u64, message: Box<ToCoordinator>) {
        let link = &self.links[connection as usize];
        if !link.server_open {
            return;
        }
        let server = link.server;
        if let Some(until) = self.blocked(link.client, self.server_node(server)) {
            self.links[connection as usize].last[0] = until + 100;
            return self.later(until, Happening::ToCoordinator { connection, message });
        }
        if self.deaf_until[link.client] <= self.now {
            self.heard_at[link.client] = self.now;
        }
        if let ToCoordinator::Heartbeat(heartbeat) = &*message {
            self.told_state[link.client] = heartbeat.steps.map(|_| link.client_life);
        }
        let from = Connection(connection);
        self.tell_server(server, coordinator::Event::Received { from, message: *message });
    }

    pub(crate) fn send_from_coordinator(&mut self, connection: u64, message: Box<FromCoordinator>) {
        if !self.links[connection as usize].server_open {
            return;
        }
        let delay = self.in_order(connection, 1);
        if self.is_unordered && self.chance.once_in(20) {
            let late = self.chance.between(0, 2 * SECOND);
            let message = message.clone();
            self.after(late, Happening::FromCoordinator { connection, message });
        }
        self.after(delay, Happening::FromCoordinator { connection, message });
    }

    pub(crate) fn deliver_from_coordinator(
        &mut self,
        connection: u64,
        message: Box<FromCoordinator>,
    ) {
        let link = &self.links[connection as usize];
        let (client, server) = (link.client, self.server_node(link.server));
        if !link.client_open || self.lives[client] != link.client_life {
            return;
        }
        if let Some(until) = self.blocked(server, client) {
            self.links[connection as usize].last[1] = until + 100;
            return self.later(until, Happening::FromCoordinator { connection, message });
        }
        if client < self.n_workers {
            if self.workers[client].as_ref().is_some_and(|p| p.connection == Some(connection)) {
                let is_order = matches!(message.order, Order::Prepare { .. } | Order::Go(_));
                if is_order && self.deaf_until[client] > self.now {
                    return;
                }
                self.plant_old_ready(client, connection, &message);
                self.tell_worker(client, worker::Event::Received(*message));
            }
        } else if self.driver.as_ref().is_some_and(|p| p.connection == Some(connection)) {
            self.tell_driver(driver::Event::Received(message));
        }
    }

    fn plant_old_ready(&mut self, node: usize, connection: u64, message: &FromCoordinator) {
        let Order::Prepare { view, .. } = &message.order else { return };
        if self.planted == Some(Planted::OldReady)
            && let Some(process) = &self.workers[node]
            && let Some(ToCoordinator::Ready(ready)) = process.last_ready.clone()
        {
            let mut ready = ready;
            ready.view = *view;
            self.send_to_coordinator(Some(connection), ToCoordinator::Ready(ready));
        }
    }

    pub(crate) fn is_link_of(&self, connection: u64, node: usize) -> bool {
        let link = &self.links[connection as usize];
        link.client_open && (link.client == node || self.server_node(link.server) == node)
    }

    /// Both ends see the connection fail.
    pub(crate) fn reset(&mut self, connection: u64) {
        self.after(100, Happening::ClosedAtServer { connection });
        self.after(100, Happening::ClosedAtClient { connection });
    }

    pub(crate) fn send_data(&mut self, from: usize, to: usize, data: Data) {
        let delay = self.delay();
        self.after(delay, Happening::Data { from, to, data });
    }
}
