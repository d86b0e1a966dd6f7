use std::fs::File;
use std::sync::Arc;

use ::arrow::array::{
    BinaryArray, DictionaryArray, Float64Array, Int64Array, ListArray, StringArray,
    TimestampMicrosecondArray, UInt8Array,
};
use ::arrow::datatypes::{Float32Type, Int32Type};
use ::parquet::arrow::ArrowWriter;
use ::parquet::file::properties::WriterProperties;

use super::*;

pub(super) fn write(path: &Path, batch: &RecordBatch, group_rows: usize) {
    let properties =
        WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

pub(super) fn table(n_rows: usize) -> RecordBatch {
    let x: Float64Array =
        (0..n_rows).map(|row| (row % 7 != 3).then_some(row as f64 * 0.5)).collect();
    let n = Int64Array::from_iter_values(0..n_rows as i64);
    let texts: Vec<String> = (0..n_rows).map(|row| format!("w{}", row % 5)).collect();
    let words: StringArray = texts.iter().map(|text| Some(text.as_str())).collect();
    let category: DictionaryArray<Int32Type> = texts.iter().map(|text| text.as_str()).collect();
    let list = ListArray::from_iter_primitive::<Float32Type, _, _>(
        (0..n_rows).map(|row| Some(vec![Some(row as f32), Some(1.0), Some(2.0)])),
    );
    let bytes = BinaryArray::from_iter_values(texts.iter().map(|text| text.as_bytes()));
    let pixel = UInt8Array::from_iter_values((0..n_rows).map(|row| row as u8));
    RecordBatch::try_from_iter([
        ("x", Arc::new(x) as ArrayRef),
        ("n", Arc::new(n)),
        ("word", Arc::new(words)),
        ("category", Arc::new(category)),
        ("list", Arc::new(list)),
        ("bytes", Arc::new(bytes)),
        ("pixel", Arc::new(pixel)),
    ])
    .unwrap()
}

#[test]
fn all_columns_are_read_for_any_block_size_and_threads() {
    let folder = Folder::new();
    let table = table(1000);
    write(&folder.path().join("1.parquet"), &table, 300);
    write(&folder.path().join("2.parquet"), &table.slice(0, 10), 4);
    for block_bytes in [1, 500, 1 << 20] {
        for n_threads in [1, 2, 3, 20] {
            let how = How { block_bytes, n_threads, ..How::default() };
            let rows = folder.read(&one("*.parquet"), &how).unwrap();
            assert_eq!(rows.num_rows(), 1010);
            for name in ["x", "n", "word", "bytes", "pixel"] {
                let (found, expected) = (rows.column_by_name(name), table.column_by_name(name));
                assert_eq!(&found.unwrap().slice(0, 1000), expected.unwrap(), "{name}");
                assert_eq!(&found.unwrap().slice(1000, 10), &expected.unwrap().slice(0, 10));
            }
            assert_eq!(words(&rows, "category")[999], Some("w4".into()));
            let list = elements(rows.column_by_name("list").unwrap());
            let list = list.as_primitive::<Float32Type>();
            assert_eq!(list.values()[2997..3000], [999.0, 1.0, 2.0]);
        }
    }
}

#[test]
fn places_count_the_rows_of_each_file() {
    let folder = Folder::new();
    write(&folder.path().join("1.parquet"), &table(100), 30);
    write(&folder.path().join("2.parquet"), &table(10), 30);
    let how = How { block_bytes: 300, n_threads: 2, ..How::default() };
    let block = folder.blocks(&one("*.parquet"), &how).unwrap().pop().unwrap();
    let place = block.place(block.rows.num_rows() - 1, 0).to_string();
    assert!(place.starts_with("row 10 of ") && place.ends_with("2.parquet"), "{place}");
}

#[test]
fn columns_are_chosen_in_any_order() {
    let folder = Folder::new();
    write(&folder.path().join("1.parquet"), &table(20), 30);
    let columns = Some(vec!["word".into(), "x".into()]);
    let options = ReadOptions { columns, ..Default::default() };
    for n_threads in [1, 2] {
        let how = How { options: options.clone(), n_threads, ..How::default() };
        let rows = folder.read(&one("1.parquet"), &how).unwrap();
        assert_eq!(names(&rows), ["word", "x"]);
        assert_eq!(numbers(&rows, "x")[3..5], [None, Some(2.0)]);
    }
}

#[test]
fn columns_that_differ_between_files_are_named() {
    let folder = Folder::new();
    write(&folder.path().join("1.parquet"), &table(20), 30);
    let second = folder.path().join("2.parquet");
    write(&second, &table(20).project(&[1, 2, 3, 4, 5, 6]).unwrap(), 30);
    let error = folder.error(&one("*.parquet"), &How::default());
    assert!(error.starts_with("2.parquet has no column `x`, which 1.parquet has"), "{error}");
    let mut columns = table(20).columns().to_vec();
    columns[0] = columns[2].clone();
    let batch = RecordBatch::try_from_iter(names(&table(1)).into_iter().zip(columns)).unwrap();
    write(&second, &batch, 30);
    let error = folder.error(&one("*.parquet"), &How { n_threads: 2, ..How::default() });
    assert!(
        error.starts_with("column `x` of 2.parquet holds Utf8, and Float64 in 1.parquet"),
        "{error}"
    );
}

#[test]
fn lists_of_other_lengths_are_named_by_their_row() {
    let folder = Folder::new();
    let lists = [vec![1.0, 2.0], vec![3.0, 4.0], vec![5.0]];
    let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(
        lists.into_iter().map(|list| Some(list.into_iter().map(Some))),
    );
    let batch = RecordBatch::try_from_iter([("v", Arc::new(lists) as ArrayRef)]).unwrap();
    write(&folder.path().join("t.parquet"), &batch, 30);
    let error = folder.error(&one("t.parquet"), &How::default());
    assert_eq!(
        error,
        "row 3 of t.parquet, column `v`: the list has 1 numbers, where the ones before have 2"
    );
}

#[test]
fn times_are_left_to_the_reader_of_the_blocks_and_packed_files_are_unpacked() {
    let folder = Folder::new();
    let times = TimestampMicrosecondArray::from(vec![1, 2]);
    let batch = RecordBatch::try_from_iter([("t", Arc::new(times) as ArrayRef)]).unwrap();
    let path = folder.path().join("t.parquet");
    write(&path, &batch, 30);
    let packed = zstd::encode_all(File::open(&path).unwrap(), 1).unwrap();
    folder.write("u.parquet.zst", packed);
    for name in ["t.parquet", "u.parquet.zst"] {
        let rows = folder.read(&one(name), &How { n_threads: 2, ..How::default() }).unwrap();
        assert!(rows.column(0).data_type().is_temporal());
        assert_eq!(rows.num_rows(), 2);
    }
}
