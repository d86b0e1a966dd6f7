//! What happens on the way to a file behind a URL: it changes no record, or it is an error that says what it was.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::objects::{Scene, csv, every_format, parquet};
use super::server::Faults;
use super::*;

#[test]
fn a_server_without_ranges_is_read_too() {
    let scene = Scene::new();
    for (name, bytes) in every_format(20_000) {
        scene.put(name, bytes);
        scene.server.order(Faults { no_ranges: true, ..Faults::default() });
        let how = How { n_threads: 2, ..How::default() };
        let expected = scene.folder.read(&one(name), &how).unwrap();
        assert!(scene.folder.read(&one(&scene.web(name)), &how).unwrap() == expected, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_connection_cut_at_any_byte_changes_no_record(
        at in 0.0..1.0f64, n_cuts in 1usize..4, no_ranges: bool, is_s3: bool,
    ) {
        let scene = Scene::new();
        for (name, bytes) in every_format(500) {
            let n_bytes = bytes.len();
            scene.put(name, bytes);
            let cut_at = (at * n_bytes as f64) as usize;
            scene.server.order(Faults { n_cuts, cut_at, no_ranges: no_ranges && !is_s3, ..Faults::default() });
            let url = if is_s3 { scene.s3(name) } else { scene.web(name) };
            let expected = scene.folder.read(&one(name), &How::default()).unwrap();
            // The schema is read first, and all of it once more: one order would be used up by the first.
            let batches = scene.folder.blocks(&one(&url), &How::default()).unwrap();
            let batches: Vec<RecordBatch> = batches.into_iter().map(|block| block.rows).collect();
            let rows = concat_batches(&expected.schema(), &batches).unwrap();
            prop_assert!(rows == expected, "{}", url);
            let n_requests = scene.server.requests().len();
            prop_assert!(n_requests > 1, "{url} was cut at {cut_at} of {n_bytes}: {n_requests}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn reads_at_any_places_give_the_bytes_that_are_there(
        n_bytes in 1usize..400_000,
        ranges in prop::collection::vec((0.0..1.0f64, 0.0..1.0f64), 0..6),
        reads in prop::collection::vec((0.0..1.1f64, 0usize..150_000), 1..12),
        n_cuts in 0usize..3,
        cut_at in 1usize..70_000,
    ) {
        let scene = Scene::new();
        let bytes: Vec<u8> = (0..n_bytes).map(|idx| (idx * idx / 7) as u8).collect();
        scene.put("any.bin", &bytes);
        scene.server.order(Faults { n_cuts, cut_at, ..Faults::default() });
        let opened = crate::objects::ObjectFile::open(&scene.web("any.bin"), None).unwrap().unwrap();
        prop_assert_eq!(opened.n_bytes(), n_bytes as u64);
        let place = |share: f64| (share * n_bytes as f64) as u64;
        let ranges: Vec<_> =
            ranges.into_iter().map(|(a, b)| place(a.min(b))..place(a.max(b))).collect();
        let opened = opened.for_ranges(ranges, 2);
        for (share, n_least) in reads {
            let at = place(share);
            let found = opened.bytes_at(at, n_least).unwrap();
            let n_there = n_least.min(n_bytes.saturating_sub(at as usize));
            prop_assert!(found.len() >= n_there);
            prop_assert_eq!(&found[..], &bytes[at.min(n_bytes as u64) as usize..][..found.len()]);
        }
    }
}

#[test]
fn every_byte_may_come_by_a_connection_of_its_own() {
    let scene = Scene::new();
    scene.put("t.csv", csv(10));
    let expected = scene.folder.read(&one("t.csv"), &How::default()).unwrap();
    scene.server.order(Faults { n_cuts: 10_000, cut_at: 1, ..Faults::default() });
    let rows = scene.folder.read(&one(&scene.web("t.csv")), &How::default()).unwrap();
    assert!(rows == expected);
    assert!(scene.server.requests().len() > csv(10).len());
}

#[test]
fn an_object_that_changes_while_it_is_read_is_an_error() {
    let scene = Scene::new();
    scene.put("t.csv", csv(1000));
    scene.put("t.parquet", parquet(200_000, 50_000));
    for url in [scene.web("t.csv"), scene.s3("t.csv")] {
        let cut = Faults { n_cuts: 1, cut_at: 5000, changes_after: Some(1), ..Faults::default() };
        scene.server.order(cut);
        assert!(scene.error(&url).contains("t.csv was changed while it was read; start again"));
    }
    for after in [1, 2, 3] {
        scene.server.order(Faults { changes_after: Some(after), ..Faults::default() });
        let sentence = scene.error(&scene.s3("t.parquet"));
        assert!(sentence.starts_with("s3://bucket/t.parquet was changed"), "{sentence}");
        assert_eq!(scene.server.requests().len(), after + 1);
    }
}

#[test]
fn what_is_not_there_or_not_allowed_is_said() {
    let scene = Scene::new();
    scene.put("t.csv", csv(3));
    assert_eq!(
        scene.error(&scene.web("x.csv")),
        "there is no file http://host/x.csv (404 Not Found); check the name"
    );
    assert_eq!(
        scene.error(&scene.s3("x.parquet")),
        "there is no file s3://bucket/x.parquet (404 Not Found); check the name"
    );
    scene.server.order(Faults { status: Some(403), ..Faults::default() });
    let sentence = scene.error(&scene.s3("t.csv"));
    let start = "s3://bucket/t.csv may not be read: Ordered; of the environment AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ";
    assert!(sentence.starts_with(start), "{sentence}");
    assert_eq!(scene.error(&scene.web("t.csv")), "http://host/t.csv may not be read: Ordered");
    scene.server.order(Faults { status: Some(418), ..Faults::default() });
    let sentence = scene.error(&scene.web("t.csv"));
    assert_eq!(sentence, "http://host/t.csv cannot be read: Ordered");
    // None of these is worth a second try.
    assert_eq!(scene.server.requests().len(), 1);
    scene.server.order(Faults { no_length: true, ..Faults::default() });
    let sentence = scene.error(&scene.web("t.csv"));
    let reason = "the server does not say how long it is; download it first";
    assert_eq!(sentence, format!("http://host/t.csv cannot be read: {reason}"));
}

#[test]
fn nobody_who_answers_is_said_with_the_time_waited() {
    let scene = Scene::new();
    scene.put("t.csv", csv(3));
    let url = scene.web("t.csv");
    let s3 = scene.s3("t.csv");
    let Scene { folder, server, .. } = scene;
    drop(server);
    for url in [url, s3.clone(), s3.replace("t.csv", "*.csv")] {
        let sentence = folder.error(&one(&url), &How::default());
        let expected = format!(
            "{url} cannot be reached: Connection refused (os error 111) (tried 3 times in "
        );
        assert!(sentence.starts_with(&expected), "{sentence}");
        assert!(sentence.ends_with(" s); check the host and the network"), "{sentence}");
    }
}

#[test]
fn a_server_that_is_busy_for_a_while_is_asked_again() {
    let scene = Scene::new();
    for (name, bytes) in every_format(300) {
        scene.put(name, bytes);
        let expected = scene.folder.read(&one(name), &How::default()).unwrap();
        scene.server.order(Faults { n_busy: 2, ..Faults::default() });
        assert!(scene.folder.read(&one(&scene.s3(name)), &How::default()).unwrap() == expected);
    }
    scene.server.order(Faults { n_busy: 1000, ..Faults::default() });
    let sentence = scene.error(&scene.web("t.csv"));
    let expected = "http://host/t.csv cannot be reached: the server answers with status 503 (tried 3 times in ";
    assert!(sentence.starts_with(expected), "{sentence}");
    assert_eq!(scene.server.requests().len(), 3);
}

#[test]
fn a_body_that_stops_is_asked_for_again_and_no_wait_is_endless() {
    let scene = Scene::new();
    scene.put("t.csv", csv(2000));
    scene.put("t.parquet", parquet(30_000, 10_000));
    for name in ["t.csv", "t.parquet"] {
        let expected = scene.folder.read(&one(name), &How::default()).unwrap();
        scene.server.order(Faults { n_stalls: 1, ..Faults::default() });
        assert!(scene.folder.read(&one(&scene.web(name)), &How::default()).unwrap() == expected);
        assert!(scene.server.requests().len() > 1);
    }
    let started = Instant::now();
    scene.server.order(Faults { n_silent: 1000, ..Faults::default() });
    for url in [scene.web("t.csv"), scene.s3("t.parquet"), scene.s3("t.*")] {
        let sentence = scene.error(&url);
        let expected = "cannot be reached: no answer came in time (tried 3 times in ";
        assert!(sentence.contains(expected), "{sentence}");
    }
    scene.server.order(Faults { n_cuts: 1000, cut_at: 0, ..Faults::default() });
    let sentence = scene.error(&scene.web("t.csv"));
    assert!(
        sentence.starts_with("http://host/t.csv cannot be read beyond byte 0 of "),
        "{sentence}"
    );
    assert!(sentence.contains("(tried 3 times in "), "{sentence}");
    assert!(started.elapsed() < Duration::from_secs(30));
}
