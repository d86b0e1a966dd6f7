//! Two servers that hold one shard, with every message carried by hand.

use super::kept::Kept;
use super::*;
use crate::tables::identity::ShardId;
use crate::tables::message::{Holding, Operation, Packing, TurnOf, Until, Wanted, floats};
use crate::tables::spec::{Consistency, TableSpec};

const NOW: Duration = Duration::ZERO;
const PLACE: Place = Place { table: TableId(1), shard: ShardId(0) };
const A: ServerId = ServerId(1);
const B: ServerId = ServerId(2);
const ONE: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);

fn opened() -> Opened {
    let consistency = Consistency::Async;
    let spec = TableSpec { consistency, n_shards: Some(1), ..TableSpec::dense(4) };
    Opened { id: PLACE.table, name: "t".into(), spec }
}

fn server(id: ServerId) -> Server {
    let mut server = Server::new(id, Rules::with_built_in(), 1 << 20);
    server.handle(NOW, Event::FromDirector(FromDirector::Table(opened())));
    server
}

fn holding(number: u64, term: u64, holders: &[ServerId], filling: &[ServerId]) -> Event {
    let (holders, filling) = (holders.to_vec(), filling.to_vec());
    let holding = Holding { number, term: Term(term), holders, filling };
    Event::FromDirector(FromDirector::Holds { place: PLACE, holding })
}

/// A first holder and its copy.
struct Pair {
    first: Server,
    copy: Server,
    /// What the first holder has said to the copy, and the copy has not heard.
    underway: Vec<(Follow, Option<Body>)>,
    /// What clients were told.
    told: Vec<(ClientId, FromServer, Option<Body>)>,
}

impl Pair {
    fn new() -> Pair {
        let (first, copy) = (server(A), server(B));
        let mut pair = Pair { first, copy, underway: Vec::new(), told: Vec::new() };
        pair.copy.handle(NOW, holding(1, 1, &[A, B], &[]));
        pair.tell(holding(1, 1, &[A, B], &[]));
        pair.tell(Event::Linked(B));
        pair.carry();
        pair
    }

    /// The first holder hears something.
    fn tell(&mut self, event: Event) {
        for action in self.first.handle(NOW, event) {
            match action {
                Action::ToCopy { message, body, .. } => self.underway.push((message, body)),
                Action::ToClient { client, message, body } => {
                    self.told.push((client, message, body));
                }
                _ => {}
            }
        }
    }

    /// The copy hears what is underway, and the first holder its answers.
    fn carry(&mut self) {
        while !self.underway.is_empty() {
            for (message, body) in std::mem::take(&mut self.underway) {
                let event = Event::FromFirst { server: A, message, body };
                for action in self.copy.handle(NOW, event) {
                    if let Action::ToFirst { message, .. } = action {
                        self.tell(Event::FromCopy { server: B, message });
                    }
                }
            }
        }
    }

    /// The first holder is lost, and the copy answers from now on.
    fn take_over(&mut self) {
        self.told.clear();
        std::mem::swap(&mut self.first, &mut self.copy);
        self.tell(holding(2, 2, &[B], &[]));
    }

    fn told(&mut self) -> Vec<FromServer> {
        std::mem::take(&mut self.told).into_iter().map(|(_, message, _)| message).collect()
    }

    /// The values, as a client reads them.
    fn values(&mut self) -> Vec<f32> {
        self.told.clear();
        self.tell(read(OTHER, 99));
        self.carry();
        let (_, message, body) = self.told.pop().unwrap();
        assert!(matches!(message, FromServer::Read { .. }), "{message:?}");
        floats(&body.unwrap()).to_vec()
    }
}

fn push_of(client: ClientId, number: u64, values: [f32; 4], turn: Option<TurnOf>) -> Event {
    let (rate, share) = (1.0.into(), 1.0.into());
    let packing = Packing::default();
    let operation = Operation::Push { first: 0, n: 4, clock: 0, rate, share, turn, packing };
    let body = Some(Body::new(values.iter().flat_map(|value| value.to_le_bytes()).collect()));
    Event::FromClient { client, message: ToServer::Do { place: PLACE, number, operation }, body }
}

fn push(client: ClientId, number: u64, value: f32) -> Event {
    push_of(client, number, [value; 4], None)
}

fn read(client: ClientId, id: u64) -> Event {
    let wanted = Wanted::Values { first: 0, n: 4 };
    let message = ToServer::Read { place: PLACE, id, after: 0, until: Until::Now, wanted };
    Event::FromClient { client, message, body: None }
}

fn gone(id: ClientId) -> Event {
    Event::FromDirector(FromDirector::ClientGone { id, reason: "a test".into() })
}

#[test]
fn a_push_is_acknowledged_when_both_have_it() {
    let mut pair = Pair::new();
    pair.tell(push(ONE, 1, 2.0));
    assert!(pair.told().is_empty());
    pair.carry();
    assert!(matches!(pair.told()[..], [FromServer::Done { number: 1, .. }]));
    pair.take_over();
    assert_eq!(pair.values(), [2.0; 4]);
}

#[test]
fn a_push_that_was_refused_is_refused_again_by_whoever_is_asked() {
    let mut pair = Pair::new();
    let refused = |told: Vec<FromServer>| match &told[..] {
        [FromServer::Refused { number: 1, error: TableError::NotFinite { .. }, .. }] => {}
        other => panic!("{other:?}"),
    };
    pair.tell(push(ONE, 1, f32::NAN));
    pair.carry();
    refused(pair.told());
    // The answer is lost with the link, so it is sent again.
    pair.tell(push(ONE, 1, f32::NAN));
    refused(pair.told());
    pair.take_over();
    pair.tell(push(ONE, 1, f32::NAN));
    refused(pair.told());
    pair.tell(push(ONE, 2, 1.0));
    pair.carry();
    assert!(matches!(pair.told()[..], [FromServer::Done { number: 2, .. }]));
}

#[test]
fn refusals_travel_with_the_state_of_a_shard() {
    let mut pair = Pair::new();
    pair.tell(push(ONE, 1, f32::INFINITY));
    pair.carry();
    pair.take_over();
    let mut filled = filled_by(pair.first);
    let told = filled.handle(NOW, push(ONE, 1, f32::INFINITY));
    assert!(
        matches!(&told[..], [Action::ToClient { message: FromServer::Refused { .. }, .. }]),
        "{told:?}"
    );
}

#[test]
fn turns_that_were_counted_travel_with_the_state_of_a_shard() {
    let turn = |start, end| Some(TurnOf { step: 0, grains: [start, end], n_grains: 4 });
    let mut pair = Pair::new();
    pair.tell(push_of(ONE, 1, [1.0; 4], turn(0, 2)));
    pair.carry();
    pair.take_over();
    let mut filled = filled_by(pair.first);
    // The same again, by another worker, and then what is missing.
    for (number, turn) in [(1, turn(0, 2)), (2, turn(2, 4))] {
        let told = filled.handle(NOW, push_of(OTHER, number, [1.0; 4], turn));
        assert!(
            matches!(&told[..], [Action::ToClient { message: FromServer::Done { .. }, .. }]),
            "{told:?}"
        );
    }
    let told = filled.handle(NOW, read(OTHER, 99));
    let [Action::ToClient { body: Some(body), .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(floats(body).to_vec(), [2.0; 4]);
}

/// The lost one comes back with nothing, is filled by the one that took over, and answers from then on.
fn filled_by(mut first: Server) -> Server {
    let mut copy = server(A);
    copy.handle(NOW, holding(3, 2, &[B], &[A]));
    let mut pieces = first.handle(NOW, holding(3, 2, &[B], &[A]));
    pieces.extend(first.handle(NOW, Event::Linked(A)));
    while !pieces.is_empty() {
        for action in std::mem::take(&mut pieces) {
            let Action::ToCopy { message, body, .. } = action else { continue };
            for action in copy.handle(NOW, Event::FromFirst { server: B, message, body }) {
                let Action::ToFirst { message, .. } = action else { continue };
                pieces.extend(first.handle(NOW, Event::FromCopy { server: A, message }));
            }
        }
    }
    copy.handle(NOW, holding(4, 3, &[A], &[]));
    copy
}

#[test]
fn a_turn_counts_once_whoever_brings_it_and_wherever() {
    let mut pair = Pair::new();
    let turn = |step, start, end| Some(TurnOf { step, grains: [start, end], n_grains: 4 });
    pair.tell(push_of(ONE, 1, [1.0; 4], turn(0, 0, 2)));
    pair.carry();
    assert!(matches!(pair.told()[..], [FromServer::Done { .. }]));
    // The worker was taken for lost before it said so: others bring it again, also after a takeover.
    pair.tell(push_of(OTHER, 1, [1.0; 4], turn(0, 0, 2)));
    pair.carry();
    assert!(matches!(pair.told()[..], [FromServer::Done { .. }]), "it is there, so it is done");
    assert_eq!(pair.values(), [1.0; 4]);
    pair.take_over();
    pair.tell(push_of(OTHER, 2, [1.0; 4], turn(0, 0, 1)));
    pair.tell(push_of(OTHER, 3, [1.0; 4], turn(0, 2, 4)));
    pair.tell(push_of(ONE, 2, [1.0; 4], turn(0, 0, 4)));
    pair.tell(push_of(ONE, 3, [1.0; 4], turn(1, 0, 2)));
    assert_eq!(pair.values(), [3.0; 4]);
    let turn = Some(TurnOf { step: 0, grains: [3, 2], n_grains: 4 });
    pair.tell(push_of(ONE, 4, [1.0; 4], turn));
    assert!(matches!(pair.told()[..], [FromServer::Refused { .. }]));
}

#[test]
fn a_read_that_is_forgotten_is_not_answered() {
    let mut pair = Pair::new();
    pair.tell(push(ONE, 1, 1.0));
    pair.tell(read(ONE, 7));
    pair.tell(read(ONE, 8));
    assert!(pair.told().is_empty(), "the copy has not got what they show");
    let message = ToServer::Forget { place: PLACE, id: 7 };
    pair.tell(Event::FromClient { client: ONE, message, body: None });
    pair.carry();
    let told = pair.told();
    assert!(
        matches!(told[..], [FromServer::Done { .. }, FromServer::Read { id: 8, .. }]),
        "{told:?}"
    );
}

#[test]
fn who_reads_what_cannot_be_is_named() {
    let mut pair = Pair::new();
    pair.tell(Event::Named { client: ONE, name: "w7".into() });
    let mut refused = |n: u64| {
        let wanted = Wanted::Values { first: 0, n };
        let message = ToServer::Read { place: PLACE, id: 1, after: 0, until: Until::Now, wanted };
        pair.tell(Event::FromClient { client: ONE, message, body: None });
        match pair.told().pop() {
            Some(FromServer::NotRead { error, .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(5).starts_with("w7 said what cannot be: elements 0..5 are not all in"));
    assert_eq!(
        refused((1 << 28) + 1),
        "w7: a read of the table t has 1073741828 bytes for one shard, and at most 1073741824 go at once: take fewer keys, or open the table with more shards"
    );
}

#[test]
fn nothing_is_kept_of_a_client_that_is_gone_but_its_last_number() {
    let mut pair = Pair::new();
    pair.tell(push(ONE, 1, 1.0));
    pair.tell(push(ONE, 2, f32::NAN));
    pair.tell(read(ONE, 1));
    pair.tell(gone(ONE));
    pair.carry();
    assert!(pair.told().is_empty(), "nobody is told what nobody hears");
    for server in [&pair.first, &pair.copy] {
        let kept = server.shards[&PLACE].kept().unwrap();
        assert!(!kept.knows(ONE) && kept.numbers.is_empty());
        assert_eq!(server.standings()[0].numbers, BTreeMap::from([(ONE, 2)]));
    }
    pair.tell(push(ONE, 3, 1.0));
    assert!(matches!(pair.told()[..], [FromServer::Unwelcome { .. }]));
    assert_eq!(pair.values(), [1.0; 4]);
}

#[test]
fn one_who_joins_late_hears_who_is_gone_as_runs_of_numbers() {
    let mut server = server(A);
    let ranges = vec![[ClientId(1), ClientId(1000)]];
    server.handle(NOW, Event::FromDirector(FromDirector::ClientsGone { ranges }));
    server.handle(NOW, holding(1, 1, &[A], &[]));
    let told = server.handle(NOW, push(ClientId(77), 1, 1.0));
    assert!(matches!(told[..], [Action::ToClient { message: FromServer::Unwelcome { .. }, .. }]));
}

#[test]
fn only_questions_are_kept_for_tables_that_are_not_known_yet() {
    let mut server = Server::new(B, Rules::with_built_in(), u64::MAX);
    let body = || Some(Body::new(vec![0; 1000]));
    let (place, term, version) = (PLACE, Term(1), Version(1));
    for _ in 0..100 {
        let message = Follow::Align { place, term, number: 1 };
        server.handle(NOW, Event::FromFirst { server: A, message, body: None });
        let operation = Operation::Enter { clock: 0 };
        let message = Follow::Do { place, term, version, author: None, operation };
        server.handle(NOW, Event::FromFirst { server: A, message, body: body() });
    }
    assert_eq!(server.early.len(), 1);
    let told = server.handle(NOW, Event::FromDirector(FromDirector::Table(opened())));
    let stands = |action: &Action| {
        matches!(action, Action::ToFirst { server: A, message: Followed::Stands { .. } })
    };
    assert!(matches!(&told[..], [one] if stands(one)), "{told:?}");
}

#[test]
fn what_arrives_of_a_shard_counts_as_memory_before_it_is_whole() {
    let mut pair = Pair::new();
    pair.tell(push(ONE, 1, 1.0));
    pair.carry();
    let mut copy = server(ServerId(3));
    copy.handle(NOW, holding(2, 1, &[A, B], &[ServerId(3)]));
    let kept = pair.first.shards[&PLACE].kept().unwrap();
    let first = saved::pieces(kept, true).swap_remove(0);
    let (place, term, version) = (PLACE, Term(1), kept.version);
    let message = Follow::Fill { place, term, version, is_first: true, is_last: false };
    assert_eq!(copy.n_bytes(), 0);
    copy.handle(NOW, Event::FromFirst { server: A, message, body: Some(first) });
    assert!(copy.n_bytes() >= 16, "{}", copy.n_bytes());
    // Whoever asks how far it is begins anew: what came before is worth nothing.
    let message = Follow::Align { place, term, number: 2 };
    copy.handle(NOW, Event::FromFirst { server: A, message, body: None });
    assert_eq!(copy.n_bytes(), 0);
}

#[test]
fn a_shard_that_does_not_fit_is_refused_with_its_first_piece_and_one_that_does_is_filled() {
    let mut pair = Pair::new();
    pair.tell(push(ONE, 1, 1.0));
    pair.carry();
    let kept = pair.first.shards[&PLACE].kept().unwrap();
    let needed = Kept::n_bytes_of_new(&opened(), PLACE, &Rules::with_built_in());
    assert_eq!(needed, kept.n_bytes(), "what is asked for is what is counted");
    for (limit, fits) in [(needed - 1, false), (needed, true)] {
        let mut copy = Server::new(ServerId(3), Rules::with_built_in(), limit);
        copy.handle(NOW, Event::FromDirector(FromDirector::Table(opened())));
        copy.handle(NOW, holding(2, 1, &[A, B], &[ServerId(3)]));
        let pieces = saved::pieces(kept, true);
        let last = pieces.len() - 1;
        let mut told = Vec::new();
        for (idx, piece) in pieces.into_iter().enumerate() {
            let (place, term, version) = (PLACE, Term(1), kept.version);
            let (is_first, is_last) = (idx == 0, idx == last);
            let message = Follow::Fill { place, term, version, is_first, is_last };
            let event = Event::FromFirst { server: A, message, body: Some(piece) };
            told.extend(copy.handle(NOW, event));
        }
        let is_expected = |action: &Action| match action {
            Action::ToFirst { message: Followed::Has { .. }, .. } => fits,
            Action::ToDirector(ToDirector::CannotHold { .. }) => !fits,
            _ => false,
        };
        assert!(matches!(&told[..], [one] if is_expected(one)), "{limit}: {told:?}");
    }
}
