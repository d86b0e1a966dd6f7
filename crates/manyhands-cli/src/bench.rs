//! `manyhands bench`.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use manyhands::bench::{
    ConsistencyBench, ConsistencyMeans, ConsistencyRun, Ratios, Setting, TrainBench, TrainReport,
};
use manyhands::cluster::Straggling;
use manyhands::net::measure::{Settings, run_processes, serve_child};
use manyhands::net::tables::traffic::significance::Significance;
use manyhands::net::tables::traffic::{REMEMBERED_KEYS, TrafficSpec};
use manyhands::net::tables::{history, measure as table_measure};
use serde_json::json;

use crate::arguments::{BenchCollectives, BenchConsistency, BenchHistory, BenchTables, BenchTrain};
use crate::exit::{Class, Failure};
use crate::library;
use crate::output::{print, print_json};

/// The most seeds that a line is the mean of.
const MOST_SEEDS: usize = 1000;

pub(crate) fn train(arguments: &BenchTrain) -> Result<(), Failure> {
    let mut bench = TrainBench::new(arguments.case);
    bench.n_threads = arguments.threads;
    bench.n_workers = arguments.workers;
    bench.grain = arguments.grain;
    bench.n_steps = arguments.steps.unwrap_or(bench.n_steps).max(1);
    let report = bench.run()?;
    if arguments.json { print_json(&report) } else { print(&describe(&report)) }
}

fn describe(report: &TrainReport) -> String {
    let mut text = format!(
        "{}: {:.1} samples/s, {:.3} ms a step (median {:.3}), {:.1} MB, loss {:.4}\n\
         {} worker(s) x {} thread(s), grain {}, {}, compiled in {:.1} ms",
        report.case,
        report.samples_per_second,
        report.ms_per_step,
        report.median_ms_per_step,
        report.peak_bytes as f64 / 1e6,
        report.loss,
        report.workers,
        report.threads,
        report.grain,
        report.hardware,
        report.compile_ms,
    );
    if let Some([before, after]) = report.core_to_core_ns {
        text += &format!("\ncore to core: {before:.0} ns before, {after:.0} ns after");
    }
    text
}

pub(crate) fn history(arguments: &BenchHistory) -> Result<(), Failure> {
    let recorded = history::read(&arguments.file).context("no history to check")?;
    let proof = history::prove(&recorded).map_err(|why| {
        let sentence = format!("the history {} proves nothing: {why}", arguments.file.display());
        Failure::new(Class::Other, sentence)
    })?;
    let history::Proof { n_records, n_reads, n_lives, violations } = proof;
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    if arguments.json {
        print_json(&json!({
            "records": n_records, "reads": n_reads, "lives": n_lives, "violations": violations,
        }))?;
    }
    match (&violations[..], arguments.json) {
        ([], true) => Ok(()),
        ([], false) => {
            let lives = match n_lives {
                1 => String::new(),
                n => format!(" in {n} lives of the tables"),
            };
            print(&format!("{n_records} records{lives}, {n_reads} reads: every promise is kept"))
        }
        ([first, ..], _) => {
            let n = violations.len();
            let sentence = format!("{n} promises are broken; the first: {first}");
            Err(Failure::new(Class::Other, sentence))
        }
    }
}

pub(crate) fn consistency(arguments: &BenchConsistency) -> Result<(), Failure> {
    let is_wanted =
        |case: &Straggling| arguments.case.as_ref().is_none_or(|one| one == case.name());
    let cases: Vec<Straggling> = Straggling::ALL.into_iter().filter(is_wanted).collect();
    let is_wanted = |setting: &Setting| setting.name().starts_with(&arguments.only);
    if cases.is_empty() {
        let known = Straggling::ALL.map(Straggling::name).join(", ");
        return Err(misused("--case", arguments.case.as_deref().unwrap_or_default(), &known));
    }
    if !Setting::ALL.iter().any(is_wanted) {
        let known = Setting::ALL.map(Setting::name).join(", ");
        return Err(misused("--only", &arguments.only, &known));
    }
    if !(1..=MOST_SEEDS).contains(&arguments.seeds) {
        let sentence = format!("--seeds {}: it must be from 1 to {MOST_SEEDS}", arguments.seeds);
        return Err(Failure::new(Class::Job, sentence));
    }
    // All are compared with the first.
    let settings = Setting::ALL.into_iter();
    let settings = settings.filter(|one| *one == Setting::Bsp || is_wanted(one)).collect();
    let wanted = Wanted { cases, settings, n_seeds: arguments.seeds, json: arguments.json };
    let set = &arguments.overrides.set;
    if let Some(path) = &arguments.job {
        let target = arguments.target.as_deref();
        return wanted.measure(path, library::consistency_bench(arguments, path, set, target)?);
    }
    for shipped in &SHIPPED {
        let path = Path::new(shipped.job);
        if !path.exists() {
            let sentence = format!(
                "{} is not here: name a job, or call this in the folder of manyhands, where it lies",
                shipped.job
            );
            return Err(Failure::new(Class::Job, sentence));
        }
        let set = shipped.set.iter().map(ToString::to_string).chain(set.iter().cloned());
        let set: Vec<String> = set.collect();
        let target = arguments.target.as_deref().unwrap_or(shipped.target);
        let bench = library::consistency_bench(arguments, path, &set, Some(target))?;
        if !arguments.json {
            let said: Vec<String> = set.iter().map(|text| format!("--set {text}")).collect();
            print(&format!("{} {} --target {target}", shipped.job, said.join(" ")))?;
        }
        wanted.measure(path, bench)?;
    }
    Ok(())
}

/// A job that is measured where none is named.
struct Shipped {
    job: &'static str,
    set: &'static [&'static str],
    target: &'static str,
}

const SHIPPED: [Shipped; 2] = [
    Shipped {
        job: "examples/fashion.toml",
        set: &["data.validation=0.2", "train.batch=256", "train.epochs=10"],
        target: "accuracy=0.84",
    },
    Shipped {
        job: "examples/fashion_cnn.toml",
        set: &["data.validation=0.2", "train.epochs=5"],
        target: "accuracy=0.84",
    },
];

/// Which lines of the table of consistencies are wanted, and how.
struct Wanted {
    cases: Vec<Straggling>,
    settings: Vec<Setting>,
    n_seeds: usize,
    json: bool,
}

impl Wanted {
    fn measure(&self, job: &Path, mut bench: ConsistencyBench) -> Result<(), Failure> {
        let usual = bench.measure_usual()?;
        for case in &self.cases {
            let mut runs: Vec<Vec<ConsistencyRun>> = vec![Vec::new(); self.settings.len()];
            let mut bsp = None;
            for seed in bench.seeds(self.n_seeds) {
                for (setting, runs) in self.settings.iter().zip(&mut runs) {
                    runs.push(bench.run(*case, *setting, seed)?);
                    if runs.len() < self.n_seeds {
                        continue;
                    }
                    let Some(means) = ConsistencyMeans::of(runs) else { continue };
                    let ratios = means.relative_to(bsp.get_or_insert_with(|| means.clone()));
                    if self.json {
                        print_json(&json!({
                            "job": job, "usual": usual, "means": means, "relative_to_bsp": ratios, "runs": runs,
                        }))?;
                    } else {
                        print(&line_of(&means, &ratios, bench.has_target()))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The line of a setting in the table of consistencies.
fn line_of(means: &ConsistencyMeans, ratios: &Ratios, has_target: bool) -> String {
    let mut text = format!(
        "{:<9} {:<9} {:7.2} s, {:.2} of bsp",
        means.straggling, means.setting, means.seconds, ratios.run
    );
    if let (Some(seconds), Some(steps)) = (means.seconds_to_target, means.steps_to_target) {
        let relative = ratios.to_target.map_or("   -".to_string(), |ratio| format!("{ratio:4.2}"));
        text += &format!("; to the target {seconds:7.2} s, {relative} of bsp, {steps:7.1} steps");
    } else if has_target {
        let ConsistencyMeans { n_runs, n_reached, .. } = means;
        let runs = if *n_runs == 1 { "run" } else { "runs" };
        text += &format!("; to the target {n_reached} of {n_runs} {runs} came");
    }
    text += &format!("; waiting {:3.0} %", 100.0 * means.waiting);
    if let Some(last) = means.last {
        text += &format!(", reached {last:.4}");
    }
    text
}

pub(crate) fn collectives(arguments: &BenchCollectives) -> Result<(), Failure> {
    if arguments.child {
        return Ok(serve_child().context("a process of a measurement")?);
    }
    let settings = Settings {
        transport: by_name("--transport", &arguments.transport)?,
        n_processes: arguments.processes,
        n_hosts: arguments.hosts,
        sizes: arguments.sizes.clone(),
        algorithm: by_name("--algorithm", &arguments.algorithm)?,
        n_rounds: arguments.rounds,
    };
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let child = || {
        let mut command = Command::new(&program);
        command.args(["bench", "collectives", "--child"]);
        command
    };
    let rows = run_processes(&settings, child).context("the measurement failed")?;
    if arguments.json {
        return print_json(&rows);
    }
    let mut lines = vec![format!(
        "{:>10} {:>12} {:>12} {:>12} {:>8}",
        "bytes", "median us", "mean us", "best us", "GB/s"
    )];
    for row in rows {
        let (median, mean, best) = (row.median_us, row.mean_us, row.best_us);
        lines.push(format!(
            "{:>10} {median:12.1} {mean:12.1} {best:12.1} {:8.2}",
            row.n_bytes, row.bandwidth
        ));
    }
    print(&lines.join("\n"))
}

pub(crate) fn tables(arguments: &BenchTables) -> Result<(), Failure> {
    check_tables(arguments)?;
    let settings = table_measure::Settings {
        transport: by_name("--transport", &arguments.transport)?,
        n_servers: arguments.servers,
        n_workers: arguments.workers,
        replication: arguments.replication,
        n_keys: arguments.keys,
        n_rows: arguments.rows,
        width: arguments.width,
        dense_bytes: arguments.bytes,
        n_rounds: arguments.rounds,
        traffic: TrafficSpec {
            key_lists: arguments.key_lists.then_some(REMEMBERED_KEYS),
            rounding: by_name("--rounding", &arguments.rounding)?,
            significance: arguments.significance.map(Significance::of),
            zero_runs: arguments.zero_runs,
        },
    };
    if arguments.fill {
        return fill(&settings, arguments.json);
    }
    let rows = table_measure::run(&settings).context("the measurement failed")?;
    if arguments.json {
        return print_json(&rows);
    }
    let mut lines = vec![format!(
        "{:8} {:12} {:12} {:>12} {:>10} {:>12} {:>10} {:>10}",
        "table", "what", "consistency", "M keys/s", "MB/s", "median us", "MB moved", "MB saved"
    )];
    for row in rows {
        let (keys, bytes) = (row.keys_per_second / 1e6, row.bytes_per_second / 1e6);
        lines.push(format!(
            "{:8} {:12} {:12} {keys:12.2} {bytes:10.1} {:12.0} {:10.1} {:10.1}",
            row.table,
            row.what,
            row.consistency,
            row.median_us,
            row.bytes_moved.iter().sum::<u64>() as f64 / 1e6,
            row.saved.n_bytes() as f64 / 1e6,
        ));
    }
    print(&lines.join("\n"))
}

/// How large a full table is.
fn fill(settings: &table_measure::Settings, json: bool) -> Result<(), Failure> {
    let found = table_measure::scale(settings).context("the measurement failed")?;
    if json {
        return print_json(&found);
    }
    print(&format!(
        "{} rows of {} numbers, {:.2} GB: at most {:.2} GB of memory until all were there ({:.2} of the numbers alone), in {:.1} s\n\
         pulls of {} keys: median {:.0} us, 99 of 100 within {:.0} us",
        found.n_rows,
        found.width,
        found.raw_bytes as f64 / 1e9,
        found.peak_bytes as f64 / 1e9,
        found.peak_of_raw,
        found.seconds,
        found.n_keys,
        found.median_us,
        found.percentile_99_us,
    ))
}

/// The largest dense table that is measured.
const MOST_TABLE_BYTES: usize = 16 << 30;

/// What cannot be measured is refused, not rounded to what can.
fn check_tables(arguments: &BenchTables) -> Result<(), Failure> {
    let BenchTables { servers, workers, replication, keys, width, rounds, bytes, .. } = *arguments;
    let refused = |sentence: String| Err(Failure::new(Class::Job, sentence));
    let counts = [
        ("--servers", servers, 64),
        ("--workers", workers, 64),
        ("--replication", replication, 64),
        ("--keys", keys, 1 << 24),
        ("--width", width, 1 << 16),
        ("--rounds", rounds, 1 << 24),
    ];
    for (option, n, most) in counts {
        if !(1..=most).contains(&n) {
            return refused(format!("{option} {n}: it must be from 1 to {most}"));
        }
    }
    if arguments.rows == 0 {
        return refused("--rows 0: it must be at least 1".to_string());
    }
    if !(4..=MOST_TABLE_BYTES).contains(&bytes) {
        return refused(format!(
            "--bytes {bytes}: it must be from 4, one number, to {MOST_TABLE_BYTES}"
        ));
    }
    if replication > servers {
        return refused(format!(
            "--replication {replication}: there are {servers} servers (--servers) to hold a shard"
        ));
    }
    Ok(())
}

/// An option whose value is none of those that there are.
fn misused(option: &str, value: &str, known: &str) -> Failure {
    Failure::new(Class::Job, format!("{option} {value}: there is {known}"))
}

/// A value by the name that it has in JSON.
fn by_name<T: serde::de::DeserializeOwned>(option: &str, name: &str) -> Result<T, Failure> {
    let value = serde_json::Value::String(name.to_string());
    serde_json::from_value(value)
        .map_err(|error| Failure::new(Class::Job, format!("{option} {name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(n_reached: usize, to_target: Option<(f64, f64)>, expected: &str) {
        let means = ConsistencyMeans {
            straggling: "constant",
            setting: "ssp 16".to_string(),
            n_runs: 3,
            n_reached,
            seconds: 12.5,
            seconds_to_target: to_target.map(|(seconds, _)| seconds),
            steps_to_target: to_target.map(|(_, steps)| steps),
            waiting: 0.25,
            last: Some(0.8125),
        };
        let ratio = to_target.map(|_| 0.5);
        let ratios = Ratios { run: 0.75, to_target: ratio, steps_to_target: ratio };
        assert_eq!(line_of(&means, &ratios, true), expected);
    }

    #[test]
    fn a_line_has_the_means_of_a_setting() {
        let expected = "constant  ssp 16      12.50 s, 0.75 of bsp; to the target    3.25 s, 0.50 of bsp,   123.3 steps; waiting  25 %, reached 0.8125";
        check(3, Some((3.25, 123.333)), expected);
    }

    #[test]
    fn a_line_says_how_many_runs_reached_the_target_if_some_did_not() {
        let expected = "constant  ssp 16      12.50 s, 0.75 of bsp; to the target 2 of 3 runs came; waiting  25 %, reached 0.8125";
        check(2, None, expected);
    }
}
