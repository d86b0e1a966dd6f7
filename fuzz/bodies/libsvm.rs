//! Any bytes as a libsvm file: no panic, and memory for what there is.

/// The first byte says whether features are hashed.
pub(crate) fn body(bytes: &[u8]) {
    let Some((first, lines)) = bytes.split_first() else { return };
    let hash_bits = (first % 2 == 1).then_some(10);
    let _ = manyhands_data::parse_libsvm(lines, hash_bits);
}

/// Files as they are, plain and hashed.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let files: [&[u8]; 3] = [
        b"1 3:0.5 17:1\n0 1:1 2:1\n# a comment\n-1 5:1e-3 # another\n",
        b"+1 1:0.708333 2:1 3:1 4:-0.320755\n\n-1 1:0.583333 2:-1\r\n",
        b"0.5\n2.5 123456:3",
    ];
    let of = |which: u8, file: &[u8]| [&[which], file].concat();
    files.iter().flat_map(|file| [of(0, file), of(1, file)]).collect()
}
