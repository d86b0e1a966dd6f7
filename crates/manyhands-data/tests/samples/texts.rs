//! Plain text, of which the next token is predicted.

use manyhands_data::{Labels, Source, Target};
use serde_json::json;

use crate::{Folder, input, integers, spec, target};

#[test]
fn characters_are_sorted_and_the_target_is_one_further() {
    let folder = Folder::new().with("a.txt", "hello world");
    let job = spec(json!({"train": "a.txt", "text": {"length": 4}}));
    let data = folder.open(&job, Target::NextToken);
    let tokens = &data.encoding.inputs()[0];
    assert_eq!((tokens.name.as_str(), tokens.n_categories), ("tokens", Some(8)));
    assert_eq!((tokens.shape.as_slice(), data.train.n_samples()), (&[4][..], 2));
    let decode = |bytes: &[u8]| data.encoding.decode_text(&integers(bytes)).unwrap();
    assert_eq!(decode(&input(&data.train, 0)), "hello wo");
    assert_eq!(decode(&target(&data.train)), "ello wor");
    assert_eq!(data.encoding.encode_text(" dehlorw").unwrap(), (0..8).collect::<Vec<_>>());
    assert_eq!(data.encoding.target().unwrap().shape, [4]);
    assert_eq!(data.encoding.vocabulary_size(), Some(8));
}

#[test]
fn bytes_are_their_own_indexes() {
    let folder = Folder::new().with("a.txt", b"\xff\x00ab\n");
    let job = spec(json!({"train": "a.txt", "text": {"unit": "bytes", "length": 2, "stride": 1}}));
    let data = folder.open(&job, Target::NextToken);
    assert_eq!(integers(&input(&data.train, 0)), [255, 0, 0, 97, 97, 98]);
    assert_eq!(integers(&target(&data.train)), [0, 97, 97, 98, 98, 10]);
    assert_eq!(data.encoding.vocabulary_size(), Some(256));
}

#[test]
fn words_are_sorted_by_how_often_they_come_up() {
    let folder = Folder::new().with("a.txt", "b a, b\nb a c").with("b.txt", "d b");
    let job = spec(json!({
        "train": ["a.txt", "b.txt"], "text": {"unit": "words", "length": 3, "vocabulary": 3},
    }));
    let data = folder.open(&job, Target::NextToken);
    // b (4), a (2), then `,`, c, d of which the limit leaves the first; the rest are unknown. A file ends its last word.
    assert_eq!(integers(&input(&data.train, 0)), [0, 1, 2, 0, 0, 1]);
    assert_eq!(integers(&target(&data.train)), [1, 2, 0, 0, 1, 3]);
    assert_eq!(data.encoding.vocabulary_size(), Some(4));
}

#[test]
fn the_vocabulary_is_that_of_the_training_part() {
    let folder = Folder::new().with("a.txt", "abababab\nabababxbabab");
    let mut job = spec(json!({"train": "a.txt", "test": 0.5, "text": {"length": 2}}));
    assert_eq!(
        folder.refused(&job, Target::NextToken),
        "line 2 of a.txt, column `text`: the training part does not have `x`; \
         `data.unknown = \"other\"` lets such values share one of their own"
    );
    job.unknown = manyhands_data::Unknown::Other;
    let data = folder.open(&job, Target::NextToken);
    assert_eq!(data.encoding.vocabulary_size(), Some(4));
    let test = integers(&input(data.test.as_ref().unwrap(), 0));
    assert!(test.contains(&3), "{test:?}");
    let validation = spec(json!({"train": "a.txt", "text": {"length": 2}, "validation": "b.txt"}));
    let folder = folder.with("b.txt", "ab\nz");
    assert!(folder.refused(&validation, Target::NextToken).starts_with("line 2 of b.txt"));
}

#[test]
fn new_text_is_read_with_the_same_tokens() {
    let folder = Folder::new().with("a.txt", "abcabc").with("b.txt", "cbacba");
    let job = spec(json!({"train": "a.txt", "text": {"length": 3}}));
    let data = folder.open(&job, Target::NextToken);
    let source = Source::One("b.txt".into());
    let part =
        data.encoding.read(&job, &source, folder.path(), folder.path(), Labels::IfPresent).unwrap();
    assert_eq!(integers(&input(&part, 0)), [2, 1, 0]);
    assert!(part.has_labels());
}

#[test]
fn long_words_survive_the_borders_of_chunks() {
    // One line of 3 MiB without a break, so that chunks end anywhere.
    let words: Vec<String> = (0..400_000).map(|i| format!("w{:06}", i % 1000)).collect();
    let folder = Folder::new().with("a.txt", words.join(" "));
    let job = spec(json!({"train": "a.txt", "text": {"unit": "words", "length": 100}}));
    let data = folder.open(&job, Target::NextToken);
    assert_eq!(data.encoding.vocabulary_size(), Some(1000));
    assert_eq!(data.summary.n_rows, 400_000);
}
