//! Files behind URLs become what the same files on a disk become, whatever happens on the way.

use std::sync::Arc;
use std::time::Duration;

use ::arrow::array::{Float64Array, Int64Array};

use super::server::{Faults, Server};
use super::*;
use crate::objects::tests::{impatient, register_bucket};

/// A server, and the same files in a folder.
pub(super) struct Scene {
    pub(super) folder: Folder,
    pub(super) server: Server,
    bucket: String,
}

impl Scene {
    pub(super) fn new() -> Scene {
        let server = Server::start();
        // Stores are known by their buckets, in the whole process.
        let bucket = format!("bucket-{}", server.endpoint().rsplit(':').next().unwrap());
        register_bucket(&bucket, &server.endpoint());
        Scene { folder: Folder::new(), server, bucket }
    }

    pub(super) fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        self.folder.write(name, &bytes);
        self.server.put(name, bytes.as_ref());
        self.server.put(&format!("{}/{name}", self.bucket), bytes.as_ref());
        impatient(&self.web(name));
    }

    pub(super) fn web(&self, name: &str) -> String {
        self.server.url(name)
    }

    pub(super) fn s3(&self, name: &str) -> String {
        format!("s3://{}/{name}", self.bucket)
    }

    /// Every URL of a file.
    fn urls(&self, name: &str) -> Vec<String> {
        let buckets = ["s3", "gs", "az"].map(|scheme| format!("{scheme}://{}/{name}", self.bucket));
        [&[self.web(name)], &buckets[..]].concat()
    }

    /// The error of a URL, without where the server is.
    pub(super) fn error(&self, url: &str) -> String {
        let sentence = self.folder.error(&one(url), &How::default());
        sentence.replace(&self.server.endpoint(), "http://host").replace(&self.bucket, "bucket")
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn csv(n_rows: usize) -> Vec<u8> {
    let row = |row: usize| format!("{row},{}.25,w{}\n", row * 7 % 1000, row % 5);
    ("n,x,word\n".to_string() + &(0..n_rows).map(row).collect::<String>()).into_bytes()
}

pub(super) fn parquet(n_rows: usize, group_rows: usize) -> Vec<u8> {
    let numbers = |factor: f64| -> ArrayRef {
        let value = |row: usize| (row as f64 * factor).sin();
        Arc::new(Float64Array::from_iter_values((0..n_rows).map(value)))
    };
    let n = Arc::new(Int64Array::from_iter_values(0..n_rows as i64)) as ArrayRef;
    let columns = [("n", n), ("a", numbers(1.0)), ("b", numbers(2.0)), ("c", numbers(3.0))];
    let folder = Folder::new();
    let path = folder.path().join("t.parquet");
    parquet::write(&path, &RecordBatch::try_from_iter(columns).unwrap(), group_rows);
    std::fs::read(path).unwrap()
}

/// The same content in every format and compression.
pub(super) fn every_format(n_rows: usize) -> Vec<(&'static str, Vec<u8>)> {
    let text = csv(n_rows);
    let json: String =
        (0..n_rows).map(|row| format!("{{\"n\":{row},\"word\":\"w{}\"}}\n", row % 5)).collect();
    let bytes: Vec<u8> = (0..n_rows * 4).map(|byte| byte as u8).collect();
    let mut idx = vec![0, 0, 8, 2];
    idx.extend((n_rows as u32).to_be_bytes());
    idx.extend(4u32.to_be_bytes());
    idx.extend(&bytes);
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({n_rows}, 4), }}\n");
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend((header.len() as u16).to_le_bytes());
    npy.extend(header.as_bytes());
    npy.extend(&bytes);
    let parquet = parquet(n_rows, n_rows / 3 + 1);
    let pairs: String = (0..n_rows).map(|row| format!("{} {row}:1 7:{row}\n", row % 2)).collect();
    vec![
        ("t.csv.gz", gzip(&text)),
        ("t.jsonl.zst", zstd::encode_all(json.as_bytes(), 1).unwrap()),
        ("t.txt", json.into_bytes()),
        ("t.idx", idx),
        ("t.npy.gz", gzip(&npy)),
        ("t.npy", npy),
        ("t.parquet.gz", gzip(&parquet)),
        ("t.parquet", parquet),
        ("t.csv", text),
        ("t.libsvm.gz", gzip(pairs.as_bytes())),
    ]
}

#[test]
fn every_format_is_the_same_from_a_file_and_from_urls() {
    let scene = Scene::new();
    for (name, bytes) in every_format(60_000) {
        scene.put(name, bytes);
        for (block_bytes, n_threads) in [(1 << 16, 1), (1 << 20, 3)] {
            let how = How { block_bytes, n_threads, ..How::default() };
            let expected = scene.folder.read(&one(name), &how).unwrap();
            for url in scene.urls(name) {
                assert!(scene.folder.read(&one(&url), &how).unwrap() == expected, "{url}");
            }
        }
    }
}

#[test]
fn patterns_match_keys_as_they_match_files() {
    let scene = Scene::new();
    for name in ["d/b.csv", "d/a.csv", "d/c.csv", "d/.h.csv", "d/e/a.csv", "f/a.csv", "d/x[1].csv"]
    {
        scene.put(name, format!("v\n{name}\n"));
    }
    let read = |pattern: &str| {
        let rows = scene.folder.read(&one(pattern), &How::default()).unwrap();
        words(&rows, "v").into_iter().flatten().collect::<Vec<String>>()
    };
    for pattern in ["d/*.csv", "d/[ab].csv", "*/a.csv", "**/a.csv", "d/?.csv", "d/x[1].csv"] {
        for url in &scene.urls(pattern)[1..] {
            assert_eq!(read(url), read(pattern), "{url}");
        }
    }
    // Pages of two keys: what lies in folders below is not listed where it cannot match.
    scene.server.order(Faults::default());
    read(&scene.s3("d/*.csv"));
    let is_list = |target: &str| target.contains("list-type=2");
    let lists = scene.server.requests().iter().filter(|one| is_list(&one.target)).count();
    assert_eq!(lists, 2 * 3, "the schema and the rows, three pages each");
    assert_eq!(
        scene.error(&scene.s3("d/z*.csv")),
        "no object matches `s3://bucket/d/z*.csv`; check the pattern and the bucket"
    );
    let sentence = scene.error(&scene.s3("d/[.csv"));
    assert!(
        sentence.starts_with("`s3://bucket/d/[.csv` is not a pattern for objects"),
        "{sentence}"
    );
}

#[test]
fn names_of_objects_may_have_any_characters() {
    let scene = Scene::new();
    let name = "a b+c/%41 #é~'.csv";
    scene.put(name, "v\n7\n");
    for url in &scene.urls(name)[1..] {
        let rows = scene.folder.read(&one(url), &How::default()).unwrap();
        assert_eq!(numbers(&rows, "v"), [Some(7.0)], "{url}");
    }
    for url in &scene.urls("a b+c/*.csv")[1..] {
        let rows = scene.folder.read(&one(url), &How::default()).unwrap();
        assert_eq!(numbers(&rows, "v"), [Some(7.0)], "{url}");
    }
}

#[test]
fn lists_and_columns_may_mix_paths_and_urls() {
    let scene = Scene::new();
    scene.put("a.csv", "v\n1\n2\n");
    scene.put("b.csv", "v\n3\n4\n");
    let many = Source::Many(vec!["a.csv".into(), scene.web("b.csv"), scene.s3("a.csv")]);
    let rows = scene.folder.read(&many, &How::default()).unwrap();
    assert_eq!(numbers(&rows, "v"), [1.0, 2.0, 3.0, 4.0, 1.0, 2.0].map(Some));
    let columns = [("p".to_string(), "a.csv".to_string()), ("q".to_string(), scene.s3("b.csv"))];
    let rows = scene.folder.read(&Source::Columns(columns.into()), &How::default()).unwrap();
    assert_eq!(numbers(&rows, "p"), [1.0, 2.0].map(Some));
    assert_eq!(numbers(&rows, "q"), [3.0, 4.0].map(Some));
}

#[test]
fn the_query_of_a_web_address_is_sent_and_says_nothing_about_the_format() {
    let scene = Scene::new();
    scene.put("t.csv", csv(5));
    let url = scene.web("t.csv?version=2&sig=a%2Fb.npy");
    assert_eq!(scene.folder.read(&one(&url), &How::default()).unwrap().num_rows(), 5);
    assert_eq!(scene.server.requests()[0].target, "/t.csv?version=2&sig=a%2Fb.npy");
}

#[test]
fn parquet_is_read_in_few_requests_of_what_is_wanted() {
    let scene = Scene::new();
    scene.put("small.parquet", parquet(1000, 100));
    scene.put("large.parquet", parquet(200_000, 50_000));
    let count = |name: &str, columns: Option<Vec<String>>, n_threads: usize| {
        scene.server.order(Faults::default());
        let options = ReadOptions { columns, ..ReadOptions::default() };
        let how = How { options, n_threads, ..How::default() };
        scene.folder.blocks(&one(&scene.s3(name)), &how).unwrap();
        (scene.server.requests().len(), scene.server.n_body_bytes())
    };
    let n_bytes = std::fs::metadata(scene.folder.path().join("large.parquet")).unwrap().len();
    assert_eq!(count("small.parquet", None, 3).0, 1);
    for n_threads in [1, 3] {
        let (n_requests, n_sent) = count("large.parquet", None, n_threads);
        assert!(n_requests <= 2 + 4 * 4, "{n_requests} requests");
        assert!(n_sent < n_bytes + (256 << 10), "{n_sent} of {n_bytes}");
    }
    let (_, n_sent) = count("large.parquet", Some(vec!["b".into()]), 1);
    assert!(n_sent < n_bytes / 3 + (256 << 10), "{n_sent} of {n_bytes}");
}

#[test]
fn a_reader_that_rests_holds_the_server_back_and_one_that_is_dropped_ends() {
    let scene = Scene::new();
    let n_bytes = 96 << 20;
    scene.put("t.txt", vec![b'a'; n_bytes]);
    scene.server.order(Faults::default());
    let mut opened = crate::files::open(&Path::new(&scene.web("t.txt")).into()).unwrap();
    let mut first = [0; 10];
    std::io::Read::read_exact(&mut opened.bytes, &mut first).unwrap();
    // What is on its way is in buffers of both sides, which are some MiB together.
    std::thread::sleep(Duration::from_millis(400));
    let n_sent = scene.server.n_body_bytes();
    assert!(n_sent < n_bytes as u64 / 2, "{n_sent} bytes were sent for {} that were read", 10);
    drop(opened);
}

#[test]
fn urls_can_be_read_inside_a_runtime() {
    let scene = Scene::new();
    scene.put("t.csv", csv(100));
    scene.put("t.parquet", parquet(100, 50));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async {
        for name in ["t.csv", "t.parquet"] {
            let rows = scene.folder.read(&one(&scene.web(name)), &How::default()).unwrap();
            assert_eq!(rows.num_rows(), 100);
        }
    });
}
