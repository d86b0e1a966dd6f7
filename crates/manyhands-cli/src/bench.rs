//! `manyhands bench`.

use manyhands::bench::{TrainBench, TrainReport};

use crate::arguments::BenchTrain;
use crate::exit::Failure;
use crate::output::{print, print_json};

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
