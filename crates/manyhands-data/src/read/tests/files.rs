use std::io::Write as _;

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn globs_match_in_the_order_of_names_and_lists_in_their_own() {
    let folder = Folder::new();
    for name in ["b.csv", "a.csv", "sub/c.csv", ".hidden.csv"] {
        folder.write(name, format!("v\n{name}\n"));
    }
    let rows = folder.read(&one("*.csv"), &How::default()).unwrap();
    assert_eq!(words(&rows, "v"), [Some("a.csv".into()), Some("b.csv".into())]);
    let many = Source::Many(vec!["sub/*.csv".into(), "a.csv".into()]);
    let rows = folder.read(&many, &How::default()).unwrap();
    assert_eq!(words(&rows, "v"), [Some("sub/c.csv".into()), Some("a.csv".into())]);
}

#[test]
fn a_folder_with_brackets_in_its_name_is_no_pattern() {
    let folder = Folder::new();
    folder.write("[x]/a[1].csv", "v\n1\n");
    let inner = folder.path().join("[x]");
    for pattern in ["*.csv", "a[1].csv"] {
        let reader = crate::read(&one(pattern), &inner, &ReadOptions::default()).unwrap();
        assert_eq!(reader.count(), 1);
    }
}

#[test]
fn what_is_not_there_is_said() {
    let folder = Folder::new();
    folder.write("a.csv", "v\n1\n");
    folder.write("b.jsonl", "{}\n");
    folder.write("c.dat", "x");
    let error = folder.error(&one("x*.csv"), &How::default());
    assert!(error.starts_with("no file matches `x*.csv` in "), "{error}");
    assert_eq!(folder.error(&one("x.csv"), &How::default()), "there is no file x.csv");
    let error = folder.error(&one("[.csv"), &How::default());
    assert!(error.starts_with("`[.csv` is not a pattern"), "{error}");
    let error = folder.error(&one("."), &How::default());
    assert!(error.contains("is a folder"), "{error}");
    let error = folder.error(&one("c.dat"), &How::default());
    assert!(error.contains("set `data.format`"), "{error}");
    let error =
        folder.error(&Source::Many(vec!["a.csv".into(), "b.jsonl".into()]), &How::default());
    assert!(error.contains("a.csv is CSV and b.jsonl is JSON lines"), "{error}");
    let error = folder.error(&Source::Many(vec![]), &How::default());
    assert!(error.contains("names no files"), "{error}");
}

#[test]
fn packed_files_are_known_by_their_first_bytes() {
    let folder = Folder::new();
    let text = b"a,b\n1,2\n3,4\n";
    let two_members = [gzip(&text[..6]), gzip(&text[6..])].concat();
    folder.write("t.csv.gz", two_members);
    folder.write("t.csv.zst", zstd::encode_all(&text[..], 1).unwrap());
    folder.write("t.csv", gzip(text));
    for name in ["t.csv.gz", "t.csv.zst", "t.csv"] {
        let rows = folder.read(&one(name), &How::default()).unwrap();
        assert_eq!(numbers(&rows, "b"), [Some(2.0), Some(4.0)]);
    }
    folder.write("u.csv.gz", text);
    let error = folder.error(&one("u.csv.gz"), &How::default());
    assert_eq!(error, "u.csv.gz is named as gzip but does not start as gzip does");
}

#[test]
fn a_packed_file_cut_short_is_an_error() {
    let folder = Folder::new();
    let text = "a,b\n".to_string() + &"1.25,2\n".repeat(5000);
    let gz = gzip(text.as_bytes());
    let zst = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for (name, bytes) in [("t.csv.gz", gz), ("t.csv.zst", zst)] {
        folder.write(name, &bytes[..bytes.len() - 9]);
        let error = folder.error(&one(name), &How::default());
        assert!(error.contains("is damaged or cut short"), "{error}");
    }
}

fn columns(pairs: &[(&str, &str)]) -> Source {
    Source::Columns(pairs.iter().map(|(name, file)| (name.to_string(), file.to_string())).collect())
}

#[test]
fn one_file_per_column_is_put_side_by_side() {
    let folder = Folder::new();
    let mut idx = vec![0, 0, 8, 2, 0, 0, 0, 5, 0, 0, 0, 2];
    idx.extend(0..10);
    folder.write("images.idx.gz", gzip(&idx));
    folder.write("labels.csv", "whatever\nx\ny\nz\nx\ny\n");
    let source = columns(&[("image", "images.idx.gz"), ("label", "labels.csv")]);
    for block_bytes in [1, 3, 5, 1000] {
        let how = How { block_bytes, n_threads: 3, ..How::default() };
        let rows = folder.read(&source, &how).unwrap();
        assert_eq!(names(&rows), ["image", "label"]);
        assert_eq!(rows.num_rows(), 5);
        assert_eq!(words(&rows, "label")[2], Some("z".into()));
        let block = folder.blocks(&source, &how).unwrap().pop().unwrap();
        let last = block.rows.num_rows() - 1;
        assert!(block.place(last, 0).to_string().starts_with("row 5 of "));
        assert!(block.place(last, 1).to_string().starts_with("line 6 of "));
    }
    folder.write("short.csv", "l\nx\ny\n");
    let error =
        folder.error(&columns(&[("a", "images.idx.gz"), ("b", "short.csv")]), &How::default());
    assert!(error.starts_with("short.csv has 2 rows and images.idx.gz has 5;"), "{error}");
    folder.write("wide.csv", "l,m\nx,1\n");
    let error = folder.error(&columns(&[("a", "wide.csv")]), &How::default());
    assert!(error.starts_with("wide.csv has 2 columns, none of them `a`"), "{error}");
    let rows = folder.read(&columns(&[("m", "wide.csv")]), &How::default()).unwrap();
    assert_eq!(numbers(&rows, "m"), [Some(1.0)]);
}

#[test]
fn a_reader_that_is_dropped_early_stops_its_threads() {
    let folder = Folder::new();
    folder.write("t.csv", "a\n".to_string() + &"1\n".repeat(10_000));
    let options = ReadOptions { n_threads: 3, ..Default::default() };
    let mut reader = read_blocks(&one("t.csv"), folder.path(), &options, 100).unwrap();
    assert!(reader.next_block().unwrap().is_ok());
    drop(reader);
}
