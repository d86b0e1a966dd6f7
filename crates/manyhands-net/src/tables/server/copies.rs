//! What a first holder knows of its copies: how far they are, and what they may still need.
//!
//! Copies follow the first holder's order (S1), and what every holder has is *safe*: it is acknowledged (S2), and reads may show it.

use std::collections::{BTreeMap, VecDeque};

use super::kept::Kept;
use super::saved::pieces;
use super::{Action, Outbox};
use crate::tables::identity::{Place, ServerId, Term, Version};
use crate::tables::message::{Author, Body, Follow, Followed, Holding, Operation, ToDirector};

/// An operation that copies may still need.
pub(super) struct Entry {
    version: Version,
    author: Option<Author>,
    operation: Operation,
    body: Option<Body>,
}

/// A copy, as its first holder knows it.
#[derive(Clone, Copy, Debug, Default)]
struct CopyState {
    /// Whether there is a link to it.
    is_linked: bool,
    /// Whether it gets operations as they come; else it was asked how far it is.
    follows: bool,
    /// How far it is known to be, in this term.
    has: Option<Version>,
    /// Whether the placement counts it as a holder.
    is_holder: bool,
    /// Whether the director was told that it has everything.
    is_told: bool,
}

impl CopyState {
    /// Whether nothing is acknowledged before this copy has it.
    fn is_required(&self) -> bool {
        self.is_holder || self.has.is_some()
    }
}

/// The copies of a shard.
pub(super) struct Copies {
    place: Place,
    term: Term,
    /// The director's decision that is known here.
    number: u64,
    /// The term before, and how far this holder was when its own began.
    before: (Term, Version),
    copies: BTreeMap<ServerId, CopyState>,
    log: VecDeque<Entry>,
    /// How far acknowledgements have gone out.
    released: Version,
}

impl Copies {
    /// A new first holder, which knows nothing of the others yet.
    pub(super) fn new(place: Place, term: Term, kept: &Kept) -> Copies {
        let before = (kept.last_term, kept.version);
        let copies = BTreeMap::new();
        Copies {
            place,
            term,
            number: 0,
            before,
            copies,
            log: VecDeque::new(),
            released: Version(0),
        }
    }

    /// Who holds the shard with this one.
    pub(super) fn set(&mut self, own: ServerId, holding: &Holding, out: &mut Outbox) {
        self.number = holding.number;
        let others = holding.holders.iter().chain(&holding.filling);
        let others: Vec<ServerId> = others.copied().filter(|server| *server != own).collect();
        self.copies.retain(|server, _| others.contains(server));
        for server in others {
            let is_new = !self.copies.contains_key(&server);
            let copy = self.copies.entry(server).or_default();
            copy.is_holder = holding.holders.contains(&server);
            if is_new {
                copy.is_linked = out.is_linked(server);
                out.push(Action::LinkTo(server));
                if copy.is_linked {
                    self.align(server, out);
                }
            }
        }
    }

    /// There is a link to a copy, again or for the first time.
    pub(super) fn linked(&mut self, server: ServerId, out: &mut Outbox) {
        if let Some(copy) = self.copies.get_mut(&server) {
            copy.is_linked = true;
            self.align(server, out);
        }
    }

    /// The link to a copy is lost.
    pub(super) fn unlinked(&mut self, server: ServerId) {
        if let Some(copy) = self.copies.get_mut(&server) {
            (copy.is_linked, copy.follows) = (false, false);
        }
    }

    /// Whether a copy is not as far as its first holder.
    pub(super) fn waits_for(&self, server: ServerId, own: Version) -> bool {
        self.copies.get(&server).is_some_and(|copy| copy.has.is_none_or(|has| has < own))
    }

    fn align(&mut self, server: ServerId, out: &mut Outbox) {
        if let Some(copy) = self.copies.get_mut(&server) {
            copy.follows = false;
        }
        let (place, term, number) = (self.place, self.term, self.number);
        let message = Follow::Align { place, term, number };
        out.push(Action::ToCopy { server, message, body: None });
    }

    /// Passes on what was just done.
    pub(super) fn done(
        &mut self,
        version: Version,
        author: Option<Author>,
        operation: &Operation,
        body: Option<&Body>,
        out: &mut Outbox,
    ) {
        if self.copies.is_empty() {
            self.log.clear();
            return;
        }
        // A copy that is being filled comes to it late, and the worker, which has its acknowledgement by then, would have to keep what it shows.
        let is_late = self.copies.values().any(|copy| copy.follows && !copy.is_required());
        let body = body.map(|body| if is_late { body.held_here() } else { body.clone() });
        for (server, copy) in &self.copies {
            if copy.follows {
                let (place, term, operation) = (self.place, self.term, operation.clone());
                let message = Follow::Do { place, term, version, author, operation };
                out.push(Action::ToCopy { server: *server, message, body: body.clone() });
            }
        }
        let operation = operation.clone();
        self.log.push_back(Entry { version, author, operation, body });
    }

    /// How far all holders are.
    pub(super) fn safe(&self, own: Version) -> Version {
        let required = self.copies.values().filter(|copy| copy.is_required());
        required.map(|copy| copy.has.unwrap_or_default()).fold(own, Version::min)
    }

    /// What a copy says.
    pub(super) fn heard(
        &mut self,
        server: ServerId,
        message: &Followed,
        kept: &Kept,
        out: &mut Outbox,
    ) {
        let Some(copy) = self.copies.get_mut(&server) else { return };
        match *message {
            Followed::Has { term, version, .. } if term == self.term => {
                copy.has = Some(copy.has.unwrap_or_default().max(version));
            }
            Followed::Stands { term, last_term, version, .. } if term == self.term => {
                let goes_on =
                    version.filter(|version| self.can_go_on(last_term, *version, kept.version));
                match goes_on {
                    Some(version) => self.send_rest(server, version, out),
                    None => self.fill(server, kept, out),
                }
            }
            // A newer first holder: the director will say so.
            _ => {}
        }
        self.trim(kept.version);
    }

    /// Whether a copy's order is the beginning of this one's, and the rest of it is still here.
    fn can_go_on(&self, last_term: Term, version: Version, own: Version) -> bool {
        let is_beginning =
            last_term == self.term || (last_term == self.before.0 && version <= self.before.1);
        let has_next =
            self.log.front().is_some_and(|first| first.version.0 <= version.0.saturating_add(1));
        is_beginning && (version == own || (version < own && has_next))
    }

    fn send_rest(&mut self, server: ServerId, from: Version, out: &mut Outbox) {
        for entry in self.log.iter().filter(|entry| entry.version > from) {
            let message = Follow::Do {
                place: self.place,
                term: self.term,
                version: entry.version,
                author: entry.author,
                operation: entry.operation.clone(),
            };
            out.push(Action::ToCopy { server, message, body: entry.body.clone() });
        }
        if let Some(copy) = self.copies.get_mut(&server) {
            copy.follows = true;
            copy.has = Some(from);
        }
    }

    fn fill(&mut self, server: ServerId, kept: &Kept, out: &mut Outbox) {
        let all = pieces(kept, true);
        let last = all.len() - 1;
        for (idx, piece) in all.into_iter().enumerate() {
            let message = Follow::Fill {
                place: self.place,
                term: self.term,
                version: kept.version,
                is_first: idx == 0,
                is_last: idx == last,
            };
            out.push(Action::ToCopy { server, message, body: Some(piece) });
        }
        if let Some(copy) = self.copies.get_mut(&server) {
            // It has nothing until it says so.
            (copy.follows, copy.has) = (true, copy.has.map(|_| Version(0)));
        }
    }

    /// Acknowledgements up to this have gone out. Tells the director of copies that have everything.
    pub(super) fn release(&mut self, safe: Version, out: &mut Outbox) {
        self.released = self.released.max(safe);
        for (server, copy) in &mut self.copies {
            let is_full = copy.has.is_some_and(|has| has >= self.released);
            if is_full && !copy.is_holder && !copy.is_told {
                copy.is_told = true;
                let (place, term, server) = (self.place, self.term, *server);
                out.push(Action::ToDirector(ToDirector::Complete { place, term, server }));
            }
        }
    }

    /// Forgets what every linked copy has. One that is away longer is filled anew.
    fn trim(&mut self, own: Version) {
        let waiting = self.copies.values().filter(|copy| copy.is_holder || copy.follows);
        let least = waiting.map(|copy| copy.has.unwrap_or_default()).fold(own, Version::min);
        while self.log.front().is_some_and(|entry| entry.version <= least) {
            self.log.pop_front();
        }
    }
}
