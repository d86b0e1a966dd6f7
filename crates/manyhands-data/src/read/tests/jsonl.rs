use ::arrow::array::BooleanArray;

use super::*;
use crate::spec::ColumnKind;

fn read_text(text: &str, how: &How) -> Result<RecordBatch, ReadError> {
    let folder = Folder::new();
    folder.write("t.jsonl", text);
    folder.read(&one("t.jsonl"), how)
}

fn error_of(text: &str, how: &How) -> String {
    let folder = Folder::new();
    folder.write("t.jsonl", text);
    folder.error(&one("t.jsonl"), how)
}

#[test]
fn objects_become_rows_in_the_order_of_their_keys() {
    let text = "{\"z\": 1, \"a\": \"x\", \"t\": true}\n\n{\"a\": null, \"z\": 2.5e1}\r\n{\"t\":false,\"z\":\"3\",\"a\":\"é\\n\"}";
    for block_bytes in [200, 1000] {
        let rows = read_text(text, &How { block_bytes, n_threads: 2, ..How::default() });
        // A string that says a number among numbers makes words, unless the kind is given.
        assert_eq!(
            words(&rows.unwrap(), "z"),
            [Some("1".into()), Some("25".into()), Some("3".into())]
        );
        let kinds = [("z".to_string(), ColumnKind::Number)].into();
        let options = ReadOptions { kinds, ..Default::default() };
        let rows = read_text(text, &How { options, block_bytes, n_threads: 1 }).unwrap();
        assert_eq!(names(&rows), ["z", "a", "t"]);
        assert_eq!(numbers(&rows, "z"), [Some(1.0), Some(25.0), Some(3.0)]);
        assert_eq!(words(&rows, "a"), [Some("x".into()), None, Some("é\n".into())]);
        let truths: BooleanArray = vec![Some(true), None, Some(false)].into();
        assert_eq!(rows.column(2).as_boolean(), &truths);
    }
}

#[test]
fn lists_of_numbers_are_flattened() {
    let text = "{\"v\": [[1, 2], [3, 4.5]]}\n{\"v\": null}\n{\"v\": [[5, 6], [7, 8]]}\n";
    let rows = read_text(text, &How::default()).unwrap();
    let schema = rows.schema();
    assert_eq!(schema.field(0).metadata().get(Block::SHAPE).map(|s| s.as_str()), Some("2,2"));
    assert!(rows.column(0).is_null(1));
    let found = elements(rows.column(0));
    assert_eq!(found.as_primitive::<Float64Type>().values()[8..], [5.0, 6.0, 7.0, 8.0]);
    let error = error_of("{\"v\": [1, 2]}\n{\"v\": [1, 2, 3]}\n", &How::default());
    assert!(error.starts_with("line 2 of t.jsonl, column `v`: a list has 3 values"), "{error}");
    let error = error_of("{\"v\": [1, 2]}\n{\"v\": [1, [2]]}\n", &How::default());
    assert!(error.contains("a list of something else than numbers does not fit"), "{error}");
    let error = error_of("{\"v\": [1, 2]}\n{\"v\": [1, \"2\"]}\n", &How::default());
    assert!(error.contains("a list of something else than numbers does not fit"), "{error}");
}

#[test]
fn faults_are_named_by_their_line() {
    let good = "{\"a\": 1}\n".repeat(40);
    let check = |line: &str, expected: &str| {
        for n_threads in [1, 3] {
            let how = How { block_bytes: 50, n_threads, ..How::default() };
            let error = error_of(&format!("{good}\n{line}\n{good}"), &how);
            assert!(error.starts_with(expected), "{error}");
        }
    };
    check("{\"a\": }", "line 42 of t.jsonl is not a JSON object: expected value at character 7");
    check("[1]", "line 42 of t.jsonl is not a JSON object: ");
    check("{\"a\": 1} x", "line 42 of t.jsonl is not a JSON object: trailing characters");
    check("{\"a\": \"x\"}", "line 42 of t.jsonl, column `a`: `x` is not a number");
    check("{\"a\": {}}", "line 42 of t.jsonl, column `a`: an object does not fit");
    check(
        "{\"a\": 1, \"a\": 2}",
        "line 42 of t.jsonl is not a JSON object: the key `a` is there twice",
    );
    check("{\"b\": 1}", "line 42 of t.jsonl has a key `b` that the first lines do not have");
}

#[test]
fn other_shapes_of_json_are_explained() {
    let error = error_of("[\n{\"a\": 1}\n]\n", &How::default());
    assert!(error.starts_with("t.jsonl is one JSON array; write one object a line"), "{error}");
    let error = error_of("{\"a\": {\"b\": 1}}\n", &How::default());
    assert!(error.contains("set `data.columns.a = \"ignore\"`"), "{error}");
}

#[test]
fn keys_that_are_not_asked_for_are_passed_over() {
    let text = "{\"a\": 1, \"o\": {\"x\": []}, \"b\": 2}\n{\"q\": [\"x\"], \"b\": 3, \"a\": 4}\n";
    let options = ReadOptions { columns: Some(vec!["b".into()]), ..Default::default() };
    let rows = read_text(text, &How { options, ..How::default() }).unwrap();
    assert_eq!(numbers(&rows, "b"), [Some(2.0), Some(3.0)]);
}
