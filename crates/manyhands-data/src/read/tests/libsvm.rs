use std::io::Write;

use ::arrow::datatypes::{Float32Type, Int32Type};
use proptest::prelude::*;

use super::*;
use crate::hash::FeatureHash;

/// Label and pairs of each row.
type Lines = Vec<(f64, Vec<(i32, f32)>)>;

fn read_text(text: &str, how: &How) -> Result<Lines, ReadError> {
    let folder = Folder::new();
    folder.write("t.libsvm", text);
    folder.read(&one("t.libsvm"), how).map(|rows| lines(&rows))
}

fn error_of(text: &str, how: &How) -> String {
    let folder = Folder::new();
    folder.write("t.libsvm", text);
    folder.error(&one("t.libsvm"), how)
}

fn lines(rows: &RecordBatch) -> Lines {
    let labels = numbers(rows, "label");
    let indices = elements(rows.column_by_name("indices").unwrap());
    let values = elements(rows.column_by_name("values").unwrap());
    let n = indices.len() / labels.len().max(1);
    let indices = indices.as_primitive::<Int32Type>().values().chunks(n.max(1));
    let values = values.as_primitive::<Float32Type>().values().chunks(n.max(1));
    let pairs = indices.zip(values).map(|(indices, values)| {
        let pairs = indices.iter().copied().zip(values.iter().copied());
        pairs.filter(|(index, _)| *index >= 0).collect()
    });
    labels.into_iter().map(Option::unwrap).zip(pairs).collect()
}

#[test]
fn lines_become_labels_and_pairs_of_one_width() {
    let text = "1 3:0.5 17:1\r\n\n# a comment\n-1 # nothing\n+1\t2:-1e3   3:4 5:6 # more 7:8\n";
    for block_bytes in [20, 1000] {
        let how = How { block_bytes, n_threads: 2, ..How::default() };
        let wanted = [
            (1.0, vec![(3, 0.5), (17, 1.0)]),
            (-1.0, vec![]),
            (1.0, vec![(2, -1000.0), (3, 4.0), (5, 6.0)]),
        ];
        assert_eq!(read_text(text, &how).unwrap(), wanted);
    }
    let folder = Folder::new();
    folder.write("t.svm", text);
    let rows = folder.read(&one("t.svm"), &How::default()).unwrap();
    assert_eq!(names(&rows), ["label", "indices", "values"]);
    assert_eq!(elements(rows.column(1)).len(), 9, "three rows of as many pairs as the last has");
}

#[test]
fn indices_become_buckets_where_that_is_asked_for() {
    let options = ReadOptions { hash_bits: Some(8), most_pairs: Some(3), ..Default::default() };
    let how = How { options, ..How::default() };
    let read = read_text("2.5 7:1 18446744073709551615:2\n", &how).unwrap();
    let bucket = |index| FeatureHash::of_index(index, 8);
    assert_eq!(read, [(2.5, vec![(bucket(7), 1.0), (bucket(u64::MAX), 2.0)])]);
}

#[test]
fn faults_are_named_by_their_line() {
    let good = "1 1:1 2:2\n".repeat(40);
    let check = |line: &str, expected: &str| {
        for n_threads in [1, 3] {
            let options = ReadOptions { most_pairs: Some(2), ..Default::default() };
            let how = How { block_bytes: 50, n_threads, options };
            let error = error_of(&format!("{good}\n{line}\n{good}"), &how);
            assert!(error.starts_with(expected), "{error}");
        }
    };
    check("1 3", "line 42 of t.libsvm: `3` is not an index and a value, such as `7:0.5`");
    check("1 3:", "line 42 of t.libsvm: `3:` is not an index");
    check("1 -3:1", "line 42 of t.libsvm: `-3:1` is not an index");
    check("1 3:x", "line 42 of t.libsvm: `3:x` is not an index");
    check("3:1 4:1", "line 42 of t.libsvm begins with `3:1`, where its label belongs");
    check("yes 4:1", "line 42 of t.libsvm begins with `yes`");
    check("1 qid:3 4:1", "line 42 of t.libsvm has a `qid`: files of queries, for ranking");
    check("1 2147483647:1", "line 42 of t.libsvm has the index 2147483647, beyond 2147483646");
    check("1 1:1 2:1 3:1", "line 42 of t.libsvm has 3 features, where 2 are the most");
    assert_eq!(error_of("\n\n", &How::default()), "t.libsvm is empty");
}

#[test]
fn packed_files_and_several_of_them_are_read_alike() {
    let folder = Folder::new();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(b"1 3:1\n").unwrap();
    folder.write("a.libsvm.gz", gz.finish().unwrap());
    folder.write("b.libsvm.zst", zstd::encode_all(&b"0 4:1 5:2\n"[..], 1).unwrap());
    let rows = folder.read(&one("*.libsvm.*"), &How::default()).unwrap();
    assert_eq!(lines(&rows), [(1.0, vec![(3, 1.0)]), (0.0, vec![(4, 1.0), (5, 2.0)])]);
}

proptest! {
    /// Against a parser that takes lines apart in the plainest way.
    #[test]
    fn any_lines_are_read_as_a_plain_parser_reads_them(
        rows in prop::collection::vec(
            (-3i32..4, prop::collection::vec((0i32..1000, -99i32..100), 0..6), any::<bool>()), 1..30),
        block_bytes in 1usize..200,
        n_threads in 1usize..3,
    ) {
        let mut text = String::new();
        for (label, pairs, is_odd) in &rows {
            text += &label.to_string();
            let space = if *is_odd { "  " } else { " " };
            for (index, value) in pairs {
                text += &format!("{space}{index}:{}", f64::from(*value) / 8.0);
            }
            text += if *is_odd { " # 9:9 x\r\n#\n\n" } else { "\n" };
        }
        let plain: Lines = text
            .lines()
            .map(|line| line.split('#').next().unwrap().split_whitespace().collect::<Vec<_>>())
            .filter(|words| !words.is_empty())
            .map(|words| {
                let pair = |word: &&str| {
                    let (index, value) = word.split_once(':').unwrap();
                    (index.parse().unwrap(), value.parse().unwrap())
                };
                (words[0].parse().unwrap(), words[1..].iter().map(pair).collect())
            })
            .collect();
        let how = How { block_bytes, n_threads, ..How::default() };
        prop_assert_eq!(read_text(&text, &how).unwrap(), plain);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = Folder::new();
        folder.write("t.libsvm", bytes);
        let _ = folder.blocks(&one("t.libsvm"), &How::default());
    }
}
