//! Any bytes as a snapshot of a shard, also with the digests that they should have: no panic, no memory beyond what came, and what is taken comes out again.

use manyhands_net::tables::store::snapshot::{Filling, HEAD_BYTES, Head, piece};
use manyhands_net::tables::store::{DenseShard, RowInit, RowShard, Shard};

/// The first byte says which shard is filled, two more how the bytes are cut into pieces.
pub(crate) fn body(bytes: &[u8]) {
    let Some((&[which, low, high], bytes)) = bytes.split_first_chunk::<3>() else { return };
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return };
    let Ok(head) = Head::from_bytes(head) else { return };
    assert_eq!(Head::from_bytes(&head.to_bytes()), Ok(head));
    let n = usize::from(u16::from_le_bytes([low, high])).max(1);
    check(which, head, rest, n);
    check(which, head, &with_digests(rest, n), n);
}

fn check(which: u8, head: Head, rest: &[u8], n: usize) {
    let Ok(mut filling) = Filling::new(empty(which), head) else { return };
    for bytes in rest.chunks(n) {
        let before = filling.n_filled();
        if filling.take(bytes).is_err() {
            return;
        }
        assert!(filling.n_filled() >= before && filling.n_filled() <= head.n_items);
    }
    let Ok(shard) = filling.finish() else { return };
    assert_eq!(Head::of(&shard), head);
    let mut again = Vec::new();
    piece(&shard, 0, usize::MAX, &mut again);
    let mut filling = Filling::new(empty(which), head).expect("the same head");
    if head.n_items > 0 {
        filling.take(&again).expect("what a shard makes is taken");
    }
    assert!(filling.is_done());
}

/// The same pieces, as one who may send them would send them.
fn with_digests(bytes: &[u8], n: usize) -> Vec<u8> {
    const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];
    let mixed = |[high, low]: [u64; 2], word: u64| {
        let high = (high ^ word).wrapping_mul(FACTORS[0]);
        let low = (low ^ word.rotate_left(32)).wrapping_mul(FACTORS[1]);
        [high ^ (high >> 32), low ^ (low >> 29)]
    };
    let mut out = bytes.to_vec();
    for piece in out.chunks_mut(n).filter(|piece| piece.len() >= 32) {
        let (head, body) = piece.split_at_mut(32);
        let (words, rest) = body.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let n_words = words.len() as u64;
        let start = FACTORS.map(|factor| (n_words ^ factor).wrapping_mul(factor));
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let end = [n_words, u64::from_le_bytes(last), rest.len() as u64];
        let [high, low] = words.chain(end).fold(start, mixed);
        head[16..24].copy_from_slice(&low.to_le_bytes());
        head[24..].copy_from_slice(&high.to_le_bytes());
    }
    out
}

fn empty(which: u8) -> Shard {
    let n_slots = usize::from(which / 2 % 3);
    match which % 2 {
        0 => Shard::Dense(DenseShard::new(5, 20, n_slots)),
        _ => Shard::Rows(RowShard::new(1, 3, n_slots, RowInit::Zeros)),
    }
}

/// Whether what a correct sender sends passes, with its own digests and with those of this file: else the checks would be of little use.
pub(crate) fn takes(bytes: &[u8]) -> bool {
    let n = usize::from(u16::from_le_bytes([bytes[1], bytes[2]]));
    let (head, rest) = bytes[3..].split_at(HEAD_BYTES);
    let head = Head::from_bytes(head).expect("a head");
    let mut filling = Filling::new(empty(bytes[0]), head).expect("its shard");
    let all = rest.chunks(n).all(|piece| filling.take(piece).is_ok());
    all && filling.is_done() && with_digests(rest, n) == rest
}

/// Snapshots of shards of both kinds, in one piece and in several.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let seed = |which: u8, n_bytes: u16| {
        let mut shard = empty(which);
        if let Shard::Rows(rows) = &mut shard {
            (0..10).for_each(|key| drop(rows.get_or_make(key * 77)));
        }
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < shard.n_items() {
            at = piece(&shard, at, usize::from(n_bytes), &mut pieces);
        }
        // A first piece of this length is as long as the others but the last.
        let mut first = Vec::new();
        piece(&shard, 0, usize::from(n_bytes), &mut first);
        let [low, high] = (first.len() as u16).to_le_bytes();
        [&[which, low, high][..], &Head::of(&shard).to_bytes(), &pieces].concat()
    };
    (0..6).flat_map(|which| [seed(which, 100), seed(which, 10_000)]).collect()
}
