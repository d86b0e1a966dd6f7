//! What a manual page says besides its options: examples, files, exit codes. `--help` and the man pages both print it.

use crate::exit::CLASSES;

/// A part of a manual page: terms, each with what it is.
pub(crate) struct Section {
    pub title: &'static str,
    pub entries: Vec<(String, String)>,
}

/// The sections of a command; `manyhands` is the whole.
pub(crate) fn sections(command: &str) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |title, entries: &[(&str, &str)]| {
        if !entries.is_empty() {
            let own = |(term, about): &(&str, &str)| (term.to_string(), about.to_string());
            sections.push(Section { title, entries: entries.iter().map(own).collect() });
        }
    };
    add("Examples", examples(command));
    add("Files", files(command));
    add("See also", see_also(command));
    if matches!(
        command,
        "manyhands"
            | "train"
            | "resume"
            | "evaluate"
            | "predict"
            | "check"
            | "plan"
            | "coordinator"
            | "worker"
            | "server"
            | "status"
    ) {
        sections.push(exit_codes());
    }
    sections
}

/// The table of exit codes.
pub(crate) fn exit_codes() -> Section {
    let entry = |(class, about): &(crate::exit::Class, &str)| {
        ((*class as u8).to_string(), about.to_string())
    };
    Section { title: "Exit codes", entries: CLASSES.iter().map(entry).collect() }
}

fn examples(command: &str) -> &'static [(&'static str, &'static str)] {
    match command {
        "manyhands" => &[
            ("manyhands train examples/fashion.toml", "Train a classifier of images on all cores."),
            ("manyhands evaluate runs/fashion", "Measure it on its test data."),
            ("manyhands predict runs/fashion --data new.csv", "Answer new data."),
        ],
        "coordinator" => &[
            ("manyhands coordinator", "A cluster on this machine, on port 7070 of loopback."),
            (
                "manyhands coordinator --listen 0.0.0.0:7070",
                "A cluster that other machines can join.",
            ),
        ],
        "worker" => &[
            (
                "manyhands worker --join host:7070 --secret manyhands-secret",
                "Lend this machine, with all its cores.",
            ),
            (
                "manyhands worker --join host:7070 --secret manyhands-secret --name gamma --drain",
                "Have the worker gamma leave after the step at hand.",
            ),
        ],
        "server" => &[(
            "manyhands server --join host:7070 --secret manyhands-secret",
            "Lend this machine's memory, to jobs whose parameters live on servers.",
        )],
        "status" => &[(
            "manyhands status --cluster host:7070 --secret manyhands-secret",
            "Who is there, and what each does.",
        )],
        "train" => &[
            (
                "manyhands train examples/fashion.toml",
                "Train on all cores; the results go to runs/fashion.",
            ),
            (
                "manyhands train job.toml --out runs/short --set train.epochs=1",
                "Try a job with one epoch, without changing its file.",
            ),
            (
                "manyhands train job.toml --workers 4 --threads 1 --seed 7",
                "Say how the machine is used, and another seed.",
            ),
            (
                "manyhands train job.toml --workers 4 --processes",
                "Four processes, of which any may be killed.",
            ),
            (
                "manyhands train job.toml --cluster host:7070 --secret manyhands-secret",
                "On the workers of a cluster.",
            ),
            (
                "manyhands train job.toml --json | grep '\"epoch\"'",
                "Follow the epochs from a program.",
            ),
        ],
        "resume" => &[
            ("manyhands resume runs/fashion", "Go on where the last checkpoint was written."),
            ("manyhands resume runs/fashion --workers 1", "The same, with one worker."),
            (
                "manyhands resume runs/fashion --set 'distribute={strategy=\"pipeline\",stages=2}'",
                "The same, with the model cut in two.",
            ),
        ],
        "evaluate" => &[
            ("manyhands evaluate runs/fashion", "Measure on the test data of the job."),
            (
                "manyhands evaluate runs/income --data 'new/*.csv' --json",
                "Measure on other data, for a program.",
            ),
        ],
        "predict" => &[
            ("manyhands predict runs/income --data new.csv", "Answers on standard output."),
            (
                "manyhands predict runs/income --data new.csv --output answers.parquet",
                "Answers in a Parquet file.",
            ),
        ],
        "check" => &[
            ("manyhands check job.toml", "See what would happen."),
            (
                "manyhands check job.toml --set train.batch=96",
                "See whether another batch would do.",
            ),
        ],
        "plan" => &[
            ("manyhands plan job.toml", "Which strategy to take on the cores of this machine."),
            (
                "manyhands plan job.toml --workers 8 --memory 2GiB",
                "What would fit on eight workers of 2 GiB.",
            ),
        ],
        "doctor" => &[("manyhands doctor", "What this machine has, and what would be used.")],
        "bench" => &[
            ("manyhands bench train --case mlp --threads 2", "Measure a step with two threads."),
            ("manyhands bench train --case cnn --workers 2 --json", "Two workers, for a program."),
        ],
        "help" => &[
            ("manyhands help train", "Explain a command."),
            ("manyhands help job", "Every key of a job."),
            ("manyhands help job train.batch", "One key of a job."),
            ("manyhands help layers dense", "One layer and its settings."),
            ("manyhands help exit-codes", "What the exit codes mean."),
        ],
        "completions" => &[
            (
                "manyhands completions bash > ~/.local/share/bash-completion/completions/manyhands",
                "For bash.",
            ),
            ("manyhands completions fish > ~/.config/fish/completions/manyhands.fish", "For fish."),
            ("manyhands completions zsh > ~/.zfunc/_manyhands", "For zsh, with ~/.zfunc in fpath."),
        ],
        "manual" => &[
            ("manyhands manual ~/.local/share/man/man1", "Then `man manyhands-train` works."),
            ("manyhands manual | man -l -", "Read the main page at once."),
        ],
        _ => &[],
    }
}

fn files(command: &str) -> &'static [(&'static str, &'static str)] {
    match command {
        "train" | "resume" => &[
            ("DIR/model.safetensors", "The trained weights, by names that a person recognises."),
            ("DIR/job.toml", "The job as it was trained, with every override."),
            ("DIR/data.json", "What was learned from the data: scales, categories, classes."),
            (
                "DIR/report.json",
                "Metrics, seconds, samples per second, how the time went, set-up, memory, energy.",
            ),
            ("DIR/loss.svg", "The loss over the steps, as a picture."),
            ("DIR/events/", "The same and more, for TensorBoard."),
            ("DIR/checkpoints/", "What `resume` goes on with; the newest are kept."),
        ],
        "evaluate" | "predict" => {
            &[("DIR", "Only read. It must hold what `manyhands train` has written.")]
        }
        _ => &[],
    }
}

fn see_also(command: &str) -> &'static [(&'static str, &'static str)] {
    match command {
        "manyhands" => &[
            ("manyhands help job", "Every key of a job."),
            ("manyhands help layers", "What a model can be made of."),
            ("manyhands help losses, optimizers, schedules, metrics", "What `[train]` can name."),
        ],
        "train" | "check" | "plan" => &[
            ("manyhands help job", "Every key of a job."),
            ("manyhands help layers", "What a model can be made of."),
        ],
        _ => &[],
    }
}

/// The sections as text behind the options, as wide as the terminal; empty where there are none.
pub(crate) fn text(command: &str) -> String {
    let sections: Vec<String> = sections(command).iter().map(Section::to_text).collect();
    sections.join("\n\n")
}

impl Section {
    /// The section as text. Short terms stand beside what they are, long ones above it.
    pub(crate) fn to_text(&self) -> String {
        const BESIDE: usize = 24;
        let width = self.entries.iter().map(|(term, _)| term.chars().count()).max().unwrap_or(0);
        let mut text = format!("{}:", self.title);
        for (term, about) in &self.entries {
            if width <= BESIDE {
                let indent = width + 4;
                let about = fill(about, indent);
                text += &format!("\n  {term:<width$}  {about}");
            } else {
                text += &format!("\n  {term}\n      {}", fill(about, 6));
            }
        }
        text
    }
}

/// Breaks text into lines of at most the terminal's width or 100 columns, the second and later ones indented.
pub(crate) fn fill(text: &str, indent: usize) -> String {
    let room = columns().saturating_sub(indent).max(30);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

/// How wide text may be: the terminal, at most 100.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.map_or(100, |size| usize::from(size.ws_col)).clamp(40, 100)
}
