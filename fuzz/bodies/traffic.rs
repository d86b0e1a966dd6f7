//! Any bytes as what the filters of traffic send: no panic, no memory beyond what was announced or came, and what is read is written as it was.

use manyhands_net::tables::traffic::key_cache::KeyCache;
use manyhands_net::tables::traffic::rounding::Rounding;
use manyhands_net::tables::traffic::zero_runs;

/// The first byte says which filter, the second how many values were announced.
pub(crate) fn body(bytes: &[u8]) {
    let Some((&[which, n], bytes)) = bytes.split_first_chunk::<2>() else { return };
    match which % 5 {
        0 => zeros(bytes, usize::from(n)),
        1 => keys(bytes),
        2 => values(Rounding::None, bytes, usize::from(n)),
        3 => values(Rounding::F16, bytes, usize::from(n)),
        _ => values(Rounding::EightBit, bytes, usize::from(n)),
    }
}

fn zeros(bytes: &[u8], n: usize) {
    let mut out = vec![1; n];
    if zero_runs::decode(bytes, &mut out).is_err() {
        return;
    }
    let (mut encoded, mut again) = (Vec::new(), vec![1; n]);
    zero_runs::encode(&out, &mut encoded);
    zero_runs::decode(&encoded, &mut again).expect("what was encoded is decoded");
    assert_eq!(again, out);
}

/// One list after the other, each with its length in a byte.
fn keys(mut bytes: &[u8]) {
    let mut cache = KeyCache::new(40);
    while let Some((&n, rest)) = bytes.split_first() {
        let (list, rest) = rest.split_at(usize::from(n).min(rest.len()));
        bytes = rest;
        assert!(KeyCache::section(list) <= list.len());
        let Ok(keys) = cache.decode(list) else { continue };
        let mut encoded = Vec::new();
        KeyCache::new(0).encode(&keys, &mut encoded);
        assert_eq!(*KeyCache::new(0).decode(&encoded).expect("a list"), *keys);
    }
}

fn values(rounding: Rounding, bytes: &[u8], n: usize) {
    let mut values = vec![0.0; n];
    let is_right = rounding.decode(bytes, &mut values).is_ok();
    assert_eq!(is_right, bytes.len() == rounding.n_bytes(n));
    let mut encoded = Vec::new();
    rounding.encode(&values, &mut encoded);
    assert_eq!(encoded.len(), rounding.n_bytes(n));
}

/// What each filter sends.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut numbers = [0.0f32; 40];
    numbers[3..9].fill(1.5);
    numbers[30] = -2.0;
    let plain: &[u8] = &numbers.map(f32::to_le_bytes).concat();
    let mut runs = vec![0, plain.len() as u8];
    zero_runs::encode(plain, &mut runs);
    let mut lists = vec![1, 0];
    let mut cache = KeyCache::new(40);
    for start in [0u64, 100, 0, 200, 300, 100] {
        let mut list = Vec::new();
        cache.encode(&(start..start + 12).collect::<Vec<_>>(), &mut list);
        lists.push(list.len() as u8);
        lists.extend(list);
    }
    let of = |which: u8, rounding: Rounding| {
        let mut bytes = vec![which, numbers.len() as u8];
        rounding.encode(&numbers, &mut bytes);
        bytes
    };
    let rounded = [of(2, Rounding::None), of(3, Rounding::F16), of(4, Rounding::EightBit)];
    [vec![runs, lists], rounded.to_vec()].concat()
}
