use std::fmt::Write as _;
use std::io::Read as _;

use proptest::prelude::*;

use super::*;
use crate::spec::ColumnKind;

fn read_text(text: impl AsRef<[u8]>, how: &How) -> Result<RecordBatch, ReadError> {
    let folder = Folder::new();
    folder.write("t.csv", text);
    folder.read(&one("t.csv"), how)
}

fn error_of(text: impl AsRef<[u8]>, how: &How) -> String {
    let folder = Folder::new();
    folder.write("t.csv", text);
    folder.error(&one("t.csv"), how)
}

fn some(values: &[f64]) -> Vec<Option<f64>> {
    values.iter().copied().map(Some).collect()
}

fn texts(values: &[&str]) -> Vec<Option<String>> {
    values.iter().map(|value| Some(value.to_string())).collect()
}

#[test]
fn numbers_and_words_are_told_apart() {
    let rows = read_text("a,b,c\n1,x,-2.5\n3e2,7y,.5\n", &How::default()).unwrap();
    assert_eq!(numbers(&rows, "a"), some(&[1.0, 300.0]));
    assert_eq!(words(&rows, "b"), texts(&["x", "7y"]));
    assert_eq!(numbers(&rows, "c"), some(&[-2.5, 0.5]));
}

#[test]
fn windows_line_ends_a_byte_order_mark_and_a_missing_last_break_do_not_matter() {
    for text in ["\u{feff}a,b\r\n1,x\r\n2,y", "a,b\n1,x\n2,y\n\n\r\n\n", "\n\na,b\n\n1,x\n\n2,y"] {
        let rows = read_text(text, &How::default()).unwrap();
        assert_eq!(names(&rows), ["a", "b"]);
        assert_eq!(numbers(&rows, "a"), some(&[1.0, 2.0]));
        assert_eq!(words(&rows, "b"), texts(&["x", "y"]));
    }
}

#[test]
fn quoted_cells_hold_separators_quotes_and_line_breaks() {
    let rows = read_text("a,\"b \"\"c\"\"\"\n\"1\",\"x,\"\"y\"\"\nz\"\n", &How::default()).unwrap();
    assert_eq!(names(&rows), ["a", "b \"c\""]);
    assert_eq!(numbers(&rows, "a"), some(&[1.0]));
    assert_eq!(words(&rows, "b \"c\""), texts(&["x,\"y\"\nz"]));
}

#[test]
fn a_quote_inside_an_unquoted_cell_is_a_quote() {
    let rows = read_text("a,b\n5\" pipe,1\nx,2\n", &How { block_bytes: 3, ..How::default() });
    assert_eq!(words(&rows.unwrap(), "a"), texts(&["5\" pipe", "x"]));
}

#[test]
fn cells_that_count_as_empty_are_null() {
    let options = ReadOptions { empty: vec!["NA".into(), "-999".into()], ..Default::default() };
    let how = How { options, ..How::default() };
    let rows = read_text("a,b\n1,x\n,NA\nNA,\n-999,\"\"\n", &how).unwrap();
    assert_eq!(numbers(&rows, "a"), [Some(1.0), None, None, None]);
    assert_eq!(words(&rows, "b"), [Some("x".to_string()), None, None, None]);
}

#[test]
fn a_blank_line_is_an_empty_cell_only_where_there_is_one_column() {
    for block_bytes in [1, 2, 3, 5, 100] {
        let how = How { block_bytes, ..How::default() };
        let rows = read_text("a\n1\n\n2\r\n\r\n\n3\n\n\n", &how).unwrap();
        let expected = [Some(1.0), None, Some(2.0), None, None, Some(3.0)];
        assert_eq!(numbers(&rows, "a"), expected);
    }
}

#[test]
fn without_a_header_columns_are_numbered() {
    let options = ReadOptions { header: false, separator: b';', ..Default::default() };
    let rows = read_text("1;x\n2;y\n", &How { options, ..How::default() }).unwrap();
    assert_eq!(names(&rows), ["c0", "c1"]);
    assert_eq!(rows.num_rows(), 2);
}

#[test]
fn tab_separated_files_are_known_by_their_name() {
    let folder = Folder::new();
    folder.write("t.tsv", "a\tb\n1\tx,y\n");
    let rows = folder.read(&one("t.tsv"), &How::default()).unwrap();
    assert_eq!(words(&rows, "b"), texts(&["x,y"]));
}

#[test]
fn columns_are_chosen_ordered_and_ignored() {
    let text = "a,b,c,d\n1,2,3,4\n5,6,7,8\n";
    let columns = Some(vec!["d".into(), "a".into()]);
    let options = ReadOptions { columns, ..Default::default() };
    let rows = read_text(text, &How { options, ..How::default() }).unwrap();
    assert_eq!(names(&rows), ["d", "a"]);
    assert_eq!(numbers(&rows, "d"), some(&[4.0, 8.0]));
    let kinds = [("b".into(), ColumnKind::Ignore), ("c".into(), ColumnKind::Category)];
    let options = ReadOptions { kinds: kinds.into(), ..Default::default() };
    let rows = read_text(text, &How { options, ..How::default() }).unwrap();
    assert_eq!(names(&rows), ["a", "c", "d"]);
    assert_eq!(words(&rows, "c"), texts(&["3", "7"]));
}

#[test]
fn a_missing_column_is_named_with_those_that_exist() {
    let options = ReadOptions { columns: Some(vec!["z".into()]), ..Default::default() };
    let error = error_of("a,b\n1,2\n", &How { options, ..How::default() });
    assert_eq!(error, "t.csv has no column `z`; its columns are `a`, `b`");
}

#[test]
fn a_ragged_row_is_named_by_its_line_for_any_block_size_and_threads() {
    let mut text = String::from("a,b\n");
    for row in 0..50 {
        writeln!(text, "{row},\"x\ny\"").unwrap();
    }
    text.push_str("\n1,2,3\n");
    for block_bytes in [1, 7, 64, 1000, 1 << 20] {
        for n_threads in [1, 2, 3] {
            let how = How { block_bytes, n_threads, ..How::default() };
            assert_eq!(
                error_of(&text, &how),
                "line 103 of t.csv has 3 cells, where 2 are expected"
            );
        }
    }
    let error = error_of("a,b\n1\n", &How::default());
    assert_eq!(error, "line 2 of t.csv has 1 cell, where 2 are expected");
}

#[test]
fn a_word_in_a_column_of_numbers_says_what_to_set() {
    let mut text = String::from("pm2.5,b\n");
    text.push_str(&"1,2\n".repeat(100));
    text.push_str("oops,3\n");
    let how = How { block_bytes: 64, n_threads: 2, ..How::default() };
    assert_eq!(
        error_of(&text, &how),
        "line 102 of t.csv, column `pm2.5`: `oops` is not a number; if the column holds words, \
         set `data.columns.\"pm2.5\" = \"category\"`"
    );
}

#[test]
fn bytes_that_are_no_text_are_named_by_their_line() {
    let error = error_of(b"a,b\nx,1\n\"y\ny\",2\n\xff,3\n", &How::default());
    assert_eq!(error, "line 5 of t.csv is not valid UTF-8; save the file as UTF-8");
}

#[test]
fn broken_quotes_are_named_by_their_line() {
    for block_bytes in [1, 5, 1 << 20] {
        let how = How { block_bytes, ..How::default() };
        let error = error_of("a,b\n1,x\n2,\"y\n3,z\n", &how);
        assert_eq!(error, "line 3 of t.csv opens a quote that is never closed");
        let error = error_of("a,b\n1,x\n2,\"y\" z\n", &how);
        assert!(error.starts_with("line 3 of t.csv has text behind a closing quote"), "{error}");
    }
}

#[test]
fn files_of_one_source_may_order_their_columns_but_not_differ_in_them() {
    let folder = Folder::new();
    folder.write("1.csv", "a,b\n1,x\n");
    folder.write("2.csv", "b,a\ny,2\n");
    let rows = folder.read(&one("*.csv"), &How::default()).unwrap();
    assert_eq!(numbers(&rows, "a"), some(&[1.0, 2.0]));
    folder.write("3.csv", "b\ny\n");
    let error = folder.error(&one("*.csv"), &How::default());
    assert!(error.starts_with("3.csv has no column `a`, which 1.csv has"), "{error}");
    folder.write("3.csv", "a,b,c\n1,y,2\n");
    let error = folder.error(&one("*.csv"), &How { n_threads: 2, ..How::default() });
    assert!(error.starts_with("3.csv has a column `c`, which 1.csv does not have"), "{error}");
}

#[test]
fn a_name_that_is_there_twice_and_an_empty_file_are_errors() {
    assert_eq!(error_of("a,a\n1,2\n", &How::default()), "t.csv has two columns named `a`");
    assert_eq!(error_of("", &How::default()), "t.csv is empty");
    assert_eq!(read_text("a,b\n", &How::default()).unwrap().num_rows(), 0);
}

#[test]
fn places_name_the_line_of_every_row() {
    let folder = Folder::new();
    folder.write("t.csv", "a,b\n1,x\n\n2,\"y\ny\"\n3,z\n4,\"w\n\n\"\n5,v\n");
    for block_bytes in [1, 8, 16, 1000] {
        for n_threads in [1, 2] {
            let how = How { block_bytes, n_threads, ..How::default() };
            let blocks = folder.blocks(&one("t.csv"), &how).unwrap();
            let places = blocks.iter().flat_map(|block| {
                (0..block.rows.num_rows()).map(move |row_idx| block.place(row_idx, 0))
            });
            let found: Vec<_> = places.map(|place| (place.row, place.line.unwrap())).collect();
            assert_eq!(found, [(0, 2), (1, 4), (2, 6), (3, 7), (4, 10)]);
        }
    }
}

#[test]
fn an_endless_record_is_an_error_before_it_takes_the_memory() {
    let folder = Folder::new();
    let text = b"a,b\n1,\"".chain(std::io::repeat(b'x').take(1 << 30));
    folder.write("t.csv.zst", zstd::encode_all(text, 1).unwrap());
    let error = folder.error(&one("t.csv.zst"), &How::default());
    assert!(error.starts_with("line 2 of t.csv.zst is longer than"), "{error}");
}

/// A cell as it is meant and as it is written.
fn cell() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        1 => Just(None),
        4 => any::<f64>().prop_map(|value| Some(value.to_string())),
        4 => "[a-z \"\n\r,;é]{1,6}".prop_map(Some),
    ]
}

fn written(cell: &Option<String>, always_quoted: bool) -> String {
    let text = cell.as_deref().unwrap_or("");
    let needs_quotes = text.contains(['"', '\n', '\r', ',', ' ']) || text.trim() != text;
    if always_quoted || needs_quotes {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn tables_read_back_equal_for_any_block_size_and_threads(
        table in (1usize..5).prop_flat_map(|n| {
            prop::collection::vec(prop::collection::vec(cell(), n), 1..30)
        }),
        always_quoted: bool,
        crlf: bool,
        ends: bool,
        block_bytes in 1usize..200,
        n_threads in 1usize..4,
    ) {
        let line_end = if crlf { "\r\n" } else { "\n" };
        let n_columns = table[0].len();
        let header: Vec<String> = (0..n_columns).map(|idx| format!("n{idx}")).collect();
        let mut lines = vec![header.join(",")];
        for row in &table {
            // A row of one empty cell must be quoted, lest it be a blank line at the end.
            let quoted = always_quoted || n_columns == 1;
            let cells: Vec<String> = row.iter().map(|cell| written(cell, quoted)).collect();
            lines.push(cells.join(","));
        }
        let mut text = lines.join(line_end);
        if ends {
            text.push_str(line_end);
        }
        let kinds = header.iter().map(|name| (name.clone(), ColumnKind::Text)).collect();
        let options = ReadOptions { kinds, ..Default::default() };
        let rows = read_text(text, &How { options, block_bytes, n_threads }).unwrap();
        prop_assert_eq!(rows.num_rows(), table.len());
        for (idx, name) in header.iter().enumerate() {
            let expected: Vec<_> = table.iter().map(|row| row[idx].clone()).collect();
            prop_assert_eq!(words(&rows, name), expected);
        }
    }

    #[test]
    fn numbers_read_back_bit_for_bit_for_any_block_size_and_threads(
        values in prop::collection::vec((any::<f64>(), -1_000_000i64..1_000_000, 0usize..9), 1..60),
        block_bytes in 1usize..300,
        n_threads in 1usize..4,
    ) {
        let mut text = String::from("a,b,c\n");
        let mut expected = Vec::new();
        for (full, digits, n_decimals) in &values {
            let short = format!("{:.*}", n_decimals, *digits as f64 / 1000.0);
            writeln!(text, "{full:e},{full},{short}").unwrap();
            expected.push([*full, *full, short.parse().unwrap()]);
        }
        let options = ReadOptions {
            kinds: ["a", "b", "c"].map(|name| (name.to_string(), ColumnKind::Number)).into(),
            ..Default::default()
        };
        let rows = read_text(text, &How { options, block_bytes, n_threads }).unwrap();
        for (idx, name) in ["a", "b", "c"].iter().enumerate() {
            for (found, expected) in numbers(&rows, name).iter().zip(&expected) {
                let (found, expected) = (found.unwrap(), expected[idx]);
                prop_assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
            }
        }
    }
}
