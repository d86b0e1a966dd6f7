//! How fast an all-reduce is between processes of this machine.
//!
//! `cargo run --release -p manyhands-net --example collective_speed -- --transport tcp|tcp_encrypted|shm|inproc --processes 2
//! --sizes 4096,1048576 --algorithm direct|halving_doubling|hierarchical|ring|auto [--hosts N] [--rounds N] [--json]`
//!
//! With more than one host, ranks fall into blocks that are linked by TCP.
//!
//! `--leaves N` measures sums over so many leaves, as a step of training exchanges them; `--buckets N` begins them bucket by bucket, and
//! `--computing US` computes so long in every round, a part before each bucket. Times hold it.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a wrong argument ends it, and says so; the answer goes out

use std::process::Command;

use manyhands_net::collective::Algorithm;
use manyhands_net::measure::{
    Leaves, Settings, Transport, run_leaves_processes, run_processes, serve_child,
};
use serde::Deserialize;

const CHILD: &str = "--child";
const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

/// A value by the name that it has in JSON.
fn by_name<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_json::from_value(serde_json::Value::String(name.to_string())).unwrap()
}

fn main() {
    let mut settings = Settings {
        transport: Transport::Shm,
        n_processes: 2,
        n_hosts: 1,
        sizes: SIZES.to_vec(),
        algorithm: Algorithm::Direct,
        n_rounds: None,
    };
    let mut leaves = Leaves { n_leaves: 0, n_buckets: 0, computing_us: 0 };
    let mut as_json = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap();
        match argument.as_str() {
            CHILD => return serve_child().unwrap(),
            "--transport" => settings.transport = by_name(&value()),
            "--processes" => settings.n_processes = value().parse().unwrap(),
            "--hosts" => settings.n_hosts = value().parse().unwrap(),
            "--sizes" => {
                settings.sizes = value().split(',').map(|size| size.parse().unwrap()).collect();
            }
            "--algorithm" => settings.algorithm = by_name(&value()),
            "--rounds" => settings.n_rounds = Some(value().parse().unwrap()),
            "--leaves" => leaves.n_leaves = value().parse().unwrap(),
            "--buckets" => leaves.n_buckets = value().parse().unwrap(),
            "--computing" => leaves.computing_us = value().parse().unwrap(),
            "--json" => as_json = true,
            _ => panic!("what is {argument}?"),
        }
    }
    let child = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(CHILD);
        command
    };
    let rows = match leaves.n_leaves {
        0 => run_processes(&settings, child).unwrap(),
        _ => run_leaves_processes(&settings, leaves, child).unwrap(),
    };
    if as_json {
        return println!("{}", serde_json::to_string(&rows).unwrap());
    }
    println!(
        "{:>10} {:>12} {:>12} {:>12} {:>8}",
        "bytes", "median us", "mean us", "best us", "GB/s"
    );
    for row in rows {
        let (median, mean, best) = (row.median_us, row.mean_us, row.best_us);
        println!("{:>10} {median:12.1} {mean:12.1} {best:12.1} {:8.2}", row.n_bytes, row.bandwidth);
    }
}
