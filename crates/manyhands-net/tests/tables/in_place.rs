//! Dense values that go from, and to, where the caller has them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use manyhands_net::tables::client::{PushSettings, StepPart, Table};
use manyhands_net::tables::error::TableError;
use manyhands_net::tables::rules::{At, Rule, RuleError, RuleSpec, Rules};
use manyhands_net::tables::spec::{Consistency, TableSpec};

use crate::cluster::{ALL, Cluster, Kind};

/// Long enough that bodies of shards land where they belong.
const N: usize = 200_000;

fn dense(consistency: Consistency, replication: usize) -> TableSpec {
    TableSpec { consistency, replication, n_shards: Some(4), ..TableSpec::dense(N as u64) }
}

/// Pushes of one worker change values that another one is being sent: every read shows each shard as it was at one moment.
#[test]
fn who_reads_while_others_push_sees_whole_pushes() {
    for kind in ALL {
        let cluster = Cluster::new(kind, 2);
        let (n_workers, n_rounds) = (3, 12);
        std::thread::scope(|scope| {
            for worker in 0..n_workers {
                let cluster = &cluster;
                scope.spawn(move || {
                    let tables = cluster.client(&format!("w{worker}"));
                    let table = tables.open("t", dense(Consistency::Async, 2)).unwrap();
                    let (ones, mut out) = (vec![1.0; N], vec![-1.0; N]);
                    for round in 1..=n_rounds {
                        let settings = PushSettings::default();
                        table.push_and_wait(0..N, &ones, settings).unwrap();
                        table.pull(0..N, &mut out).unwrap().wait().unwrap();
                        for shard in table.shards() {
                            let shown = &out[shard.start as usize..shard.end as usize];
                            let least = round as f32..=(round + n_rounds * (n_workers - 1)) as f32;
                            assert!(least.contains(&shown[0]), "{kind:?}: {}", shown[0]);
                            assert!(shown.iter().all(|value| *value == shown[0]), "{kind:?}");
                        }
                    }
                });
            }
        });
        let mut out = vec![0.0; N];
        let tables = cluster.client("reader");
        let table = tables.open("t", dense(Consistency::Async, 2)).unwrap();
        table.pull(0..N, &mut out).unwrap().wait().unwrap();
        assert!(out.iter().all(|value| *value == (n_workers * n_rounds) as f32), "{kind:?}");
    }
}

/// Steps that end a test which nothing else ends.
const MOST_STEPS: u64 = 20_000;

/// How many steps there are: all workers do as many.
struct Course {
    n_begun: u64,
    n_steps: u64,
}

impl Course {
    /// Whether there is such a step. Then it is begun.
    fn begins(&mut self, step: u64) -> bool {
        self.n_begun = self.n_begun.max(self.n_steps.min(step + 1));
        step < self.n_steps
    }
}

#[test]
fn steps_go_on_with_what_is_lent_when_servers_are_lost() {
    for kind in ALL {
        let mut cluster = Cluster::new(kind, 2);
        let clients: Vec<_> = (0..2).map(|worker| cluster.client(&format!("w{worker}"))).collect();
        let open = |tables: &manyhands_net::tables::client::Tables| {
            tables.open("t", dense(Consistency::Bsp, 2)).unwrap()
        };
        let tables: Vec<_> = clients.iter().map(open).collect();
        let course = Mutex::new(Course { n_begun: 0, n_steps: MOST_STEPS });
        let course = &course;
        std::thread::scope(|scope| {
            let work = |(worker, table): (usize, &Table)| {
                let table = table.clone();
                scope.spawn(move || {
                    let (values, mut out) = (vec![1.0 + worker as f32; N], vec![0.0; N]);
                    for step in 0.. {
                        if !course.lock().unwrap().begins(step) {
                            break;
                        }
                        let (grains, n_grains) = (worker..worker + 1, 2);
                        let part = StepPart { step, grains, n_grains, rate: 1.0, divisor: 1.0 };
                        table.step(&part, 0..N as u64, &values, &mut out).unwrap();
                        let wanted = (step + 1) as f32 * 3.0;
                        assert!(out.iter().all(|value| *value == wanted), "{kind:?} {step}");
                    }
                })
            };
            let workers: Vec<_> = tables.iter().enumerate().map(work).collect();
            let none_is_done = || workers.iter().all(|worker| !worker.is_finished());
            let n_begun = || course.lock().unwrap().n_begun;
            for lost in 0..2 {
                cluster.settled();
                let before = n_begun();
                while n_begun() == before {
                    assert!(none_is_done(), "{kind:?}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(cluster.servers[lost].take());
                cluster.add_server();
            }
            assert!(none_is_done(), "{kind:?}: steps were underway at both losses");
            let mut course = course.lock().unwrap();
            course.n_steps = course.n_begun + 3;
        });
    }
}

/// Adds, when it may.
struct Gated(Arc<AtomicBool>);

impl Rule for Gated {
    fn n_slots(&self) -> usize {
        0
    }

    fn apply(
        &mut self,
        _at: At,
        values: &mut [f32],
        _slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        while !self.0.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        values.iter_mut().zip(update).for_each(|(value, update)| *value += update);
        Ok(())
    }
}

#[test]
fn who_gives_a_push_up_has_its_memory_back_and_the_push_goes_on() {
    for kind in [Kind::InProcess, Kind::Tcp] {
        let may_go_on = Arc::new(AtomicBool::new(false));
        let mut cluster = Cluster::new(kind, 0);
        let gate = Arc::clone(&may_go_on);
        cluster.add_server_with(|settings| {
            let gated = move |_: &serde_json::Value| {
                Ok::<Box<dyn Rule>, RuleError>(Box::new(Gated(Arc::clone(&gate))))
            };
            settings.rules = Rules::with_built_in().add("gated", gated);
        });
        let stop = Arc::new(AtomicBool::new(false));
        let tables = cluster.client_with("w0", |settings| settings.stop = Arc::clone(&stop));
        let rule = RuleSpec::Own { name: "gated".into(), settings: serde_json::Value::Null };
        let n = 2_000_000usize;
        let spec = TableSpec { consistency: Consistency::Async, ..TableSpec::dense(n as u64) };
        let table = tables.open("t", TableSpec { rule, ..spec }).unwrap();
        let mut values = vec![1.0; n];
        // The server stands still with the first shard, so most of it has not left yet.
        let given_up = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                stop.store(true, Ordering::SeqCst);
            });
            table.push_and_wait(0..n, &values, PushSettings::default())
        });
        assert!(matches!(given_up, Err(TableError::Stopped { .. })), "{given_up:?}");
        stop.store(false, Ordering::SeqCst);
        values.fill(f32::NAN);
        drop(values);
        may_go_on.store(true, Ordering::SeqCst);
        tables.flush().unwrap();
        let mut out = vec![0.0; n];
        table.pull(0..n, &mut out).unwrap().wait().unwrap();
        assert!(out.iter().all(|value| *value == 1.0), "{kind:?}");
    }
}
