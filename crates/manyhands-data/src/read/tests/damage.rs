//! Damaged files are errors or other data, but never a panic.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

/// One small file of each format.
static SAMPLES: LazyLock<Vec<(&str, Vec<u8>)>> = LazyLock::new(|| {
    let folder = Folder::new();
    let path = folder.path().join("t.parquet");
    parquet::write(&path, &parquet::table(60), 25);
    let mut idx = vec![0, 0, 11, 2, 0, 0, 0, 5, 0, 0, 0, 2];
    idx.extend(0..20);
    let mut npy = b"\x93NUMPY\x01\x00\x40\x00".to_vec();
    npy.extend(
        format!("{:<64}", "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }").bytes(),
    );
    npy.extend(0..32);
    let csv = b"a,b,c\n1,x,2.5\n\"2\",\"y\"\"\n\",-3e5\n,,\n0.123456789012,z,7\n".to_vec();
    let jsonl = b"{\"a\": 1, \"b\": [1, 2], \"c\": \"x\"}\n{\"a\": null, \"b\": [3, 4], \"c\": \"\\u00e9\"}\n";
    let packed = zstd::encode_all(&csv[..], 1).unwrap();
    vec![
        ("t.parquet", std::fs::read(path).unwrap()),
        ("t.idx", idx),
        ("t.npy", npy),
        ("t.csv", csv.clone()),
        ("t.jsonl", jsonl.to_vec()),
        ("t.txt", csv),
        ("p.csv.zst", packed),
    ]
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn damaged_files_never_panic(
        which in 0usize..7,
        cut in prop::option::of(any::<prop::sample::Index>()),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        block_bytes in prop::sample::select(vec![1usize, 20, 1 << 20]),
        n_threads in 1usize..3,
    ) {
        let (name, mut bytes) = SAMPLES[which].clone();
        for (place, byte) in flips {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let folder = Folder::new();
        folder.write(name, bytes);
        let how = How { block_bytes, n_threads, ..How::default() };
        // Either outcome is fine; a panic or an endless wait is not.
        let _ = folder.blocks(&one(name), &how);
    }
}
