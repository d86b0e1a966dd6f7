//! Which crate may depend on which. Dependencies point one way; a new edge is a decision, made here.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// For each crate, the crates of this workspace that it may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("manyhands-program", &[]),
    ("manyhands-data", &[]),
    ("manyhands-net", &[]),
    ("manyhands-device", &["manyhands-program"]),
    ("manyhands", &["manyhands-data", "manyhands-device", "manyhands-net", "manyhands-program"]),
    ("manyhands-cli", &["manyhands"]),
];

/// Crates that belong to one place only: at the edge.
const AT_THE_EDGE: &[(&str, &str)] = &[
    ("clap", "manyhands-cli"),
    ("anyhow", "manyhands-cli"),
    ("object_store", "manyhands-data"),
    ("reqwest", "manyhands-data"),
    ("tokio", "manyhands-data"),
];

/// The dependencies that a manifest names, for whatever target or kind, without those for tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = section.ends_with("dependencies") && !section.ends_with("dev-dependencies");
            // A dependency may have a section of its own.
            found.extend(section.rsplit_once("dependencies.").map(|(_, name)| name.to_string()));
        } else if inside
            && let Some(name) = line.split(['.', ' ', '=']).next().filter(|n| !n.is_empty())
        {
            found.push(name.to_string());
        }
    }
    found
}

fn manifests() -> BTreeMap<String, Vec<String>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates lie side by side");
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path();
        if let Ok(manifest) = fs::read_to_string(path.join("Cargo.toml")) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            all.insert(name, dependencies(&manifest));
        }
    }
    all
}

#[test]
fn crates_depend_only_on_those_they_may() {
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let manifests = manifests();
    assert_eq!(manifests.len(), allowed.len(), "every crate has its line in ALLOWED");
    for (name, dependencies) in manifests {
        let own = allowed.get(name.as_str()).unwrap_or_else(|| panic!("{name} is not in ALLOWED"));
        for dependency in dependencies.iter().filter(|d| d.starts_with("manyhands")) {
            assert!(own.contains(&dependency.as_str()), "{name} may not depend on {dependency}");
        }
    }
}

#[test]
fn edge_crates_stay_at_the_edge() {
    for (name, dependencies) in manifests() {
        for (edge, owner) in AT_THE_EDGE {
            let uses = dependencies.iter().any(|dependency| dependency == edge);
            assert!(!uses || name == *owner, "{edge} belongs to {owner}, not to {name}");
        }
    }
}
