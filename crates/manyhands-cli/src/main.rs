//! The `manyhands` command: parses arguments, calls the library, prints, and maps errors to exit codes.

mod arguments;
mod bench;
mod check;
mod cluster;
mod doctor;
mod evaluate;
mod exit;
mod figures;
mod help;
mod library;
mod manual;
mod output;
mod pages;
mod plan;
mod predict;
mod progress;
mod reference;
mod signals;
mod summary;
mod train;

use std::process::ExitCode;

use clap::FromArgMatches;

use crate::arguments::{Bench, Cli, Command};
use crate::exit::{Class, Failure};
use crate::output::{print, tell};

fn main() -> ExitCode {
    let parsed = arguments::command().try_get_matches();
    let class = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => run(&cli.command),
        Err(asked) if !asked.use_stderr() => print(asked.to_string().trim_end()),
        Err(misuse) => {
            tell(&misused(&misuse));
            return ExitCode::from(Class::Job as u8);
        }
    };
    match class {
        Ok(()) => ExitCode::from(Class::Done as u8),
        Err(failure) => {
            tell(&format!("manyhands: {failure}"));
            ExitCode::from(failure.class as u8)
        }
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => train::train(arguments),
        Command::Resume(arguments) => train::resume(arguments),
        Command::Evaluate(arguments) => evaluate::run(arguments),
        Command::Predict(arguments) => predict::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Coordinator(arguments) => cluster::coordinator(arguments),
        Command::Worker(arguments) => cluster::worker(arguments),
        Command::Server(arguments) => cluster::server(arguments),
        Command::Status(arguments) => cluster::status(arguments),
        Command::Bench(Bench::Train(arguments)) => bench::train(arguments),
        Command::Bench(Bench::Collectives(arguments)) => bench::collectives(arguments),
        Command::Bench(Bench::History(arguments)) => bench::history(arguments),
        Command::Bench(Bench::Consistency(arguments)) => bench::consistency(arguments),
        Command::Bench(Bench::Tables(arguments)) => bench::tables(arguments),
        Command::Help(arguments) => help::run(arguments),
        Command::Completions(arguments) => manual::completions(arguments),
        Command::Manual(arguments) => manual::run(arguments),
    }
}

/// What is wrong with the command line, in the form of all other errors.
fn misused(misuse: &clap::Error) -> String {
    let text = misuse.to_string();
    let text = text.trim_end();
    match text.strip_prefix("error: ") {
        Some(problem) => {
            let problem = problem.replace("For more information, try '--help'.", "");
            format!("manyhands: {}", problem.trim_end())
        }
        // No command at all: clap answers with the whole help.
        None => text.to_string(),
    }
}
