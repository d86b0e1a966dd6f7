//! The director, told everything by hand.

use super::*;
use crate::tables::identity::{ShardId, Term};
use crate::tables::message::{Holding, Reach, VERSION};
use crate::tables::spec::Consistency;

const SILENCE: Duration = Duration::from_secs(3);

/// A director, and what it said.
struct Scene {
    director: Director,
    now: Duration,
    n_connections: u64,
    sent: Vec<(Connection, FromDirector)>,
    said: Vec<String>,
    closed: Vec<Connection>,
}

impl Scene {
    /// One with so many servers and a table, which a client has opened. The client is on connection 0, the servers on those after it.
    fn new(n_servers: usize, replication: usize) -> Scene {
        let mut scene = Scene {
            director: Director::new(SILENCE, n_servers),
            now: Duration::from_secs(1),
            n_connections: 0,
            sent: Vec::new(),
            said: Vec::new(),
            closed: Vec::new(),
        };
        scene.tell(Event::Tick);
        scene.hear_new(ToDirector::JoinAsClient { version: VERSION, name: "w".into() });
        (0..n_servers).for_each(|idx| scene.join(&format!("s{}", idx + 1)));
        let spec = TableSpec { replication, n_shards: Some(4), ..TableSpec::dense(100_000) };
        let spec = TableSpec { consistency: Consistency::Async, ..spec };
        scene.hear(0, ToDirector::Open { name: "t".into(), spec });
        scene
    }

    fn tell(&mut self, event: Event) {
        for action in self.director.handle(self.now, event) {
            match action {
                Action::Send { to, message } => self.sent.push((to, message)),
                Action::Close(connection) => self.closed.push(connection),
                Action::Say(sentence) => self.said.push(sentence),
            }
        }
    }

    fn hear(&mut self, from: u64, message: ToDirector) {
        self.tell(Event::Received { from: Connection(from), message });
    }

    fn hear_new(&mut self, message: ToDirector) {
        self.n_connections += 1;
        self.hear(self.n_connections - 1, message);
    }

    fn join(&mut self, name: &str) {
        let reach = Reach { host: String::new(), addresses: Vec::new(), door: String::new() };
        let (version, name, memory_limit) = (VERSION, name.to_string(), u64::MAX);
        self.hear_new(ToDirector::JoinAsServer { version, name, reach, memory_limit });
    }

    /// Time passes in ticks, while some beat every other tick.
    fn pass(&mut self, time: Duration, alive: &[u64]) {
        for tick in 0..time.as_millis() / 100 {
            self.now += Duration::from_millis(100);
            if tick % 2 == 0 {
                alive.iter().for_each(|from| self.hear(*from, ToDirector::Beat { n_bytes: 0 }));
            }
            self.tell(Event::Tick);
        }
    }

    /// Whatever is being filled is full now, and so on until nothing moves.
    fn settle(&mut self) {
        while !self.director.is_settled() {
            let filling = self.holdings().into_iter().find(|(_, it)| !it.filling.is_empty());
            let (place, Holding { term, filling, holders, .. }) = filling.expect("it is stuck");
            let server = filling[0];
            self.hear(u64::from(holders[0].0), ToDirector::Complete { place, term, server });
        }
    }

    fn cannot_reach(&mut self, from: u64, to: u32) {
        let (server, reason) = (ServerId(to), "nobody answers".to_string());
        self.hear(from, ToDirector::CannotReach { server, reason });
    }

    fn holdings(&self) -> Vec<(Place, Holding)> {
        let tables = self.director.tables.values();
        tables.flat_map(|table| table.all()).map(|(place, it)| (place, it.clone())).collect()
    }

    /// The servers that hold something.
    fn holders(&self) -> BTreeSet<u32> {
        self.holdings().iter().flat_map(|(_, it)| &it.holders).map(|id| id.0).collect()
    }

    fn has_said(&self, words: &str) -> bool {
        self.said.iter().any(|sentence| sentence.contains(words))
    }
}

#[test]
fn of_two_servers_that_cannot_reach_each_other_one_is_left_out_and_both_are_named() {
    let mut scene = Scene::new(2, 2);
    scene.cannot_reach(1, 2);
    assert!(scene.has_said("server 1 (s1) cannot reach server 2 (s2): nobody answers"));
    scene.pass(Duration::from_millis(500), &[0, 1, 2]);
    assert_eq!(scene.holders(), BTreeSet::from([1, 2]), "others may have more to say");
    scene.pass(Duration::from_millis(1000), &[0, 1, 2]);
    assert_eq!(scene.holders(), BTreeSet::from([1]));
    assert!(scene.has_said("server 2 (s2) is lost: it is left out, since server 1 (s1) cannot"));
    let is_told = |(to, message): &(Connection, FromDirector)| {
        *to == Connection(2) && matches!(message, FromDirector::Unwelcome { .. })
    };
    assert!(scene.sent.iter().any(is_told) && scene.closed.contains(&Connection(2)));
    // It does not come back at once, but after a while.
    scene.join("s2");
    assert!(scene.closed.contains(&Connection(3)));
    scene.pass(Duration::from_secs(31), &[0, 1]);
    scene.join("s2");
    scene.settle();
    assert_eq!(scene.holders(), BTreeSet::from([1, 3]));
}

#[test]
fn whom_most_cannot_reach_is_left_out() {
    let mut scene = Scene::new(3, 2);
    scene.cannot_reach(1, 2);
    scene.pass(Duration::from_millis(500), &[0, 1, 2, 3]);
    scene.cannot_reach(1, 3);
    scene.pass(Duration::from_millis(600), &[0, 1, 2, 3]);
    assert!(!scene.holders().contains(&1), "{:?}", scene.said);
    scene.settle();
    assert_eq!(scene.holders(), BTreeSet::from([2, 3]));
    scene.pass(Duration::from_secs(5), &[0, 2, 3]);
    assert_eq!(scene.holders(), BTreeSet::from([2, 3]), "what was said of it is over with it");
}

#[test]
fn what_is_said_of_a_silent_server_decides_nothing_and_holds_nothing_up() {
    let mut scene = Scene::new(3, 3);
    scene.pass(Duration::from_secs(5), &[0, 1, 2, 3]);
    scene.cannot_reach(1, 2);
    scene.pass(Duration::from_millis(1500), &[0, 1, 3]);
    assert_eq!(scene.holders(), BTreeSet::from([1, 2, 3]), "{:?}", scene.said);
    // Others are heard meanwhile.
    scene.cannot_reach(1, 3);
    scene.pass(Duration::from_millis(1100), &[0, 1, 3]);
    assert!(scene.has_said("it is left out, since server 1 (s1) cannot reach server 3 (s3)"));
    assert!(!scene.has_said("server 2 (s2) is lost"), "{:?}", scene.said);
    scene.pass(Duration::from_secs(3), &[0, 1, 3]);
    assert!(scene.has_said("server 2 (s2) is lost: nothing was heard"), "{:?}", scene.said);
    assert_eq!(scene.holders().len(), 1);
    assert!(scene.director.lost.is_empty());
}

#[test]
fn servers_that_alone_hold_something_go_on_without_each_other() {
    let mut scene = Scene::new(2, 2);
    let spec = TableSpec { replication: 1, n_shards: Some(4), ..TableSpec::dense(100_000) };
    scene.hear(0, ToDirector::Open { name: "alone".into(), spec });
    scene.cannot_reach(1, 2);
    scene.pass(Duration::from_millis(1100), &[0, 1, 2]);
    assert!(scene.has_said("go on without each other"), "{:?}", scene.said);
    assert_eq!(scene.holders(), BTreeSet::from([1, 2]));
    for (_, holding) in scene.holdings() {
        assert_eq!(holding.holders.len(), 1, "nobody waits for who is not reached");
    }
    assert!(scene.director.lost.is_empty());
}

#[test]
fn one_that_is_reached_again_in_time_stays() {
    let mut scene = Scene::new(2, 2);
    scene.cannot_reach(1, 2);
    scene.pass(Duration::from_millis(500), &[0, 1, 2]);
    scene.hear(1, ToDirector::Reaches { server: ServerId(2) });
    scene.pass(Duration::from_secs(3), &[0, 1, 2]);
    assert_eq!(scene.holders(), BTreeSet::from([1, 2]));
    assert!(scene.has_said("reaches server 2 (s2) again"));
}

#[test]
fn a_silent_server_is_lost_and_one_that_alone_holds_something_is_waited_for() {
    for (replication, is_lost) in [(2, true), (1, false)] {
        let mut scene = Scene::new(2, replication);
        scene.pass(Duration::from_secs(5), &[0, 1, 2]);
        scene.pass(Duration::from_secs(4), &[0, 1]);
        assert_eq!(scene.has_said("server 2 (s2) is lost: nothing was heard"), is_lost);
        scene.pass(Duration::from_secs(30), &[0, 1]);
        assert!(scene.has_said("server 2 (s2) is lost: nothing was heard"));
        assert_eq!(scene.director.lost.is_empty(), replication == 2);
    }
}

#[test]
fn of_two_that_are_silent_at_once_neither_is_lost_before_long() {
    let mut scene = Scene::new(2, 2);
    scene.pass(Duration::from_secs(5), &[0, 1, 2]);
    // Each is all that the other has: to take both for lost would lose everything.
    scene.pass(Duration::from_secs(6), &[0]);
    assert!(!scene.has_said("is lost"), "{:?}", scene.said);
    scene.pass(Duration::from_secs(4), &[0, 1]);
    assert!(scene.has_said("server 2 (s2) is lost: nothing was heard"), "{:?}", scene.said);
    assert_eq!(scene.holders(), BTreeSet::from([1]));
    assert!(scene.director.lost.is_empty());
}

#[test]
fn the_own_sleep_is_nobodys_silence() {
    let mut scene = Scene::new(2, 2);
    scene.pass(Duration::from_secs(2), &[0, 1, 2]);
    scene.now += Duration::from_secs(60);
    scene.tell(Event::Tick);
    scene.pass(Duration::from_secs(2), &[0, 1, 2]);
    assert!(!scene.has_said("is lost") && !scene.has_said("does not take part"));
}

#[test]
fn who_leaves_goes_when_others_have_what_it_held() {
    let mut scene = Scene::new(2, 1);
    let held: Vec<Place> = scene
        .holdings()
        .iter()
        .filter(|(_, it)| it.holders == [ServerId(2)])
        .map(|it| it.0)
        .collect();
    assert!(!held.is_empty());
    scene.hear(2, ToDirector::Leave);
    assert!(scene.holders().contains(&2) && !scene.closed.contains(&Connection(2)));
    scene.settle();
    assert_eq!(scene.holders(), BTreeSet::from([1]));
    let may_leave = (Connection(2), FromDirector::MayLeave);
    assert!(scene.sent.contains(&may_leave) && scene.closed.contains(&Connection(2)));
    let term = |place| scene.holdings().iter().find(|(at, _)| *at == place).map(|(_, it)| it.term);
    assert!(held.into_iter().all(|place| term(place) == Some(Term(2))));
}

/// The truth of it: what a director has not heard it cannot know, and who leaves where there is one other leaves everything to that one.
#[test]
fn one_that_leaves_to_its_only_partner_leaves_nothing_behind_where_that_one_is_gone_unheard_of() {
    let mut scene = Scene::new(2, 2);
    scene.hear(2, ToDirector::Leave);
    assert_eq!(scene.holders(), BTreeSet::from([1]));
    assert!(scene.sent.contains(&(Connection(2), FromDirector::MayLeave)));
    scene.tell(Event::Closed { from: Connection(1) });
    assert_eq!(scene.director.lost.len(), 4);
    // Heard of before, it stays until another comes.
    let mut scene = Scene::new(2, 2);
    scene.tell(Event::Closed { from: Connection(1) });
    scene.hear(2, ToDirector::Leave);
    assert_eq!(scene.holders(), BTreeSet::from([2]));
    scene.join("s3");
    scene.settle();
    assert_eq!(scene.holders(), BTreeSet::from([3]));
    assert!(scene.director.lost.is_empty());
}

#[test]
fn what_one_server_alone_held_is_lost_with_it_and_named() {
    let mut scene = Scene::new(2, 1);
    scene.tell(Event::Closed { from: Connection(2) });
    let error = scene.director.lost.values().next().unwrap().to_string();
    assert!(error.ends_with(
        "of the table t was lost with server 2 (s2): nobody else held it (replication = 1)"
    ));
    let lost = |(to, message): &(Connection, FromDirector)| {
        *to == Connection(0) && matches!(message, FromDirector::Lost { .. })
    };
    assert!(scene.sent.iter().any(lost));
}

#[test]
fn who_is_there_and_takes_no_part_is_dropped_by_name_and_may_come_again() {
    let mut scene = Scene::new(1, 1);
    scene.hear_new(ToDirector::JoinAsClient { version: VERSION, name: "x".into() });
    scene.sent.clear();
    let (client, reason) = ("w".to_string(), "it is not in the view".to_string());
    scene.tell(Event::Dropped { client, reason });
    let is_told = |(to, message): &(Connection, FromDirector)| {
        let is_of_it = matches!(message, FromDirector::ClientGone { id, .. } if id.0 == 1);
        is_of_it.then_some(to.0)
    };
    let told: BTreeSet<u64> = scene.sent.iter().filter_map(is_told).collect();
    assert_eq!(told, BTreeSet::from([0, 1, 2]), "itself, the server and the other client");
    assert_eq!(scene.closed, [Connection(0)]);
    assert!(scene.has_said("w (client 1) does not take part any more: it is not in the view"));
    scene.sent.clear();
    scene.hear_new(ToDirector::JoinAsClient { version: VERSION, name: "w".into() });
    let welcomed = |(_, message): &(Connection, FromDirector)| matches!(message, FromDirector::WelcomeClient { id } if id.0 == 3);
    assert!(scene.sent.iter().any(welcomed));
}

#[test]
fn clients_that_are_gone_are_told_as_runs() {
    let mut scene = Scene::new(1, 1);
    for _ in 0..50 {
        scene.hear_new(ToDirector::JoinAsClient { version: VERSION, name: "w".into() });
        let last = Connection(scene.n_connections - 1);
        scene.tell(Event::Closed { from: last });
    }
    scene.sent.clear();
    scene.join("late");
    let ranges = vec![[ClientId(2), ClientId(51)]];
    let told = (Connection(scene.n_connections - 1), FromDirector::ClientsGone { ranges });
    assert!(scene.sent.contains(&told));
}

#[test]
fn words_of_an_older_term_change_nothing() {
    let mut scene = Scene::new(2, 2);
    scene.join("s3");
    let (place, before) = scene.holdings().into_iter().find(|it| !it.1.filling.is_empty()).unwrap();
    let (term, server) = (Term(before.term.0 - 1), before.filling[0]);
    scene.hear(1, ToDirector::Complete { place, term, server });
    let place = Place { shard: ShardId(99), ..place };
    scene.hear(1, ToDirector::Complete { place, term: before.term, server });
    assert!(scene.holdings().iter().any(|it| it.1 == before));
}
