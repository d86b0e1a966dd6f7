//! A client on links: one thread that owns them, and whoever calls and waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::tables::ClientSettings;
use super::ticket::Ticket;
use super::{Action, Client, Event, Outcome, ReadResult, Request, TicketId};
use crate::tables::calls::{Bell, Calls};
use crate::tables::director::check_same;
use crate::tables::error::TableError;
use crate::tables::history::HistoryWriter;
use crate::tables::identity::{ClientId, ServerId, TableId};
use crate::tables::landing::{Claim, Strip, Strips};
use crate::tables::line::Line;
use crate::tables::message::{
    Body, FromDirector, FromServer, Opened, ToDirector, ToServer, VERSION, Who,
};
use crate::tables::network::Network;
use crate::tables::spec::TableSpec;
use crate::tables::traffic::SavedByFilter;
use crate::transport::wait::Waiting;

/// Bytes that may be underway before a push waits.
pub(super) const WINDOW: usize = 128 << 20;
/// How often the director hears that this client is alive.
pub(in crate::tables) const BEAT: Duration = Duration::from_millis(200);
/// After a body of so many bytes others get their turn.
const LARGE: usize = 64 << 10;
/// How often one who waits looks whether to give up.
const LOOK_UP: Duration = Duration::from_millis(50);
/// How long what was said last may take to leave.
const LINGER: Duration = Duration::from_millis(500);
/// Between two calls of a director that is not there yet.
const CALL_AGAIN: Duration = Duration::from_millis(20);

/// A client, as those who call see it.
pub(super) struct Shared {
    core: Arc<Core>,
    name: String,
    id: ClientId,
    deadline: Duration,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Core {
    state: Mutex<State>,
    changed: Condvar,
    bell: Bell,
    /// Where reads that are waited for belong, by their place in a ticket.
    landings: Mutex<BTreeMap<(TicketId, usize), Arc<Strip>>>,
    /// Somebody wants back what is lent to what is still to be sent.
    recalls: AtomicBool,
    is_over: AtomicBool,
    n_sent: AtomicU64,
    n_received: AtomicU64,
}

struct State {
    client: Client,
    actions: Vec<Action>,
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn landings(&self) -> MutexGuard<'_, BTreeMap<(TicketId, usize), Arc<Strip>>> {
        self.landings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the bytes beside a message belong, where somebody waits for them.
    fn landing(&self, message: &FromServer, n_bytes: usize) -> Option<Claim> {
        let FromServer::Read { place, id, is_last: true, .. } = *message else { return None };
        let reader = self.lock().client.reader_of(place, id)?;
        self.landings().get(&reader)?.claim(n_bytes)
    }
}

impl Shared {
    pub(super) fn start(
        network: Arc<dyn Network>,
        settings: ClientSettings,
    ) -> Result<Arc<Shared>, TableError> {
        let failed = |what: String| TableError::NoLink { who: "the director".into(), what };
        let bell = Bell::new().map_err(|error| failed(error.to_string()))?;
        let client = Client::new(settings.history.is_some());
        let core = Arc::new(Core {
            state: Mutex::new(State { client, actions: Vec::new() }),
            changed: Condvar::new(),
            bell: bell.clone(),
            landings: Mutex::default(),
            recalls: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            n_sent: AtomicU64::new(0),
            n_received: AtomicU64::new(0),
        });
        let until = Instant::now() + settings.deadline;
        let stop = Arc::clone(&settings.stop);
        let link = loop {
            let gives_up = || stop.load(Ordering::Relaxed);
            match network.call(&settings.director, until, &gives_up) {
                Ok(link) => break link,
                Err(error) if gives_up() || Instant::now() + CALL_AGAIN > until => {
                    return Err(failed(error.to_string()));
                }
                Err(_) => std::thread::sleep(CALL_AGAIN),
            }
        };
        let mut director = Line::new(link);
        let name = settings.name.clone();
        let hello = ToDirector::JoinAsClient { version: VERSION, name: name.clone() };
        director.queue(&hello, None).map_err(|error| failed(error.to_string()))?;
        let running = Running {
            core: Arc::clone(&core),
            start: Instant::now(),
            name: name.clone(),
            calls: Calls::new(network, bell),
            places: BTreeMap::new(),
            lines: vec![Some(director)],
            history: settings.history.map(|history| history.of(&settings.director)),
            waiting: Waiting::new(),
            next_beat: Instant::now() + BEAT,
        };
        let thread = std::thread::Builder::new().name("tables".into());
        let thread = thread.spawn(move || running.run());
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let mut shared = Shared {
            core,
            name,
            id: ClientId(0),
            deadline: settings.deadline,
            stop,
            thread: Some(thread),
        };
        shared.id = shared.until("joining", shared.deadline, |state| state.client.id())?;
        Ok(Arc::new(shared))
    }

    pub(super) fn id(&self) -> ClientId {
        self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(super) fn saved(&self, table: TableId) -> SavedByFilter {
        self.core.lock().client.saved(table)
    }

    pub(super) fn traffic(&self) -> [u64; 2] {
        [&self.core.n_sent, &self.core.n_received].map(|n| n.load(Ordering::Relaxed))
    }

    /// Waits until something is so, with a name for what.
    fn until<T>(
        &self,
        what: &str,
        at_most: Duration,
        mut is_so: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, TableError> {
        let start = Instant::now();
        let mut state = self.core.lock();
        loop {
            if let Some(found) = is_so(&mut state) {
                return Ok(found);
            }
            if let Some(error) = state.client.over() {
                return Err(error.clone());
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(TableError::Stopped { what: what.to_string() });
            }
            let left = at_most.saturating_sub(start.elapsed());
            if left.is_zero() {
                let what = what.to_string();
                let waits_for = "the director has not answered".to_string();
                return Err(TableError::Deadline { what, waits_for, after: start.elapsed() });
            }
            let waited = self.core.changed.wait_timeout(state, left.min(LOOK_UP));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn open(&self, name: &str, spec: &TableSpec) -> Result<Opened, TableError> {
        {
            let mut state = self.core.lock();
            state.client.ask_for(name, spec);
            let actions = state.client.take_actions();
            state.actions.extend(actions);
        }
        self.core.bell.ring();
        let what = format!("opening the table {name}");
        let opened = self.until(&what, self.deadline, |state| {
            let found = state.client.table(name)?;
            Some(found.cloned())
        });
        let opened = self.waited(opened, |client| client.why_not_open(name))??;
        // Others may have opened it.
        check_same(&opened, spec)?;
        Ok(opened)
    }

    /// Says in an error of a wait what was waited for.
    fn waited<T>(
        &self,
        outcome: Result<T, TableError>,
        waits_for: impl FnOnce(&Client) -> String,
    ) -> Result<T, TableError> {
        outcome.map_err(|error| match error {
            TableError::Deadline { what, after, .. } => {
                let waits_for = waits_for(&self.core.lock().client);
                TableError::Deadline { what, waits_for, after }
            }
            error => error,
        })
    }

    pub(super) fn submit(
        self: &Arc<Self>,
        requests: Vec<Request>,
        what: String,
    ) -> Result<Ticket, TableError> {
        self.await_room(&what)?;
        Ok(self.submit_now(requests, what))
    }

    /// Waits until not too much is underway.
    pub(super) fn await_room(&self, what: &str) -> Result<(), TableError> {
        let n_bytes = |state: &mut State| state.client.n_unacknowledged();
        let room = self.until(what, self.deadline, |state| (n_bytes(state) < WINDOW).then_some(()));
        self.waited(room, Client::why_not_acknowledged)
    }

    /// Asks for several things, however much is underway: for what has hardly any bytes, such as reads, and for what cannot be taken back once it is written.
    pub(super) fn submit_now(self: &Arc<Self>, requests: Vec<Request>, what: String) -> Ticket {
        let id = {
            let mut state = self.core.lock();
            let id = state.client.submit(requests);
            let actions = state.client.take_actions();
            state.actions.extend(actions);
            id
        };
        self.core.bell.ring();
        Ticket::new(Arc::clone(self), id, what)
    }

    pub(super) fn wait(
        &self,
        ticket: TicketId,
        what: &str,
        at_most: Duration,
    ) -> Result<Outcome, TableError> {
        let outcome = self.until(what, at_most, |state| state.client.take(ticket));
        match outcome {
            Ok(outcome) => match outcome.error {
                Some(error) => Err(error),
                None => Ok(outcome),
            },
            Err(error) => Err(self.gave_up(ticket, error)),
        }
    }

    /// Takes back what is waited for no more. The error says for whom it was.
    fn gave_up(&self, ticket: TicketId, error: TableError) -> TableError {
        let mut state = self.core.lock();
        let waits_for = state.client.waits_for(ticket);
        state.client.forget_reads(ticket);
        let actions = state.client.take_actions();
        state.actions.extend(actions);
        match error {
            TableError::Deadline { what, after, .. } => {
                TableError::Deadline { what, waits_for, after }
            }
            error => error,
        }
    }

    /// Nobody waits for what is read.
    pub(super) fn forget(&self, ticket: TicketId) {
        {
            let mut state = self.core.lock();
            state.client.forget_reads(ticket);
            let actions = state.client.take_actions();
            state.actions.extend(actions);
        }
        self.core.bell.ring();
    }

    /// As [`Shared::wait`], with what was read handed on as it comes, until `gives_up`, which hears whether all that was pushed is acknowledged. A push of this client that
    /// nobody waited for and that was refused is told here: what is waited for may never come because of it.
    pub(super) fn wait_parts(
        &self,
        ticket: TicketId,
        what: &str,
        at_most: Duration,
        gives_up: &mut dyn FnMut(bool) -> bool,
        mut take: impl FnMut(usize, ReadResult) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let start = Instant::now();
        loop {
            let left = at_most.saturating_sub(start.elapsed());
            let found = self.until(what, left, |state| {
                let ready = state.client.take_ready(ticket);
                let outcome = state.client.take(ticket);
                if !ready.is_empty() || outcome.is_some() {
                    return Some(Ok((ready, outcome)));
                }
                let stopped = || TableError::Stopped { what: what.to_string() };
                let error = state.client.take_unheard();
                let is_acknowledged = state.client.n_unacknowledged() == 0;
                error.or_else(|| gives_up(is_acknowledged).then(stopped)).map(Err)
            });
            let (ready, outcome) = match found.and_then(|found| found) {
                Ok(found) => found,
                Err(error) => return Err(self.gave_up(ticket, error)),
            };
            let taken = ready.into_iter().try_for_each(|(part, result)| take(part, result));
            taken.map_err(|error| self.gave_up(ticket, error))?;
            match outcome {
                Some(Outcome { error: Some(error), .. }) => return Err(self.gave_up(ticket, error)),
                Some(_) => return Ok(()),
                None => {}
            }
        }
    }

    /// Reads of a ticket go to where they belong as they come, while `wait` lasts.
    pub(super) fn landing<R>(
        &self,
        ticket: TicketId,
        strips: &Strips<'_>,
        wait: impl FnOnce() -> R,
    ) -> R {
        let each = strips.all().iter().enumerate();
        let each = each.map(|(part, strip)| ((ticket, part), Arc::clone(strip)));
        self.core.landings().extend(each);
        let waited = wait();
        self.core.landings().retain(|(of, _), _| *of != ticket);
        waited
    }

    /// Asks for what is lent to pushes that are underway: they go on with copies.
    pub(super) fn recall(&self) {
        {
            let mut state = self.core.lock();
            state.client.give_back();
            let bodies = state.actions.iter_mut().filter_map(|action| match action {
                Action::ToServer { body, .. } => body.as_mut(),
                _ => None,
            });
            bodies.for_each(Body::give_back);
        }
        self.core.recalls.store(true, Ordering::Release);
        self.core.bell.ring();
    }

    pub(super) fn forget_refused(&self) {
        self.core.lock().client.take_unheard();
    }

    pub(super) fn detach(&self, ticket: TicketId) {
        self.core.lock().client.detach(ticket);
    }

    pub(super) fn flush(&self) -> Result<(), TableError> {
        let done = |state: &mut State| (state.client.n_unacknowledged() == 0).then_some(());
        let done = self.until("a flush", self.deadline, done);
        self.waited(done, Client::why_not_acknowledged)?;
        match self.core.lock().client.take_unheard() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.core.is_over.store(true, Ordering::Relaxed);
        self.core.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread that owns the links.
struct Running {
    core: Arc<Core>,
    start: Instant,
    name: String,
    calls: Calls<ServerId>,
    /// Where the line of a server is.
    places: BTreeMap<ServerId, usize>,
    /// The first is the director's.
    lines: Vec<Option<Line>>,
    history: Option<HistoryWriter>,
    waiting: Waiting,
    next_beat: Instant,
}

impl Running {
    fn run(mut self) {
        while !self.core.is_over.load(Ordering::Relaxed) {
            self.take_called();
            let actions = std::mem::take(&mut self.core.lock().actions);
            let mut moved = !actions.is_empty();
            self.perform(actions);
            if self.core.recalls.swap(false, Ordering::Acquire) {
                self.lines.iter_mut().flatten().for_each(Line::give_back);
            }
            moved |= self.pump_director();
            let servers: Vec<(ServerId, usize)> =
                self.places.iter().map(|(server, place)| (*server, *place)).collect();
            for (server, place) in servers {
                moved |= self.pump_server(server, place);
            }
            let next_tick = self.tick();
            if moved {
                self.waiting.progressed();
                continue;
            }
            let interests: Vec<_> =
                self.lines.iter().map(|line| line.as_ref().map(Line::interest)).collect();
            let interest = |place: usize| {
                interests[place].unwrap_or(crate::transport::wait::Interest::Nothing)
            };
            let bell = self.core.bell.clone();
            let until = next_tick.min(self.next_beat);
            // A link that fails is found by the next pump.
            let _ = self.waiting.wait(&mut self.lines, interest, Some(bell.as_fd()), until);
            bell.silence();
        }
        self.leave();
    }

    /// Says good-bye, so that nobody waits for this client.
    fn leave(&mut self) {
        let until = Instant::now() + LINGER;
        if let Some(Some(director)) = self.lines.first_mut() {
            let _ = director.queue(&ToDirector::Leave, None);
            while Instant::now() < until && director.push().is_ok() && !director.is_sent() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// When there is something to do without a word from others.
    fn tick(&mut self) -> Instant {
        if Instant::now() >= self.next_beat {
            self.next_beat = Instant::now() + BEAT;
            self.perform(vec![Action::ToDirector(ToDirector::Beat { n_bytes: 0 })]);
        }
        let now = self.start.elapsed();
        let next = self.core.lock().client.next_tick();
        match next {
            Some(at) if at <= now => {
                self.handle(Event::Tick);
                Instant::now()
            }
            Some(at) => self.start + at,
            None => self.next_beat,
        }
    }

    fn take_called(&mut self) {
        while let Some((server, called)) = self.calls.next_called() {
            let id = self.core.lock().client.id();
            let line = called.ok().zip(id).and_then(|(link, id)| {
                let mut line = Line::showing(link);
                let who = Who::Client(id);
                let hello = ToServer::Hello { version: VERSION, who, name: self.name.clone() };
                line.queue(&hello, None).ok()?;
                Some(line)
            });
            match line {
                Some(line) => {
                    let free = self.lines.iter().skip(1).position(Option::is_none);
                    let place = match free {
                        Some(free) => free + 1,
                        None => {
                            self.lines.push(None);
                            self.lines.len() - 1
                        }
                    };
                    self.lines[place] = Some(line);
                    self.places.insert(server, place);
                    self.handle(Event::Linked(server));
                }
                None => self.handle(Event::Unlinked(server)),
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.start.elapsed();
        let actions = self.core.lock().client.handle(now, event);
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let mut wakes = false;
        for action in actions {
            match action {
                Action::ToServer { server, message, body } => {
                    let line =
                        self.places.get(&server).and_then(|place| self.lines.get_mut(*place));
                    if let Some(Some(line)) = line {
                        // A line that fails is found by the next pump.
                        let _ = line.queue(&message, body);
                    }
                }
                Action::ToDirector(message) => {
                    if let Some(Some(line)) = self.lines.first_mut() {
                        let _ = line.queue(&message, None);
                    }
                }
                Action::LinkTo { server, reach } => self.calls.call(server, reach),
                Action::Unlink(server) => {
                    if let Some(place) = self.places.remove(&server) {
                        self.lines[place] = None;
                    }
                }
                Action::Record(record) => {
                    if let Some(history) = &self.history {
                        history.write(&record);
                    }
                }
                Action::Wake => wakes = true,
            }
        }
        if wakes {
            self.core.changed.notify_all();
        }
    }

    fn pump_director(&mut self) -> bool {
        let mut messages: Vec<FromDirector> = Vec::new();
        let Some(Some(line)) = self.lines.first_mut() else { return false };
        let pumped = pump(line, |message, _| messages.push(message));
        for message in messages {
            self.handle(Event::FromDirector(message));
        }
        pumped.unwrap_or_else(|reason| {
            self.lines[0] = None;
            self.handle(Event::DirectorLost(reason));
            true
        })
    }

    fn pump_server(&mut self, server: ServerId, place: usize) -> bool {
        let mut messages = Vec::new();
        let Some(Some(line)) = self.lines.get_mut(place) else { return false };
        let before = line.traffic();
        let landing = |message: &FromServer, n_bytes| self.core.landing(message, n_bytes);
        let take = |message: FromServer, body| messages.push((message, body));
        let pumped = pump_landing(line, landing, take);
        let after = line.traffic();
        self.core.n_sent.fetch_add(after[0] - before[0], Ordering::Relaxed);
        self.core.n_received.fetch_add(after[1] - before[1], Ordering::Relaxed);
        for (message, body) in messages {
            self.handle(Event::FromServer { server, message, body });
        }
        pumped.unwrap_or_else(|_| {
            self.lines[place] = None;
            self.places.remove(&server);
            self.handle(Event::Unlinked(server));
            true
        })
    }
}

/// Moves what moves on a line, and hands every message to `take`. Whether anything moved; an error in words where the line is of no use any more.
pub(in crate::tables) fn pump<T: serde::de::DeserializeOwned>(
    line: &mut Line,
    take: impl FnMut(T, Option<Body>),
) -> Result<bool, String> {
    pump_landing(line, |_, _| None, take)
}

/// The same, where long bodies may go to where they belong.
fn pump_landing<T: serde::de::DeserializeOwned>(
    line: &mut Line,
    landing: impl Fn(&T, usize) -> Option<Claim>,
    mut take: impl FnMut(T, Option<Body>),
) -> Result<bool, String> {
    let mut moved = line.push().map_err(|error| error.to_string())?;
    loop {
        match line.next_landing(&mut moved, &landing) {
            Ok(Some((message, body))) => {
                // What is large is used while it is near.
                let is_large = body.as_ref().is_some_and(|body| body.len() >= LARGE);
                take(message, body);
                if is_large {
                    return Ok(true);
                }
            }
            Ok(None) => return Ok(moved),
            Err(error) => return Err(error.to_string()),
        }
    }
}
