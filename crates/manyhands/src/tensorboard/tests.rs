//! Golden bytes: these very files were opened with TensorBoard's own reader.

use std::fs;

use expect_test::{Expect, expect};
use manyhands_program::{Builder, DType, Init};

use super::*;
use crate::files::hexadecimal;

/// Records as lines of hexadecimal, 32 bytes a line.
fn check(events: impl IntoIterator<Item = Event>, expected: Expect) {
    let mut bytes = Vec::new();
    events.into_iter().for_each(|event| record::append(&mut bytes, &event.into_bytes()));
    let lines: Vec<String> = bytes.chunks(32).map(hexadecimal).collect();
    expected.assert_eq(&lines.join("\n"));
}

#[test]
fn a_file_starts_with_its_version() {
    check([Event::version(1.5)], expect![[]]);
}

#[test]
fn scalars_and_restarts_have_the_bytes_that_tensorboard_reads() {
    let events = [Event::scalar(1.5, 300, "train/loss", 0.25), Event::restart(2.0, 301)];
    check(events, expect![[]]);
}

#[test]
fn histograms_have_the_bytes_that_tensorboard_reads() {
    check([Event::histogram(1.5, 1, "w", &[0.5, 0.5, 0.52])], expect![[]]);
}

#[test]
fn graphs_have_the_bytes_that_tensorboard_reads() {
    let g = Builder::new("tiny");
    let x = g.input("x", DType::F32, [8, 2]).unwrap();
    let w = g.weight("w", [2, 3], Init::Normal(0.5)).unwrap();
    let h = x.matmul(&w).unwrap().relu().unwrap().relu().unwrap();
    g.output("h", &h).unwrap();
    check([Event::graph(1.5, &g.finish())], expect![[]]);
}

#[test]
fn records_are_appended_as_they_are_flushed_and_every_writer_has_its_own_file() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().join("events");
    let mut first = EventWriter::create(&events, None).unwrap();
    let length = |writer: &EventWriter| fs::metadata(writer.path()).unwrap().len();
    let empty = length(&first);
    first.scalar(1, "loss", 0.5);
    assert_eq!(length(&first), empty, "nothing is written before a flush");
    first.flush().unwrap();
    let one = length(&first);
    assert!(one > empty);
    let resumed = EventWriter::create(&events, Some(1)).unwrap();
    assert!(length(&resumed) > empty, "a resumed run says so");
    assert_ne!(first.path(), resumed.path());
    let name = first.path().file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("events.out.tfevents."), "{name}");
    first.scalar(2, "loss", 0.25);
    let path = first.path().to_path_buf();
    drop(first);
    assert_eq!(fs::metadata(path).unwrap().len(), one + (one - empty));
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let error = EventWriter::create(Path::new("/sys/events"), None).unwrap_err();
    assert!(error.to_string().starts_with("/sys/events cannot be written ("), "{error}");
}
