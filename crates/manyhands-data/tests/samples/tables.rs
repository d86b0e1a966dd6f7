//! Numbers, categories, lists and texts of tables.

use manyhands_data::{Element, Encoding, Labels, Order, Source, Target};
use serde_json::json;

use crate::{Folder, floats, input, integers, spec, target};

const PEOPLE: &str = "age,town,income,class\n\
    10,Ulm,1.5,yes\n\
    20,Bonn,2.5,no\n\
    30,Ulm,3.5,yes\n\
    40,Trier,4.5,no\n";

fn people() -> Folder {
    Folder::new().with("people.csv", PEOPLE)
}

#[test]
fn numbers_are_normalised_and_words_become_ones_among_zeros_in_column_order() {
    let folder = people();
    let data =
        folder.open(&spec(json!({"train": "people.csv", "label": "class"})), Target::Classes);
    let inputs = data.encoding.inputs();
    assert_eq!(inputs.len(), 1);
    assert_eq!((inputs[0].name.as_str(), inputs[0].element), ("features", Element::F32));
    assert_eq!(inputs[0].shape, [5]);
    // age: mean 25, deviation sqrt(125); towns: Bonn, Trier, Ulm; income: mean 3, deviation sqrt(1.25).
    let age = |x: f64| ((x - 25.0) * (1.0 / 125f64.sqrt())) as f32;
    let income = |x: f64| ((x - 3.0) * (1.0 / 1.25f64.sqrt())) as f32;
    let wanted = [
        [age(10.0), 0.0, 0.0, 1.0, income(1.5)],
        [age(20.0), 1.0, 0.0, 0.0, income(2.5)],
        [age(30.0), 0.0, 0.0, 1.0, income(3.5)],
        [age(40.0), 0.0, 1.0, 0.0, income(4.5)],
    ];
    assert_eq!(floats(&input(&data.train, 0)), wanted.concat());
    assert_eq!(data.encoding.classes().unwrap(), ["no", "yes"]);
    assert_eq!(integers(&target(&data.train)), [1, 0, 1, 0]);
    let label = data.encoding.target().unwrap();
    assert_eq!((label.element, label.n_categories), (Element::I32, Some(2)));
    assert_eq!(data.summary.n_rows, 4);
    assert_eq!(data.summary.n_train, 4);
    assert_eq!(data.summary.bytes, 4 * (8 + 4 + 8 + 4));
    assert_eq!(data.summary.files, [folder.path().join("people.csv")]);
}

#[test]
fn indexed_categories_are_inputs_of_their_own() {
    let folder = people();
    let spec = spec(json!({"train": "people.csv", "label": "class", "categories": "index"}));
    let data = folder.open(&spec, Target::Classes);
    let names: Vec<&str> = data.encoding.inputs().iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["features", "town"]);
    let town = &data.encoding.inputs()[1];
    assert_eq!((town.element, town.n_categories), (Element::I32, Some(3)));
    assert_eq!(town.shape, [0usize; 0]);
    assert_eq!(integers(&input(&data.train, 1)), [2, 0, 2, 1]);
}

#[test]
fn chosen_features_come_in_the_chosen_order_with_the_chosen_kinds() {
    let folder = people();
    let spec = spec(json!({
        "train": "people.csv", "label": "class", "features": ["income", "age"],
        "columns": {"age": "category"}, "normalise": "range",
    }));
    let data = folder.open(&spec, Target::Classes);
    let third = 1.0 / 3.0f64;
    let wanted = [
        [0.0, 1.0, 0.0, 0.0, 0.0],
        [third as f32, 0.0, 1.0, 0.0, 0.0],
        [(2.0 * third) as f32, 0.0, 0.0, 1.0, 0.0],
        [1.0, 0.0, 0.0, 0.0, 1.0],
    ];
    assert_eq!(floats(&input(&data.train, 0)), wanted.concat());
}

#[test]
fn labels_that_are_numbers_are_scaled_and_can_be_scaled_back() {
    let folder = people();
    let mut spec = spec(json!({"train": "people.csv", "label": "age", "features": ["income"]}));
    let data = folder.open(&spec, Target::Numbers);
    let (mean, scale) = data.encoding.label_scale();
    assert!((mean - 25.0).abs() < 1e-12 && (scale - 125f64.sqrt()).abs() < 1e-12);
    let back: Vec<f64> = floats(&target(&data.train))
        .into_iter()
        .map(|y| (f64::from(y) * scale + mean).round())
        .collect();
    assert_eq!(back, [10.0, 20.0, 30.0, 40.0]);
    assert_eq!(data.encoding.target().unwrap().element, Element::F32);
    spec.scale_label = false;
    let data = folder.open(&spec, Target::Numbers);
    assert_eq!(floats(&target(&data.train)), [10.0, 20.0, 30.0, 40.0]);
    assert_eq!(data.encoding.label_scale(), (0.0, 1.0));
}

#[test]
fn classes_that_are_numbers_are_in_the_order_of_their_size() {
    let folder = Folder::new().with("a.csv", "x,y\n1,10\n2,9\n3,-1\n4,10.0\n");
    let data = folder.open(&spec(json!({"train": "a.csv", "label": "y"})), Target::Classes);
    assert_eq!(data.encoding.classes().unwrap(), ["-1", "9", "10"]);
    assert_eq!(integers(&target(&data.train)), [2, 1, 0, 2]);
}

#[test]
fn constant_columns_become_zeros() {
    let folder = Folder::new().with("a.csv", "x,k,y\n1,0.1,0\n2,0.1,1\n3,0.1,1\n");
    let data = folder.open(&spec(json!({"train": "a.csv", "label": "y"})), Target::Classes);
    let columns = floats(&input(&data.train, 0));
    assert_eq!([columns[1], columns[3], columns[5]], [0.0; 3]);
}

fn idx(shape: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 8, shape.len() as u8];
    shape.iter().for_each(|n| file.extend(n.to_be_bytes()));
    file.extend(bytes);
    file
}

#[test]
fn images_of_bytes_stay_bytes_and_keep_their_shape() {
    let pixels: Vec<u8> = (0..24).map(|i| i * 10).collect();
    let folder = Folder::new()
        .with("images.idx", idx(&[4, 2, 3], &pixels))
        .with("labels.idx", idx(&[4], &[7, 3, 7, 0]))
        .with("new.idx", idx(&[1, 2, 3], &pixels[6..12]));
    let train = json!({"image": "images.idx", "label": "labels.idx"});
    let mut job = spec(json!({"train": train, "label": "label"}));
    let data = folder.open(&job, Target::Classes);
    assert_eq!(data.encoding.inputs()[0].shape, [2, 3]);
    assert_eq!(data.encoding.inputs()[0].element, Element::U8);
    assert_eq!(input(&data.train, 0), pixels);
    assert_eq!(data.encoding.classes().unwrap(), ["0", "3", "7"]);
    assert_eq!(integers(&target(&data.train)), [2, 1, 2, 0]);
    // A file of images alone, whose column has no name, is read as the images.
    let source = Source::One("new.idx".into());
    let read = |labels| data.encoding.read(&job, &source, folder.path(), folder.path(), labels);
    let part = read(Labels::IfPresent).unwrap();
    assert!(!part.has_labels());
    assert_eq!(input(&part, 0), pixels[6..12]);
    assert!(read(Labels::Required).is_err());
    job.shape = Some(vec![3, 2, 1]);
    assert_eq!(folder.open(&job, Target::Classes).encoding.inputs()[0].shape, [3, 2, 1]);
    job.shape = Some(vec![3, 3]);
    assert_eq!(
        folder.refused(&job, Target::Classes),
        "`data.shape` is [3, 3], 9 numbers, but a sample has 6 features"
    );
}

#[test]
fn empty_cells_get_the_mean_and_a_value_of_their_own() {
    let folder = Folder::new().with("a.csv", "x,c,y\n1,a,0\n,b,1\n3,,1\n");
    let job = spec(json!({"train": "a.csv", "label": "y", "missing": "mean"}));
    let data = folder.open(&job, Target::Classes);
    let wanted = [[-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]];
    assert_eq!(floats(&input(&data.train, 0)), wanted.concat());
}

#[test]
fn rows_with_empty_cells_can_be_dropped_or_take_the_value_before() {
    let folder = Folder::new().with("a.csv", "x,c,y\n,a,0\n1,a,0\n3,,1\n,b,1\n");
    let mut json = json!({"train": "a.csv", "label": "y", "missing": "drop", "normalise": "none"});
    let data = folder.open(&spec(json.clone()), Target::Classes);
    assert_eq!(floats(&input(&data.train, 0)), [1.0, 1.0]);
    assert_eq!((data.summary.n_rows, data.summary.n_dropped), (4, 3));
    assert_eq!(data.encoding.classes().unwrap(), ["0"]);
    json["missing"] = "previous".into();
    let data = folder.open(&spec(json), Target::Classes);
    // The first row has nothing before it.
    assert_eq!(floats(&input(&data.train, 0)), [1.0, 1.0, 0.0, 3.0, 1.0, 0.0, 3.0, 0.0, 1.0]);
    assert_eq!(data.summary.n_dropped, 1);
}

#[test]
fn new_data_is_read_with_what_was_learned() {
    let folder = people()
        .with("new.csv", "class,extra,income,town,age\nno,x,1.5,Ulm,10\nyes,y,2.5,Bonn,20\n");
    let job = spec(json!({"train": "people.csv", "label": "class"}));
    let data = folder.open(&job, Target::Classes);
    let saved = serde_json::to_string_pretty(&data.encoding).unwrap();
    let encoding: Encoding = serde_json::from_str(&saved).unwrap();
    assert_eq!(encoding, data.encoding);
    assert!(!saved.contains(folder.path().to_str().unwrap()), "{saved}");
    let source = Source::One("new.csv".into());
    let part =
        encoding.read(&job, &source, folder.path(), folder.path(), Labels::IfPresent).unwrap();
    let trained = input(&data.train, 0);
    assert_eq!(input(&part, 0), trained[..part.n_samples() * 20]);
    assert_eq!(integers(&target(&part)), [0, 1]);
    let part = encoding.read(&job, &source, folder.path(), folder.path(), Labels::Ignored).unwrap();
    assert!(!part.has_labels());
    assert!(part.batches(Order::Stored, 2, 0).all(|b| b.unwrap().target(0..2).is_none()));
}

#[test]
fn unknown_values_share_an_index_where_that_is_allowed() {
    let folder = people().with("new.csv", "age,town,income\n10,Köln,1.5\n");
    let job = spec(json!({"train": "people.csv", "label": "class", "unknown": "other"}));
    let data = folder.open(&job, Target::Classes);
    assert_eq!(data.encoding.inputs()[0].shape, [6]);
    let source = Source::One("new.csv".into());
    let part =
        data.encoding.read(&job, &source, folder.path(), folder.path(), Labels::IfPresent).unwrap();
    assert_eq!(floats(&input(&part, 0))[1..5], [0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn texts_of_a_column_are_cut_and_filled_up() {
    let folder = Folder::new().with("a.csv", "t,y\nthe cat the,0\nsat!,1\nthe,0\n");
    let mut json = json!({
        "train": "a.csv", "label": "y", "columns": {"t": "text"},
        "text": {"unit": "words", "length": 2},
    });
    let data = folder.open(&spec(json.clone()), Target::Classes);
    let text = &data.encoding.inputs()[0];
    assert_eq!((text.name.as_str(), text.n_categories), ("t", Some(5)));
    assert_eq!(text.shape, [2]);
    // By how often they come up: the (2), then !, cat, sat. Index 0 fills up.
    assert_eq!(integers(&input(&data.train, 0)), [1, 3, 4, 2, 1, 0]);
    assert_eq!(data.encoding.token_text(1).as_deref(), Some("the"));
    json["text"]["vocabulary"] = 1.into();
    let data = folder.open(&spec(json), Target::Classes);
    assert_eq!(integers(&input(&data.train, 0)), [2, 1, 1, 1, 2, 0]);
    assert_eq!(data.encoding.vocabulary_size(), Some(3));
}
