//! Windows over rows that follow each other in time.

use manyhands_data::Target;
use serde_json::json;

use crate::{Folder, floats, input, integers, spec, target};

fn series(n: usize) -> Folder {
    let rows: String = (0..n).map(|i| format!("{},{}\n", i, 100 + i)).collect();
    Folder::new().with("a.csv", format!("t,y\n{rows}"))
}

#[test]
fn a_window_sees_its_rows_and_predicts_beyond_them() {
    let folder = series(10);
    let data = folder.open(
        &spec(json!({
            "train": "a.csv", "label": "y", "normalise": "none", "scale_label": false,
            "window": {"length": 3, "horizon": 2, "stride": 2},
        })),
        Target::Numbers,
    );
    assert_eq!(data.encoding.inputs()[0].shape, [3, 2]);
    // Rows 0..3 with label 4, 2..5 with 6, 4..7 with 8; the past of the label is known.
    assert_eq!(data.train.n_samples(), 3);
    let wanted = [
        [0.0, 100.0, 1.0, 101.0, 2.0, 102.0],
        [2.0, 102.0, 3.0, 103.0, 4.0, 104.0],
        [4.0, 104.0, 5.0, 105.0, 6.0, 106.0],
    ];
    assert_eq!(floats(&input(&data.train, 0)), wanted.concat());
    assert_eq!(floats(&target(&data.train)), [104.0, 106.0, 108.0]);
}

#[test]
fn parts_of_a_series_are_cut_in_time_and_learn_from_the_first_only() {
    let folder = series(100);
    let data = folder.open(
        &spec(json!({
            "train": "a.csv", "label": "y", "features": ["t"], "validation": 0.2, "test": 0.1,
            "window": {"length": 4},
        })),
        Target::Numbers,
    );
    let n = |part: Option<&manyhands_data::Part>| part.map_or(0, |part| part.n_samples());
    assert_eq!(data.train.n_samples(), 66);
    assert_eq!((n(data.validation.as_ref()), n(data.test.as_ref())), (16, 6));
    let (mean, scale) = data.encoding.label_scale();
    assert_eq!(mean, 134.5);
    let back = |part| {
        let labels = floats(&target(part)).into_iter();
        labels.map(|y| (f64::from(y) * scale + mean).round() as i32).collect::<Vec<_>>()
    };
    assert_eq!(back(&data.train), (104..170).collect::<Vec<_>>());
    assert_eq!(back(data.validation.as_ref().unwrap()), (174..190).collect::<Vec<_>>());
    assert_eq!(back(data.test.as_ref().unwrap()), (194..200).collect::<Vec<_>>());
    assert_eq!(data.summary.bytes, 100 * 16);
}

#[test]
fn rows_that_are_dropped_are_gone_before_windows_are_cut() {
    let folder = Folder::new().with("a.csv", "x,y\n0,a\n,a\n2,b\n3,a\n");
    let data = folder.open(
        &spec(json!({
            "train": "a.csv", "label": "y", "features": ["x"], "missing": "drop",
            "normalise": "none", "window": {"length": 2},
        })),
        Target::Classes,
    );
    assert_eq!(floats(&input(&data.train, 0)), [0.0, 2.0]);
    assert_eq!(integers(&target(&data.train)), [0]);
}

#[test]
fn categories_in_windows_are_inputs_along_time() {
    let folder = Folder::new().with("a.csv", "x,c,y\n0,u,1\n1,v,2\n2,u,3\n");
    let data = folder.open(
        &spec(json!({
            "train": "a.csv", "label": "y", "features": ["x", "c"], "categories": "index",
            "normalise": "none", "window": {"length": 2, "horizon": 0},
        })),
        Target::Classes,
    );
    assert_eq!(data.encoding.inputs()[1].shape, [2]);
    assert_eq!(integers(&input(&data.train, 1)), [0, 1, 1, 0]);
    assert_eq!(integers(&target(&data.train)), [1, 2]);
}
