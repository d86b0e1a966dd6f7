//! Bad input: each is one sentence that says what, where and what would be right.

use manyhands_data::{Encoding, Labels, Source, Target};
use serde_json::json;

use crate::{Folder, spec};

const GOOD: &str = "x,c,y\n1,a,0\n2,b,1\n3,a,1\n";

fn check(csv: &str, job: serde_json::Value, target: Target, sentence: &str) {
    let mut json = json!({"train": "a.csv", "label": "y"});
    json.as_object_mut().unwrap().extend(job.as_object().unwrap().clone());
    let folder = Folder::new().with("a.csv", csv);
    assert_eq!(folder.refused(&spec(json), target), sentence);
}

#[test]
fn columns_that_are_not_there() {
    let classes = Target::Classes;
    check(
        GOOD,
        json!({"label": "z"}),
        classes,
        "`data.label` names the column `z`, which a.csv does not have; it has `x`, `c`, `y`",
    );
    check(
        GOOD,
        json!({"features": ["x", "cc"]}),
        classes,
        "`data.features` names the column `cc`, which a.csv does not have; it has `c`, `x`, `y`",
    );
    check(
        GOOD,
        json!({"columns": {"yy": "number"}}),
        classes,
        "`data.columns` names the column `yy`, which a.csv does not have; it has `y`, `x`, `c`",
    );
    check(
        GOOD,
        json!({"label": null}),
        classes,
        "the loss needs a label: say `data.label`, one of `x`, `c`, `y`",
    );
    check(
        GOOD,
        json!({"columns": {"x": "ignore", "c": "ignore"}}),
        classes,
        "there is no column to predict from besides the label; see `data.features` and \
         `data.columns`",
    );
}

#[test]
fn values_that_cannot_be_used() {
    check(
        "x,y\n1,0\n,1\n",
        json!({}),
        Target::Classes,
        "line 3 of a.csv, column `x`: the cell is empty; `data.missing` says what to do with \
         empty cells (\"drop\", \"mean\", \"previous\")",
    );
    check(
        "x,y\n1,0\n2,\n",
        json!({"missing": "mean"}),
        Target::Classes,
        "line 3 of a.csv, column `y`: the cell is empty, and a label cannot be filled in; \
         `data.missing = \"drop\"` leaves such rows out",
    );
    check(
        "x,y\n1,0\ninf,1\n",
        json!({}),
        Target::Classes,
        "line 3 of a.csv, column `x`: the number is inf; numbers must be finite and fit into 32 bits, so below 3.4e38 (an empty cell, \
         or a word of `data.empty`, counts as missing)",
    );
    check(
        "x,y\n1,0\nNaN,1\n",
        json!({"empty": []}),
        Target::Classes,
        "line 3 of a.csv, column `x`: the number is NaN; numbers must be finite and fit into 32 bits, so below 3.4e38 (an empty cell, \
         or a word of `data.empty`, counts as missing)",
    );
    check(
        "x,y\n1,0\n2,0.5\n",
        json!({}),
        Target::Classes,
        "line 3 of a.csv, column `y`: 0.5 is not whole, but classes are words or whole numbers; \
         for numbers choose another loss, such as `squared_error`",
    );
    check(
        "x,y\n1,a\n2,b\n",
        json!({}),
        Target::Numbers,
        "the column `y` holds words, which cannot be used as the number to predict; a loss for \
         classes, such as `cross_entropy`, takes words",
    );
    check(
        "x,y\n1,a\n,a\n",
        json!({"features": ["x"], "columns": {"x": "text"}}),
        Target::Classes,
        "a column of text needs `data.text`, such as `text = { unit = \"words\", length = 100 }`",
    );
}

#[test]
fn parts_without_samples() {
    check("x,y\n", json!({}), Target::Classes, "the training part has no rows: a.csv has none");
    check(
        "x,y\n1,\n",
        json!({"missing": "drop", "columns": {"x": "number", "y": "number"}}),
        Target::Classes,
        "the training part has no rows: all 1 of a.csv have empty cells, and are left out",
    );
    check(
        GOOD,
        json!({"test": 1e-9}),
        Target::Classes,
        "the test part has no rows: none of the 3 rows fell to its share of 0.000000001",
    );
    check(
        GOOD,
        json!({"window": {"length": 3}}),
        Target::Classes,
        "the training part has no windows: it has 3 rows or tokens, and a sample with its target \
         takes 4",
    );
    check(
        GOOD,
        json!({"test": 1.5}),
        Target::Classes,
        "`data.test` is 1.5; a share to hold out is more than 0 and less than 1",
    );
}

#[test]
fn settings_that_make_no_sense() {
    check(
        GOOD,
        json!({"window": {"length": 0}}),
        Target::Classes,
        "`data.window.length` is 0; it must be at least 1",
    );
    check(
        GOOD,
        json!({"shape": [2, 2]}),
        Target::Classes,
        "`data.shape` is [2, 2], 4 numbers, but a sample has 3 features",
    );
    check(
        GOOD,
        json!({"separator": "→"}),
        Target::Classes,
        "`data.separator` is '→'; it must be one ASCII character, such as \",\" or \"\\t\"",
    );
    check(
        GOOD,
        json!({}),
        Target::NextToken,
        "predicting the next token needs `data.text`, such as `text = { unit = \"characters\", \
         length = 64 }`",
    );
    check(
        GOOD,
        json!({"text": {"length": 3}}),
        Target::NextToken,
        "the loss predicts the next token, which takes plain text (`.txt` files, or `data.format \
         = \"text\"`); there are the columns `x`, `c`, `y`",
    );
}

#[test]
fn too_many_values_for_one_number_each() {
    let rows: String = (0..10_001).map(|i| format!("v{i},{}\n", i % 2)).collect();
    check(
        &format!("c,y\n{rows}"),
        json!({}),
        Target::Classes,
        "column `c` has more than 10000 different values, too many for one number each; \
         `data.categories = \"index\"` with an embedding takes them, `data.columns.c = \
         \"ignore\"` leaves the column out",
    );
}

#[test]
fn values_that_only_the_held_out_part_has() {
    // Whichever rows are drawn, each value is in one part only.
    let rows: String = (0..50).map(|i| format!("{i},v{i},{}\n", i % 2)).collect();
    let folder = Folder::new().with("a.csv", format!("x,c,y\n{rows}"));
    let job = spec(json!({"train": "a.csv", "label": "y", "test": 0.5}));
    let sentence = folder.refused(&job, Target::Classes);
    assert!(sentence.contains("column `c`: the training part does not have `v"), "{sentence}");
    let (line, value) = (sentence.find("line ").unwrap() + 5, sentence.find("`v").unwrap() + 2);
    let number = |at: usize| {
        let digits: String = sentence[at..].chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<usize>().unwrap()
    };
    assert_eq!(number(line), number(value) + 2, "{sentence}");
}

#[test]
fn new_data_that_does_not_fit() {
    let folder = Folder::new()
        .with("a.csv", GOOD)
        .with("unknown.csv", "x,c,y\n1,a,0\n2,q,1\n")
        .with("class.csv", "x,c,y\n1,a,7\n")
        .with("gone.csv", "x,y\n1,0\n")
        .with("empty.csv", "x,c,y\n");
    let job = spec(json!({"train": "a.csv", "label": "y"}));
    let data = folder.open(&job, Target::Classes);
    let refused = |file: &str| {
        let source = Source::One(file.into());
        let read =
            data.encoding.read(&job, &source, folder.path(), folder.path(), Labels::Required);
        let sentence = read.unwrap_err().to_string();
        sentence.replace(&format!("{}/", folder.path().display()), "")
    };
    assert_eq!(
        refused("unknown.csv"),
        "line 3 of unknown.csv, column `c`: the training part does not have `q`; `data.unknown = \
         \"other\"` lets such values share one of their own"
    );
    assert_eq!(
        refused("class.csv"),
        "line 2 of class.csv, column `y`: the label `7` is none of the 2 classes of the training \
         part (`0`, `1`)"
    );
    assert_eq!(
        refused("gone.csv"),
        "gone.csv has no column `c`, which the model was trained on; it has `x`, `y`"
    );
    assert!(refused("empty.csv").starts_with("the given part has no rows"));
    let held_out = spec(json!({"train": "a.csv", "label": "y", "test": "class.csv"}));
    assert!(folder.refused(&held_out, Target::Classes).starts_with("line 2 of class.csv"));
}

#[test]
fn an_encoding_of_a_newer_version() {
    let folder = Folder::new().with("a.csv", GOOD);
    let data = folder.open(&spec(json!({"train": "a.csv", "label": "y"})), Target::Classes);
    let mut saved = serde_json::to_value(&data.encoding).unwrap();
    saved["version"] = 99.into();
    let error = serde_json::from_value::<Encoding>(saved).unwrap_err().to_string();
    assert_eq!(
        error,
        "the saved encoding of the data has version 99; this program knows versions up to 1"
    );
}

#[test]
fn a_word_among_numbers_is_a_fault() {
    check(
        "x,y\n1,a\n2,b\nthree,a\n4,b\n",
        json!({}),
        Target::Classes,
        "line 4 of a.csv, column `x`: `three` is not a number; if the column holds words, set `data.columns.x = \"category\"`",
    );
    check(
        "x,y\n1,a\n1e300,b\n",
        json!({}),
        Target::Classes,
        "line 3 of a.csv, column `x`: the number is 1e300; numbers must be finite and fit into 32 bits, so below 3.4e38 (an \
         empty cell, or a word of `data.empty`, counts as missing)",
    );
}
