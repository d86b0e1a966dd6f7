//! Features as pairs of an index and a value: libsvm files, and hashed columns.

use manyhands_data::{Element, Encoding, Labels, Source, Target};
use serde_json::json;

use crate::{Folder, floats, input, integers, spec, target};

const LINES: &str = "1 3:0.5 7:1\n-1 2:2\n1\n";

#[test]
fn libsvm_files_become_indices_and_values_of_one_width() {
    let folder = Folder::new().with("a.libsvm", LINES).with("b.libsvm", "1 7:3\n");
    let spec = spec(json!({"train": "a.libsvm", "test": "b.libsvm"}));
    let data = folder.open(&spec, Target::Classes);
    let [indices, values] = data.encoding.inputs() else { panic!("two inputs") };
    assert_eq!((indices.name.as_str(), indices.element), ("indices", Element::I32));
    assert_eq!((values.name.as_str(), values.element), ("values", Element::F32));
    assert_eq!((&indices.shape[..], &values.shape[..]), (&[2][..], &[2][..]));
    assert_eq!(indices.n_categories, Some(8));
    assert_eq!(integers(&input(&data.train, 0)), [3, 7, 2, -1, -1, -1]);
    assert_eq!(floats(&input(&data.train, 1)), [0.5, 1.0, 2.0, 0.0, 0.0, 0.0]);
    assert_eq!(data.encoding.classes().unwrap(), ["-1", "1"]);
    assert_eq!(integers(&target(&data.train)), [1, 0, 1]);
    let test = data.test.unwrap();
    assert_eq!(integers(&input(&test, 0)), [7, -1]);
    let numbers = folder.open(&spec, Target::Numbers);
    assert_eq!(floats(&target(&numbers.train)).len(), 3);
}

#[test]
fn features_that_training_does_not_have_are_errors_or_left_out() {
    let folder = Folder::new().with("a.libsvm", LINES).with("b.libsvm", "1 8:3 2:1\n");
    let job =
        |unknown: &str| spec(json!({"train": "a.libsvm", "test": "b.libsvm", "unknown": unknown}));
    let error = folder.refused(&job("error"), Target::Classes);
    let wanted = "line 1 of b.libsvm, column `indices`: the training part does not have `8`";
    assert!(error.starts_with(wanted), "{error}");
    let data = folder.open(&job("other"), Target::Classes);
    assert_eq!(integers(&input(&data.test.unwrap(), 0)), [-1, 2]);
    let longer = Folder::new().with("a.libsvm", LINES).with("b.libsvm", "1\n\n1 1:3 2:1 3:1\n");
    let error = longer.refused(&job("other"), Target::Classes);
    let wanted = "line 3 of b.libsvm has 3 features, where 2 are the most; \
        set `data.hash = { most = 3 }`, or more, to train with room for them";
    assert_eq!(error, wanted);
}

#[test]
fn hashed_indices_have_buckets_whatever_they_are() {
    let folder =
        Folder::new().with("a.libsvm", "1 99999999999:1\n0 5:2\n").with("b.libsvm", "1 6:3\n");
    let hash = json!({"bits": 6, "most": 3});
    let spec = spec(json!({"train": "a.libsvm", "test": "b.libsvm", "hash": hash}));
    let data = folder.open(&spec, Target::Classes);
    let indices = &data.encoding.inputs()[0];
    assert_eq!((&indices.shape[..], indices.n_categories), (&[3][..], Some(64)));
    let buckets = integers(&input(&data.train, 0));
    assert!(buckets.iter().all(|bucket| (-1..64).contains(bucket)), "{buckets:?}");
    assert_eq!(buckets.iter().filter(|&&bucket| bucket >= 0).count(), 2);
}

#[test]
fn columns_are_hashed_by_their_name_and_their_words() {
    let csv = "town,age,class\nUlm,10,a\nBonn,20,b\n,30,a\n";
    let folder = Folder::new().with("a.csv", csv);
    let job = json!({"train": "a.csv", "label": "class", "hash": {"bits": 12}, "missing": "mean",
        "normalise": "none"});
    let data = folder.open(&spec(job.clone()), Target::Classes);
    let names: Vec<&str> = data.encoding.inputs().iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["indices", "values"]);
    let indices = integers(&input(&data.train, 0));
    assert_eq!(
        (indices[1], indices[3]),
        (indices[5], indices[5]),
        "a column of numbers is one feature"
    );
    assert!(indices[0] != indices[2] && indices[4] == -1, "{indices:?}");
    assert_eq!(floats(&input(&data.train, 1)), [1.0, 10.0, 1.0, 20.0, 0.0, 30.0]);
    // What is saved with a model reads new data alike, also words that training does not have.
    let saved = serde_json::to_string(&data.encoding).unwrap();
    let encoding: Encoding = serde_json::from_str(&saved).unwrap();
    let folder = folder.with("b.csv", "age,town\n7,Ulm\n8,Trier\n");
    let source = Source::from("b.csv");
    let read = encoding.read(&spec(job), &source, folder.path(), folder.path(), Labels::IfPresent);
    let new = integers(&input(&read.unwrap(), 0));
    assert_eq!((new[0], new[1]), (indices[0], indices[1]));
    assert!((0..4096).contains(&new[2]) && new[2] != new[0]);
}

#[test]
fn impossible_tables_are_refused() {
    let folder = Folder::new().with("a.csv", "x,y\n1,0\n").with("a.libsvm", LINES);
    let refused = |train: &str, hash: serde_json::Value| {
        let spec = spec(json!({"train": train, "label": null, "hash": hash}));
        folder.refused(&spec, Target::Classes)
    };
    assert_eq!(
        refused("a.libsvm", json!({"bits": 31})),
        "`data.hash.bits` must be between 1 and 30, not 31"
    );
    assert_eq!(
        refused("a.libsvm", json!({"most": 0})),
        "`data.hash.most` is 0; it must be at least 1"
    );
    let spec = spec(json!({"train": "a.csv", "label": "y", "hash": {}}));
    let error = folder.refused(&spec, Target::Classes);
    assert!(error.contains("data.hash.bits"), "{error}");
}
