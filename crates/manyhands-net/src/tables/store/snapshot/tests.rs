//! Shards of both kinds through bytes in pieces of all sizes, and bytes that are refused.

use proptest::prelude::*;

use super::*;
use crate::tables::store::{RowInit, RowShard};

fn dense(first: u64, n: usize, n_slots: usize) -> Shard {
    let mut shard = DenseShard::new(first, n, n_slots);
    let fill = |to: &mut [f32], factor: f32| {
        to.iter_mut().enumerate().for_each(|(idx, value)| *value = factor * idx as f32);
    };
    fill(shard.values_mut(), 0.3);
    (0..n_slots).for_each(|idx| fill(shard.slots_mut(idx), idx as f32 - 1.7));
    Shard::Dense(shard)
}

fn rows(n: u64, width: usize, n_slots: usize) -> Shard {
    let init = RowInit::Normal { std: 1.0, seed: 1 };
    let mut shard = RowShard::new(9, width, n_slots, init);
    for key in 0..n {
        let row = shard.get_or_make(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
        shard.row_mut(row)[width..].fill(key as f32);
    }
    Shard::Rows(shard)
}

fn empty_like(shard: &Shard) -> Shard {
    match shard {
        Shard::Dense(dense) => {
            Shard::Dense(DenseShard::new(dense.first(), dense.len(), dense.n_slots()))
        }
        Shard::Rows(rows) => {
            Shard::Rows(RowShard::new(9, rows.width(), rows.n_slots(), RowInit::Zeros))
        }
    }
}

fn pieces(shard: &Shard, n_bytes: usize) -> Vec<Vec<u8>> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < shard.n_items() {
        let mut bytes = Vec::new();
        at = piece(shard, at, n_bytes, &mut bytes);
        pieces.push(bytes);
    }
    pieces
}

fn filled(shard: &Shard, pieces: &[Vec<u8>]) -> Result<Shard, SnapshotError> {
    let head = Head::from_bytes(&Head::of(shard).to_bytes())?;
    let mut filling = Filling::new(empty_like(shard), head)?;
    pieces.iter().try_for_each(|piece| filling.take(piece))?;
    filling.finish()
}

proptest! {
    #[test]
    fn what_goes_comes_back(
        n in 0usize..300, width in 1usize..9, n_slots in 0usize..4, n_bytes in 0usize..3000,
    ) {
        for shard in [dense(77, n, n_slots), rows(n as u64, width, n_slots)] {
            let sent = pieces(&shard, n_bytes);
            let again = filled(&shard, &sent).unwrap();
            prop_assert_eq!(Head::of(&again), Head::of(&shard));
            // The same bytes in one piece: the same bits in the same order.
            prop_assert_eq!(pieces(&again, usize::MAX), pieces(&shard, usize::MAX));
            prop_assert!(sent.iter().all(|piece| piece.len() <= n_bytes.max(32 + 8 + 4 * 9 * 4)));
        }
    }

    #[test]
    fn a_changed_byte_is_noticed(at in 0usize..10_000, bit in 0u32..8) {
        for shard in [dense(0, 20, 1), rows(20, 3, 1)] {
            let mut sent = pieces(&shard, 200);
            let piece_idx = at % sent.len();
            let piece = &mut sent[piece_idx];
            let byte = at / 7 % piece.len();
            piece[byte] ^= 1 << bit;
            prop_assert!(filled(&shard, &sent).is_err());
        }
    }
}

#[test]
fn rows_that_were_filled_are_found() {
    let shard = rows(5_000, 4, 0);
    let Shard::Rows(again) = filled(&shard, &pieces(&shard, 10_000)).unwrap() else { panic!() };
    let Shard::Rows(shard) = shard else { panic!() };
    assert!(shard.keys().enumerate().all(|(row, key)| again.find(key) == Some(row)));
}

#[test]
fn pieces_must_come_in_their_order_and_all_of_them() {
    let shard = rows(20, 3, 0);
    let mut sent = pieces(&shard, 100);
    let cut_short = filled(&shard, &sent[..3]).unwrap_err().to_string();
    assert!(cut_short.starts_with("the snapshot ends after"), "{cut_short}");
    sent.swap(0, 1);
    assert!(matches!(filled(&shard, &sent), Err(SnapshotError::OutOfPlace { .. })));
    sent.swap(0, 1);
    sent.insert(1, sent[0].clone());
    assert!(matches!(filled(&shard, &sent), Err(SnapshotError::OutOfPlace { .. })));
}

#[test]
fn a_snapshot_of_another_shard_is_refused() {
    let others = [dense(1, 8, 0), dense(0, 9, 0), dense(0, 8, 1), rows(0, 8, 0)];
    for other in others {
        let error = Filling::new(dense(0, 8, 0), Head::of(&other)).unwrap_err();
        assert!(matches!(error, SnapshotError::OtherShard { .. }), "{other:?}");
    }
    assert!(Filling::new(rows(0, 8, 0), Head::of(&rows(9, 8, 0))).is_ok());
    assert!(Filling::new(rows(1, 8, 0), Head::of(&rows(9, 8, 0))).is_err(), "it has a row");
}

#[test]
fn other_versions_and_other_bytes_are_no_snapshots() {
    let mut bytes = Head::of(&dense(0, 8, 0)).to_bytes();
    assert!(matches!(Head::from_bytes(&bytes[..39]), Err(SnapshotError::WrongLength { .. })));
    bytes[8] = 2;
    assert_eq!(Head::from_bytes(&bytes), Err(SnapshotError::UnknownKind { kind: 2 }));
    bytes[7] = 2;
    assert!(matches!(Head::from_bytes(&bytes), Err(SnapshotError::NoSnapshot { .. })));
}

#[test]
fn two_rows_under_one_key_are_refused() {
    let shard = rows(2, 1, 0);
    let mut bytes = pieces(&shard, usize::MAX).remove(0);
    bytes.copy_within(32..40, 40);
    let digest = digest::of_bytes(&bytes[32..]);
    bytes[16..32].copy_from_slice(&digest.to_le_bytes());
    assert_eq!(filled(&shard, &[bytes]).unwrap_err(), SnapshotError::Twice { key: 0 });
}
