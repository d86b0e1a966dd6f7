//! Any bytes as what directors, servers and clients of tables say to each other: no panic, and no memory beyond what was allowed or came.

use std::time::Duration;

use manyhands_net::tables::client::{self, Client, Request};
use manyhands_net::tables::director::{self, Connection, Director};
use manyhands_net::tables::identity::{ClientId, Place, ServerId, ShardId, TableId, Term, Version};
use manyhands_net::tables::message::{
    Author, Body, Follow, FromDirector, FromServer, Holding, Opened, Operation, Packing, Reach,
    ToDirector, ToServer, TurnOf, Until, VERSION, Wanted,
};
use manyhands_net::tables::rules::Rules;
use manyhands_net::tables::server::{Event, Server};
use manyhands_net::tables::spec::{Consistency, TableSpec};
use manyhands_net::tables::store::RowInit;
use serde::Serialize;
use serde::de::DeserializeOwned;

const NOW: Duration = Duration::from_secs(1);
const OWN: ServerId = ServerId(1);
const OTHER: ServerId = ServerId(2);
const CLIENT: ClientId = ClientId(1);

/// The first byte says who hears it. Then each message is a line, and the bytes beside it are the line after.
pub(crate) fn body(bytes: &[u8]) {
    let Some((who, bytes)) = bytes.split_first() else { return };
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    match who % 4 {
        0 => server_hears_client(&lines),
        1 => server_hears_server(&lines),
        2 => director_hears(&lines),
        _ => client_hears(&lines),
    }
}

fn messages<'l, T: DeserializeOwned + 'l>(
    lines: &'l [&[u8]],
) -> impl Iterator<Item = (T, Option<Body>)> + 'l {
    lines.chunks(2).filter_map(|pair| {
        let message = serde_json::from_slice(pair[0]).ok()?;
        let beside = pair.get(1).filter(|beside| !beside.is_empty());
        Some((message, beside.map(|beside| Body::new(beside.to_vec()))))
    })
}

fn opened() -> [Opened; 3] {
    let dense = TableSpec { consistency: Consistency::Async, ..TableSpec::dense(8) };
    let bsp = TableSpec { n_shards: Some(1), ..TableSpec::dense(4) };
    let rows = TableSpec::rows(2, RowInit::Zeros);
    let rows = TableSpec { consistency: Consistency::Ssp { staleness: 1 }, ..rows };
    let of = |id: u32, spec: TableSpec| {
        let spec = TableSpec { n_shards: Some(1), ..spec };
        Opened { id: TableId(id), name: format!("t{id}"), spec }
    };
    [of(1, dense), of(2, bsp), of(3, rows)]
}

fn place(table: u32) -> Place {
    Place { table: TableId(table), shard: ShardId(0) }
}

/// A server with three tables, whose first holder is the first of these.
fn server(holders: [ServerId; 2]) -> Server {
    let mut server = Server::new(OWN, Rules::with_built_in(), 1 << 16);
    for opened in opened() {
        let place = Place { table: opened.id, shard: ShardId(0) };
        server.handle(NOW, Event::FromDirector(FromDirector::Table(opened)));
        let (holders, filling) = (holders.to_vec(), Vec::new());
        let holding = Holding { number: 1, term: Term(1), holders, filling };
        server.handle(NOW, Event::FromDirector(FromDirector::Holds { place, holding }));
    }
    server
}

fn server_hears_client(lines: &[&[u8]]) {
    let mut server = server([OWN, OTHER]);
    for (message, body) in messages::<ToServer>(lines) {
        server.handle(NOW, Event::FromClient { client: CLIENT, message, body });
    }
    server.handle(NOW, Event::Tick);
}

fn server_hears_server(lines: &[&[u8]]) {
    let mut server = server([OTHER, OWN]);
    for (message, body) in messages::<Follow>(lines) {
        server.handle(NOW, Event::FromFirst { server: OTHER, message, body });
    }
    server.handle(NOW, Event::Tick);
}

fn director_hears(lines: &[&[u8]]) {
    let mut director = Director::new(Duration::from_secs(1), 1);
    for (idx, (message, _)) in messages::<ToDirector>(lines).enumerate() {
        let from = Connection(idx as u64 % 3);
        director.handle(NOW, director::Event::Received { from, message });
    }
    director.handle(NOW + NOW, director::Event::Tick);
    director.is_settled();
}

fn client_hears(lines: &[&[u8]]) {
    let mut client = Client::new(true);
    client.handle(NOW, client::Event::FromDirector(FromDirector::WelcomeClient { id: CLIENT }));
    let wanted = Wanted::Values { first: 0, n: 4 };
    let read = Request::Read { place: place(1), until: Until::Now, wanted, keys: None };
    let operation = Operation::Finish { clock: 0 };
    let finish = Request::Do { place: place(1), operation, body: None };
    let ticket = client.submit(vec![finish, read]);
    for (message, body) in messages::<Result<FromServer, FromDirector>>(lines) {
        let event = match message {
            Ok(message) => client::Event::FromServer { server: OWN, message, body },
            Err(message) => client::Event::FromDirector(message),
        };
        client.handle(NOW, event);
        client.handle(NOW, client::Event::Linked(OWN));
    }
    client.handle(NOW + NOW, client::Event::Tick);
    client.waits_for(ticket);
    client.table("t1");
    client.take(ticket);
}

/// Lines and what is beside them.
fn said<T: Serialize>(who: u8, messages: &[(T, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![who];
    for (message, beside) in messages {
        bytes.extend(serde_json::to_vec(message).expect("plain data is written"));
        bytes.push(b'\n');
        bytes.extend_from_slice(beside);
        bytes.push(b'\n');
    }
    bytes
}

fn operations() -> Vec<(Place, Operation, &'static [u8])> {
    let (rate, share, packing) = (1.0.into(), 1.0.into(), Packing::default());
    let push = |n, turn| Operation::Push { first: 0, n, clock: 0, rate, share, turn, packing };
    let turn = Some(TurnOf { step: 0, grains: [0, 2], n_grains: 4 });
    let (divisor, grains) = (1.0.into(), [0, 2]);
    let part = Operation::Part { step: 0, grains, n_grains: 4, rate, divisor, n: 4, packing };
    let load = Operation::Load { is_first: true, is_last: true };
    vec![
        (place(1), push(8, None), &[0; 32]),
        (place(1), push(8, turn), &[0; 32]),
        (place(1), Operation::Assign { first: 2, n: 2 }, &[0; 8]),
        (place(2), part, &[0; 16]),
        (place(3), Operation::Enter { clock: 0 }, &[]),
        (place(3), push(1, None), &[7; 16]),
        (place(3), Operation::Finish { clock: 0 }, &[]),
        (place(1), load, &[0; 40]),
    ]
}

/// What is said in a run where nothing goes wrong.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut numbers = std::collections::BTreeMap::new();
    let mut next = |place: Place| {
        let number = numbers.entry(place).or_insert(0);
        *number += 1;
        *number
    };
    let mut asked: Vec<(ToServer, &[u8])> = Vec::new();
    let mut followed: Vec<(Follow, &[u8])> = Vec::new();
    for (place, operation, beside) in operations() {
        let number = next(place);
        let (version, author) = (Version(number), Some(Author { client: CLIENT, number }));
        asked.push((ToServer::Do { place, number, operation: operation.clone() }, beside));
        let term = Term(1);
        followed.push((Follow::Do { place, term, version, author, operation }, beside));
    }
    for (table, n, keys) in [(1, 8, &[][..]), (3, 1, &[7; 8])] {
        let (place, wanted) = (place(table), Wanted::Values { first: 0, n });
        asked.push((ToServer::Read { place, id: 1, after: 0, until: Until::Now, wanted }, keys));
    }
    asked.push((ToServer::Forget { place: place(1), id: 1 }, &[]));
    followed.push((Follow::Align { place: place(1), term: Term(1), number: 2 }, &[]));
    let (is_first, is_last) = (true, false);
    let (place, term, version) = (place(1), Term(2), Version(9));
    followed.push((Follow::Fill { place, term, version, is_first, is_last }, &[1; 60]));
    let reach = Reach { host: "h".into(), addresses: Vec::new(), door: "d".into() };
    let join = |name: &str| ToDirector::JoinAsServer {
        version: VERSION,
        name: name.into(),
        reach: reach.clone(),
        memory_limit: 1,
    };
    let directed: Vec<(ToDirector, &[u8])> = vec![
        (join("a"), &[]),
        (join("b"), &[]),
        (ToDirector::JoinAsClient { version: VERSION, name: "w".into() }, &[]),
        (ToDirector::CannotReach { server: OTHER, reason: "no".into() }, &[]),
        (ToDirector::Beat { n_bytes: 5 }, &[]),
        (ToDirector::Open { name: "t1".into(), spec: opened()[0].spec.clone() }, &[]),
        (ToDirector::Complete { place, term: Term(1), server: OTHER }, &[]),
        (ToDirector::Leave, &[]),
    ];
    let holders = vec![OWN, OTHER];
    let holding = Holding { number: 1, term: Term(1), holders, filling: Vec::new() };
    let ranges = vec![[ClientId(3), ClientId(9)]];
    let told: Vec<(Result<FromServer, FromDirector>, &[u8])> = vec![
        (Err(FromDirector::Server { id: OWN, name: "a".into(), reach: reach.clone() }), &[]),
        (Err(FromDirector::Table(opened()[0].clone())), &[]),
        (Err(FromDirector::Holds { place, holding }), &[]),
        (Err(FromDirector::ClientsGone { ranges }), &[]),
        (Ok(FromServer::Done { place, number: 1, version: Version(1) }), &[]),
        (Ok(FromServer::Elsewhere { place, term: Term(1), has: Some(0) }), &[]),
        (Ok(FromServer::Read { place, id: 0, version, steps: 0, is_last: true }), &[0; 16]),
    ];
    vec![said(0, &asked), said(1, &followed), said(2, &directed), said(3, &told)]
}
