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
    check(
        [Event::version(1.5)],
        expect![[r#"
        1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e457665
        6e743a322a28646c"#]],
    );
}

#[test]
fn scalars_and_restarts_have_the_bytes_that_tensorboard_reads() {
    let events = [Event::scalar(1.5, 300, "train/loss", 0.25), Event::restart(2.0, 301)];
    check(
        events,
        expect![[r#"
        2100000000000000017becf609000000000000f83f10ac022a130a110a0a7472
        61696e2f6c6f7373150000803e6557981f100000000000000095fbfe18090000
        00000000004010ad023a0208013264e72b"#]],
    );
}

#[test]
fn histograms_have_the_bytes_that_tensorboard_reads() {
    check(
        [Event::histogram(1.5, 1, "w", &[0.5, 0.5, 0.52])],
        expect![[r#"
        7500000000000000d7d9417809000000000000f83f10012a680a660a01772a61
        09000000000000e03f11a4703d0ad7a3e03f1900000000000008402152b81e85
        eb51f83f292cd49ae61da7e83f3218fae55a25d31fde3fb03125ee8091e03f0f
        1d5c6ca739e23f3a1800000000000000000000000000000040000000000000f0
        3f58e47624"#]],
    );
}

#[test]
fn graphs_have_the_bytes_that_tensorboard_reads() {
    let g = Builder::new("tiny");
    let x = g.input("x", DType::F32, [8, 2]).unwrap();
    let w = g.weight("w", [2, 3], Init::Normal(0.5)).unwrap();
    let h = x.matmul(&w).unwrap().relu().unwrap().relu().unwrap();
    g.output("h", &h).unwrap();
    check(
        [Event::graph(1.5, &g.finish())],
        expect![[r#"
        6a02000000000000b321ce1809000000000000f83f100022dc040a770a017812
        05696e7075742a1e0a0e5f6f75747075745f736861706573120c0a0a3a081202
        0808120208022a070a0154120230012a420a0a61747472696275746573123412
        327b22696e707574223a7b226e616d65223a2278222c226474797065223a2266
        3332222c227368617065223a5b382c325d7d7d0aa5010a01771209706172616d
        657465722a1e0a0e5f6f75747075745f736861706573120c0a0a3a0812020802
        120208032a070a0154120230012a6c0a0a61747472696275746573125e125c7b
        22706172616d65746572223a7b226e616d65223a2277222c226474797065223a
        22663332222c227368617065223a5b322c335d2c22726f6c65223a2277656967
        6874222c22696e6974223a7b226e6f726d616c223a302e357d7d7d0a5e0a066d
        61746d756c12066d61746d756c1a01781a01772a1e0a0e5f6f75747075745f73
        6861706573120c0a0a3a0812020808120208032a070a0154120230012a1d0a0a
        61747472696275746573120f120d7b226d61746d756c223a7b7d7d0a5f0a0472
        656c75120472656c751a066d61746d756c2a1e0a0e5f6f75747075745f736861
        706573120c0a0a3a0812020808120208032a070a0154120230012a200a0a6174
        7472696275746573121212107b22756e617279223a2272656c75227d0a5f0a06
        72656c755f31120472656c751a0472656c752a1e0a0e5f6f75747075745f7368
        61706573120c0a0a3a0812020808120208032a070a0154120230012a200a0a61
        747472696275746573121212107b22756e617279223a2272656c75227d0a130a
        016812066f75747075741a0672656c755f312202081656cdb74c"#]],
    );
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
