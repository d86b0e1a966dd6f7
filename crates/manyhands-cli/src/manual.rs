//! `manyhands manual` and `manyhands completions`: the same definitions as man pages and as shell scripts.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::arguments::{self, Completions, Manual};
use crate::exit::{Class, Failure};
use crate::output::{print, tell};
use crate::pages;

pub(crate) fn run(arguments: &Manual) -> Result<(), Failure> {
    let mut command = arguments::command();
    command.build();
    let Some(dir) = &arguments.dir else {
        return print(page(command)?.trim_end());
    };
    let n_pages = write(dir, command)
        .with_context(|| format!("the manual cannot be written into `{}`", dir.display()))
        .map_err(|error| Failure { class: Class::Output, error })?;
    tell(&format!("{n_pages} pages in {}", dir.display()));
    Ok(())
}

/// Writes the page of a command and those of its parts; returns how many.
fn write(dir: &Path, command: clap::Command) -> anyhow::Result<usize> {
    fs::create_dir_all(dir)?;
    let parts: Vec<clap::Command> = command.get_subcommands().cloned().collect();
    let file = dir.join(Man::new(command.clone()).get_filename());
    fs::write(file, page(command)?)?;
    parts.into_iter().try_fold(1, |n_pages, part| Ok(n_pages + write(dir, part)?))
}

/// One page. clap's own renderer would put what follows the options under one heading, as a block.
fn page(command: clap::Command) -> anyhow::Result<String> {
    let name = command.get_name().to_string();
    let has_parts = command.get_subcommands().next().is_some();
    let has_arguments = command.get_arguments().next().is_some();
    let man = Man::new(command).manual("manyhands").source(env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if has_arguments {
        man.render_options_section(&mut text)?;
    }
    if has_parts {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    for section in pages::sections(&name) {
        roff.control("SH", [section.title.to_uppercase().as_str()]);
        for (term, about) in section.entries {
            roff.control("TP", []);
            roff.text([bold(term)]);
            roff.text([roman(about)]);
        }
    }
    roff.to_writer(&mut text)?;
    String::from_utf8(text).context("the page is not text")
}

pub(crate) fn completions(arguments: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    let mut command = arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "manyhands", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}
