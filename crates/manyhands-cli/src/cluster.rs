//! `manyhands coordinator`, `manyhands worker`, `manyhands server` and `manyhands status`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use manyhands::Error;
use manyhands::cluster::{
    CoordinatorProcess, CoordinatorSettings, SECRET_VARIABLE, Secret, ServerSettings,
    ServerStanding, Status as ClusterStatus, Watcher, WorkerSettings, ask_drain, ask_status,
    run_server, run_worker,
};
use manyhands::net::host::bind_towards;

use crate::arguments::{Coordinator, Server, Status, Worker};
use crate::exit::{Class, Failure};
use crate::library::{route, secret};
use crate::output::{print, print_json, tell};
use crate::signals;

/// How long a coordinator may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Where the secret of a cluster is made unless said.
const SECRET_FILE: &str = "manyhands-secret";

pub(crate) fn coordinator(arguments: &Coordinator) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let file = arguments.secret.clone().unwrap_or_else(|| SECRET_FILE.into());
    // A secret in the environment that is of no use is an error, not a reason to make another.
    let is_said = std::env::var_os(SECRET_VARIABLE).is_some() && arguments.secret.is_none();
    let secret = match is_said {
        true => Secret::from_environment(),
        false if file.exists() => Secret::read(&file),
        false => Secret::create(&file),
    }
    .map_err(Error::from)?;
    let settings =
        CoordinatorSettings { listen: arguments.listen, secret, log: Some(arguments.log.clone()) };
    let quiet = arguments.quiet;
    let process = CoordinatorProcess::start(settings, move |decision| {
        if !quiet {
            tell(&format!("{:9.3} s  {}", decision.at, decision.sentence));
        }
    })
    .map_err(Error::from)?;
    if !quiet {
        let mut address = process.address();
        if address.ip().is_unspecified()
            && let Some(own) = manyhands::net::host::own_address()
        {
            address.set_ip(own);
        }
        let mut join = format!("manyhands worker --join {address}");
        if !is_said {
            join.push_str(&format!(" --secret {}", crate::train::shell_word(&file)));
        }
        print(&format!("listening on {}; workers join with:\n  {join}", process.address()))?;
    }
    while !stop.load(Ordering::Relaxed) {
        if process.has_ended() {
            return Err(Failure::new(
                Class::Cluster,
                "the coordinator ended; its last words say why",
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

pub(crate) fn worker(arguments: &Worker) -> Result<(), Failure> {
    let secret = secret(arguments.secret.as_deref())?;
    if arguments.drain {
        let Some(name) = &arguments.name else {
            let sentence = "--drain needs --name: the worker that is to leave";
            return Err(Failure::new(Class::Job, sentence));
        };
        ask_drain(&arguments.join, &secret, name, ANSWER).map_err(Error::from)?;
        return print(&format!("{name} leaves after the step at hand"));
    }
    if arguments.with_parent {
        manyhands::cluster::end_with_parent().map_err(Error::from)?;
    }
    let settings = WorkerSettings {
        coordinator: arguments.join.clone(),
        secret,
        bind: arguments.bind.unwrap_or_else(|| bind_towards(&arguments.join)),
        name: arguments.name.clone(),
        threads: arguments.threads.map(std::num::NonZeroUsize::get),
        data: arguments.data.clone(),
        route: route(arguments.transport),
        drain: signals::stop_flag()?,
        watcher: Watcher::none(),
    };
    let quiet = arguments.quiet;
    run_worker(settings, move |sentence| {
        if !quiet {
            tell(sentence);
        }
    })?;
    Ok(())
}

pub(crate) fn server(arguments: &Server) -> Result<(), Failure> {
    let secret = secret(arguments.secret.as_deref())?;
    if arguments.with_parent {
        manyhands::cluster::end_with_parent().map_err(Error::from)?;
    }
    let settings = ServerSettings {
        coordinator: arguments.join.clone(),
        secret,
        bind: arguments.bind.unwrap_or_else(|| bind_towards(&arguments.join)),
        name: arguments.name.clone(),
        memory: arguments.memory.map(|megabytes| megabytes.saturating_mul(1_000_000)),
        route: route(arguments.transport),
        stop: signals::stop_flag()?,
    };
    let quiet = arguments.quiet;
    run_server(settings, move |sentence| {
        if !quiet {
            tell(sentence);
        }
    })?;
    Ok(())
}

pub(crate) fn status(arguments: &Status) -> Result<(), Failure> {
    let secret = secret(arguments.secret.as_deref())?;
    let status = ask_status(&arguments.cluster, &secret, ANSWER).map_err(Error::from)?;
    if arguments.json { print_json(&status) } else { print(&described(&status)) }
}

fn server_line(server: &ServerStanding) -> String {
    let ServerStanding { name, address, shards, first_of, bytes, is_leaving } = server;
    let leaving = if *is_leaving { ", leaving" } else { "" };
    let megabytes = *bytes as f64 / 1e6;
    format!(
        "  server {name} at {address}: {megabytes:.1} MB in {shards} shards, first of {first_of}{leaving}"
    )
}

fn described(status: &ClusterStatus) -> String {
    let mut lines = vec![status.summary.clone()];
    if let Some(job) = &status.job {
        let rate = status.steps_per_second;
        let rate = rate.map_or(String::new(), |rate| format!(", {rate:.1} steps/s"));
        let consistency = status.consistency.as_ref();
        let consistency = consistency.map_or(String::new(), |word| format!(", {word}"));
        let mesh = status.mesh.as_ref().map_or(String::new(), |mesh| format!(", {mesh}"));
        lines.push(format!("job {job}: {} steps{rate}{consistency}{mesh}", status.steps));
    }
    lines.extend(status.servers.iter().map(server_line));
    for member in &status.members {
        let place = match member.seconds_to_rest {
            Some(seconds) => format!("rests for {seconds:.0} s more, it held the others up"),
            None if member.is_in_view => "takes part".to_string(),
            None => "waits".to_string(),
        };
        let drain = if member.is_draining { ", leaving" } else { "" };
        let speed = member.seconds_per_grain;
        let speed = speed.map_or(String::new(), |s| format!(", {:.2} ms a grain", s * 1000.0));
        let bound = member.bound.map_or(String::new(), |n| format!(", may miss {n} steps"));
        lines.push(format!(
            "  {} ({} threads): {place}{drain}, {:?}, {} steps{bound}{speed}, waited {:.1} s",
            member.name,
            member.cores,
            member.doing,
            member.steps.unwrap_or(0),
            member.seconds_waiting,
        ));
    }
    if let Some(failure) = &status.last_failure {
        lines.push(format!("last failure: {failure}"));
    }
    lines.extend(
        status
            .history
            .iter()
            .rev()
            .take(8)
            .rev()
            .map(|decision| format!("  {:9.3} s  {}", decision.at, decision.sentence)),
    );
    lines.join("\n")
}
