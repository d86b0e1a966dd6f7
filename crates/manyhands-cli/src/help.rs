//! `manyhands help`: commands, and topics about what a job can say.

use manyhands::Job;
use manyhands::catalog::Catalog;
use manyhands::job::Key;

use crate::arguments::{self, Help};
use crate::exit::{Class, Failure};
use crate::output::print;
use crate::pages::{exit_codes, fill};
use crate::reference::{key_text, things};

/// The topics besides commands.
const TOPICS: &[&str] =
    &["job", "layers", "losses", "optimizers", "schedules", "metrics", "exit-codes"];

pub(crate) fn run(arguments: &Help) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.about.iter().map(String::as_str).collect();
    let text = match words.as_slice() {
        [topic, narrower @ ..] if TOPICS.contains(topic) => explain(topic, narrower)?,
        path => command_help(path)?,
    };
    print(text.trim_end())
}

/// The help of a command, found word by word.
fn command_help(path: &[&str]) -> Result<String, Failure> {
    let mut command = arguments::command();
    command.build();
    let mut at = &mut command;
    for word in path {
        if at.find_subcommand(word).is_none() {
            return Err(unknown(path, at));
        }
        at = match at.find_subcommand_mut(word) {
            Some(part) => part,
            None => return Err(Failure::new(Class::Other, "a command was lost")),
        };
    }
    Ok(at.render_long_help().to_string())
}

fn unknown(path: &[&str], at: &clap::Command) -> Failure {
    let commands: Vec<&str> = at.get_subcommands().map(clap::Command::get_name).collect();
    let asked = path.join(" ");
    let sentence = format!(
        "there is no help on `{asked}`; there are the commands {} and the topics {}",
        commands.join(", "),
        TOPICS.join(", ")
    );
    Failure::new(Class::Job, sentence)
}

/// A topic, or what one more word narrows it down to.
fn explain(topic: &str, narrower: &[&str]) -> Result<String, Failure> {
    let registry = manyhands::Registry::default();
    match topic {
        "job" => explain_job(narrower),
        "layers" => catalog(&registry.layers, topic, LAYERS, narrower),
        "losses" => catalog(&registry.losses, topic, LOSSES, narrower),
        "optimizers" => catalog(&registry.optimizers, topic, OPTIMIZERS, narrower),
        "schedules" => catalog(&registry.schedules, topic, SCHEDULES, narrower),
        "metrics" => catalog(&registry.metrics, topic, METRICS, narrower),
        _ => Ok(exit_codes().to_text()),
    }
}

const LAYERS: &str = "What `model.layers` and `model.node.layer` can name. A layer is written as words, its settings in \
    their order or by name: \"dense 512 relu\", \"dense 512 activation=relu\"; or as a table: { dense = { units = 512, \
    activation = \"relu\" } }. Settings in brackets need not be given.";
const LOSSES: &str = "What `train.loss` can name: what training makes small. It also says what the outputs of the model \
    mean, classes or numbers.";
const OPTIMIZERS: &str = "What `train.optimizer` can name: how weights follow their gradients. Written as \
    \"adam 0.001\" or { adam = { rate = 0.001 } }.";
const SCHEDULES: &str = "What `train.schedule` can name: how the rate changes over the steps. `train.warm_up` comes \
    before each of them.";
const METRICS: &str =
    "What `train.metrics` can name: what is measured on the validation and the test data.";

fn explain_job(narrower: &[&str]) -> Result<String, Failure> {
    let all = Job::keys();
    let Some(wanted) = narrower.first() else {
        let intro = fill(JOB, 0);
        return Ok(format!("{intro}\n\n{}", listed(&all)));
    };
    let inside = format!("{wanted}.");
    let mut found: Vec<Key> = all.clone();
    found.retain(|key| key.path == *wanted || key.path.starts_with(&inside));
    if found.is_empty() {
        // The last word alone is enough.
        found = all.clone();
        found.retain(|key| key.path.rsplit('.').next() == Some(wanted));
    }
    if found.is_empty() {
        let known: Vec<&str> = all.iter().map(|key| key.path.as_str()).collect();
        let sentence = format!("a job has no key `{wanted}`; it has {}", known.join(", "));
        return Err(Failure::new(Class::Job, sentence));
    }
    Ok(listed(&found))
}

const JOB: &str = "The keys of a job, a TOML or JSON file. Behind `=` is what holds unless it is said. On the command line \
    `--set train.batch=64` overrides a key. Names of layers, losses, optimizers, schedules and metrics have help pages of \
    their own.";

/// Keys beneath each other; a table of the first level is a heading.
fn listed(keys: &[Key]) -> String {
    let one = |key: &Key| match key.path.contains('.') {
        true => key_text(key),
        false => format!("[{}]\n{}", key.path, fill(&key.about, 0)),
    };
    keys.iter().map(one).collect::<Vec<_>>().join("\n\n")
}

/// What a catalog holds, or the one entry that was asked for.
fn catalog<T: ?Sized + 'static>(
    catalog: &Catalog<T>,
    topic: &str,
    intro: &str,
    narrower: &[&str],
) -> Result<String, Failure> {
    let mut things = things(catalog);
    if let Some(wanted) = narrower.first() {
        let known: Vec<String> = things.iter().map(|thing| thing.name.clone()).collect();
        things.retain(|thing| thing.name == *wanted);
        if things.is_empty() {
            let sentence =
                format!("there is no `{wanted}` among the {topic}; there are {}", known.join(", "));
            return Err(Failure::new(Class::Job, sentence));
        }
        return Ok(things[0].to_text());
    }
    let listed: Vec<String> = things.iter().map(|thing| thing.to_text()).collect();
    Ok(format!("{}\n\n{}", fill(intro, 0), listed.join("\n\n")))
}
