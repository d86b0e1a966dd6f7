//! The `manyhands` command: parses arguments, calls the library, prints, and maps errors to exit codes.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use manyhands::bench::{Case, TrainBench, TrainReport};

/// Train models with as many machines as they deserve.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure how fast things are on this machine.
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Bench {
    /// Measure the training step of a model: samples per second, milliseconds per step, memory.
    ///
    /// The models, batches and optimizers are those of bench/peers/torch_train.py, so the two can be run side by side
    /// (bench/train.py does it).
    Train(TrainArguments),
}

#[derive(Args)]
struct TrainArguments {
    /// The model: mlp (784-512-512-10, batch 128), tiny (10-64-64-10, batch 32), cnn (two convolutions, batch 64) or lm (a
    /// transformer of 2 blocks, batch 8 of 128 tokens).
    #[arg(long)]
    case: Case,
    /// Threads of each worker.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Workers in this process; each has the model's batch, and their gradients are summed at every step.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Samples per grain; must divide the batch. The whole batch unless said.
    #[arg(long, value_name = "SAMPLES")]
    grain: Option<usize>,
    /// Steps per group; the fastest of five groups counts.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("manyhands: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Bench(Bench::Train(arguments)) => bench_train(&arguments),
    }
}

fn bench_train(arguments: &TrainArguments) -> anyhow::Result<()> {
    let mut bench = TrainBench::new(arguments.case);
    bench.n_threads = arguments.threads;
    bench.n_workers = arguments.workers;
    bench.grain = arguments.grain;
    bench.n_steps = arguments.steps.unwrap_or(bench.n_steps).max(1);
    let report = bench.run()?;
    if arguments.json {
        let line = serde_json::to_string(&report).context("the report could not be written")?;
        print(&line)
    } else {
        print(&describe(&report))
    }
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

/// The one place that writes to standard output. A reader that has gone away (`| head`) is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("standard output could not be written")
        }
        _ => Ok(()),
    }
}
