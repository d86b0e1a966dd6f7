use std::sync::Arc;

use ::arrow::array::{
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, UInt8Array,
};
use proptest::prelude::*;

use super::*;

fn idx(code: u8, shape: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, code, shape.len() as u8];
    for length in shape {
        bytes.extend(length.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

fn npy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((header.len() as u16).to_le_bytes()),
        _ => bytes.extend((header.len() as u32).to_le_bytes()),
    }
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn npy_of(element: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header =
        format!("{{'descr': '{element}', 'fortran_order': False, 'shape': {shape}, }}   \n");
    npy(1, &header, data)
}

fn read_file(name: &str, bytes: &[u8], how: &How) -> Result<RecordBatch, ReadError> {
    let folder = Folder::new();
    folder.write(name, bytes);
    folder.read(&one(name), how)
}

fn error_of(name: &str, bytes: &[u8]) -> String {
    let folder = Folder::new();
    folder.write(name, bytes);
    folder.error(&one(name), &How::default())
}

#[test]
fn images_are_lists_that_know_their_shape() {
    let data: Vec<u8> = (0..24).collect();
    let bytes = idx(8, &[4, 2, 3], &data);
    for block_bytes in [1, 7, 1000] {
        let how = How { block_bytes, n_threads: 2, ..How::default() };
        let rows = read_file("images-idx3-ubyte", &bytes, &how).unwrap();
        assert_eq!(rows.num_rows(), 4);
        let schema = rows.schema();
        assert_eq!(schema.field(0).metadata().get(Block::SHAPE).map(|s| s.as_str()), Some("2,3"));
        let expected: ArrayRef = Arc::new(UInt8Array::from(data.clone()));
        assert_eq!(&elements(rows.column(0)), &expected);
    }
}

#[test]
fn every_element_type_of_idx_is_read() {
    let check = |code, data: &[u8], expected: ArrayRef| {
        let rows = read_file("x.idx", &idx(code, &[2], data), &How::default()).unwrap();
        assert_eq!(rows.column(0), &expected);
    };
    check(0x08, &[1, 255], Arc::new(UInt8Array::from(vec![1, 255])));
    check(0x09, &[1, 255], Arc::new(Int8Array::from(vec![1, -1])));
    check(0x0b, &[1, 2, 255, 255], Arc::new(Int16Array::from(vec![258, -1])));
    check(0x0c, &[0, 0, 1, 2, 255, 255, 255, 255], Arc::new(Int32Array::from(vec![258, -1])));
    let floats: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_be_bytes()).collect();
    check(0x0d, &floats, Arc::new(Float32Array::from(vec![1.5, -2.0])));
    let doubles: Vec<u8> = [1.5f64, -2.0].iter().flat_map(|v| v.to_be_bytes()).collect();
    check(0x0e, &doubles, Arc::new(Float64Array::from(vec![1.5, -2.0])));
}

#[test]
fn numpy_arrays_of_all_versions_and_byte_orders_are_read() {
    let little: Vec<u8> = [1i64, -2].iter().flat_map(|v| v.to_le_bytes()).collect();
    let big: Vec<u8> = [1i64, -2].iter().flat_map(|v| v.to_be_bytes()).collect();
    let expected: ArrayRef = Arc::new(Int64Array::from(vec![1, -2]));
    for version in 1..=3 {
        for (element, data) in [("<i8", &little), (">i8", &big)] {
            let header =
                format!("{{\"shape\": (2,), 'fortran_order': True, 'descr': '{element}'}}\n");
            let rows = read_file("x.npy", &npy(version, &header, data), &How::default()).unwrap();
            assert_eq!(rows.column(0), &expected);
        }
    }
    let halves = npy_of("<f2", "(2, 1)", &[0x00, 0x3c, 0x00, 0xc0]);
    let rows = read_file("x.npy", &halves, &How::default()).unwrap();
    let expected: ArrayRef = Arc::new(Float32Array::from(vec![1.0, -2.0]));
    assert_eq!(&elements(rows.column(0)), &expected);
    let truths = npy_of("|b1", "(2,)", &[0, 1]);
    let rows = read_file("x.npy", &truths, &How::default()).unwrap();
    let expected: ArrayRef = Arc::new(Int8Array::from(vec![0, 1]));
    assert_eq!(rows.column(0), &expected);
}

#[test]
fn what_cannot_be_read_is_said() {
    let header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }";
    assert_eq!(
        error_of("x.npy", &npy(1, header, &[0; 16])),
        "x.npy is stored in Fortran order; save it with \
         `numpy.save(path, numpy.ascontiguousarray(array))`"
    );
    let error = error_of("x.npy", &npy_of("<U5", "(2,)", &[0; 40]));
    assert!(error.starts_with("x.npy holds elements of type `<U5`"), "{error}");
    let error = error_of("x.npy", &npy_of("<f4", "()", &[0; 4]));
    assert!(error.contains("a single number"), "{error}");
    let error = error_of("x.npy", &npy_of("<f4", "(3,)", &[0; 8]));
    assert!(error.contains("promises 12 bytes of data, 8 are there"), "{error}");
    let error = error_of("x.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff");
    assert!(error.contains("longer than 1 MiB"), "{error}");
    let error = error_of("x.npy", &npy_of("<f4", "(99999999999, 99999999999)", &[0; 8]));
    assert!(error.contains("rows of more than 1 GiB"), "{error}");
    let error = error_of("x.npy", &npy_of("<f4", "(2, 0)", &[]));
    assert!(error.contains("no elements"), "{error}");
    let error = error_of("x.idx", &idx(7, &[2], &[0; 2]));
    assert!(error.starts_with("x.idx holds elements of type `0x07`"), "{error}");
    let error = error_of("x.idx", b"abcdefgh");
    assert!(error.contains("two zero bytes"), "{error}");
    let error = error_of("x.idx", &[0, 0, 8, 3, 0]);
    assert!(error.contains("ends within its header"), "{error}");
    let error = error_of("x.idx", &idx(8, &[2], &[1, 2, 3]));
    assert!(error.contains("promises 2 bytes of data, 3 are there"), "{error}");
}

#[test]
fn files_of_one_source_must_have_one_shape() {
    let folder = Folder::new();
    folder.write("1.idx", idx(8, &[1, 2], &[1, 2]));
    folder.write("2.idx", idx(8, &[1, 2], &[3, 4]));
    assert_eq!(folder.read(&one("*.idx"), &How::default()).unwrap().num_rows(), 2);
    folder.write("3.idx", idx(8, &[1, 3], &[3, 4, 5]));
    let error = folder.error(&one("*.idx"), &How::default());
    assert!(error.starts_with("3.idx has rows of shape [3]"), "{error}");
}

proptest! {
    #[test]
    fn doubles_round_trip_through_both_formats(
        values in prop::collection::vec(any::<f64>(), 1..100),
        width in 1usize..4,
        block_bytes in 1usize..200,
        n_threads in 1usize..4,
    ) {
        let n_rows = values.len() / width;
        let values = &values[..n_rows * width];
        let how = How { block_bytes, n_threads, ..How::default() };
        let big: Vec<u8> = values.iter().flat_map(|v| v.to_be_bytes()).collect();
        let little: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let idx = idx(0x0e, &[n_rows as u32, width as u32], &big);
        let npy = npy_of("<f8", &format!("({n_rows}, {width})"), &little);
        for (name, bytes) in [("x.idx", idx), ("x.npy", npy)] {
            let rows = read_file(name, &bytes, &how).unwrap();
            prop_assert_eq!(rows.num_rows(), n_rows);
            let found = elements(rows.column(0));
            let found = found.as_primitive::<Float64Type>().values();
            prop_assert!(found.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
