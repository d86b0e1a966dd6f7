//! The reference of what a job can say, as a page: every key, and everything that the catalogs name. It is made from the
//! definitions that the parser uses, so it cannot say anything else than what is parsed.

use std::fmt::Write;

use serde_json::Value;

use crate::catalog::{Catalog, Entry};
use crate::job::{Job, Key, sentence};
use crate::registry::Registry;

/// The page of all keys and of what they can name, as Markdown.
pub fn job_page(registry: &Registry) -> String {
    let mut page = String::from(OPENING);
    let keys = Job::keys();
    let tables = keys.iter().filter(|key| !key.path.contains('.'));
    for table in tables {
        let start = format!("{}.", table.path);
        let inside: Vec<&Key> = keys.iter().filter(|key| key.path.starts_with(&start)).collect();
        key_section(&mut page, table, &inside);
    }
    catalog_section(
        &mut page,
        "Layers",
        "`model.layers` and `model.node.<n>.layer`",
        &registry.layers,
    );
    catalog_section(&mut page, "Losses", "`train.loss`", &registry.losses);
    catalog_section(&mut page, "Optimizers", "`train.optimizer`", &registry.optimizers);
    catalog_section(&mut page, "Schedules", "`train.schedule`", &registry.schedules);
    catalog_section(&mut page, "Metrics", "`train.metrics`", &registry.metrics);
    page
}

const OPENING: &str = "\
# The job

Everything that a job can say, as TOML (`job.toml`) or as JSON of the same tables. What is left out has its default. Any key
can be overridden on the command line: `--set train.epochs=3`, `--set model.layers.0=\"dense 64 relu\"`. Editors complete and
check jobs with the JSON Schema beside this page, `job.schema.json`.

Layers, losses, optimizers, schedules and metrics are named in words, settings in their order or by name, or as a table:
`\"dense 512 relu\"`, `\"dense 512 activation=relu\"` and `{ dense = { units = 512, activation = \"relu\" } }` are the same.
Catalogs of what can be named follow the keys.

This page is generated from the definitions that the parser uses: `UPDATE_EXPECT=1 cargo test --release -p manyhands --test docs`.
";

fn key_section(page: &mut String, table: &Key, keys: &[&Key]) {
    push(page, format_args!("\n## `[{}]`\n\n{}\n\n", table.path, table.about));
    page.push_str("| key | takes | default | meaning |\n|---|---|---|---|\n");
    for key in keys {
        let default = match (&key.default, key.is_required) {
            (_, true) => "required".to_string(),
            (Some(default), _) if !key.is_table => code(default),
            _ => String::new(),
        };
        let names: String =
            key.names.iter().map(|name| format!("<br>`{}`: {}", name.name, name.about)).collect();
        let is_name = key.takes.starts_with("one of") && !key.takes.contains(" or ");
        let takes = if is_name { "a name" } else { key.takes.as_str() };
        let meaning = format!("{}{names}", key.about);
        row(page, &[&format!("`{}`", key.path), takes, &default, &meaning]);
    }
}

fn catalog_section<T: ?Sized + 'static>(
    page: &mut String,
    title: &str,
    keys: &str,
    catalog: &Catalog<T>,
) {
    push(page, format_args!("\n## {title}\n\nWhat {keys} can name.\n"));
    for entry in catalog.entries() {
        entry_section(page, entry);
    }
}

fn entry_section<T: ?Sized>(page: &mut String, entry: &Entry<T>) {
    push(page, format_args!("\n### `{}`\n\n{}\n", entry.name(), sentence(entry.about())));
    if entry.settings().next().is_none() {
        return;
    }
    page.push_str("\n| setting | takes | default | meaning |\n|---|---|---|---|\n");
    for setting in entry.settings() {
        let default = match setting.default {
            _ if setting.is_required => "required".to_string(),
            Some(default) => code(default),
            None => String::new(),
        };
        let name = format!("`{}`", setting.name);
        row(page, &[&name, &setting.takes, &default, &sentence(setting.about)]);
    }
}

/// A value as it is written in a job: JSON of scalars and lists is TOML too.
fn code(value: &Value) -> String {
    match value {
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(Value::to_string).collect();
            format!("`[{}]`", items.join(", "))
        }
        other => format!("`{other}`"),
    }
}

fn row(page: &mut String, cells: &[&str]) {
    for cell in cells {
        push(page, format_args!("| {} ", cell.replace('|', "\\|")));
    }
    page.push_str("|\n");
}

fn push(page: &mut String, text: std::fmt::Arguments) {
    // Writing to a string does not fail.
    let _ = page.write_fmt(text);
}
