//! Both sides stay in step, whatever lists come; where they cannot be, it is said.

use proptest::prelude::*;

use super::*;

fn list(number: u64) -> Vec<u64> {
    (0..10 + number % 50).map(|idx| number * 1000 + idx).collect()
}

/// What was sent for these keys, and what came of it.
fn sent(sender: &mut KeyCache, receiver: &mut KeyCache, keys: &[u64]) -> usize {
    let mut bytes = Vec::new();
    sender.encode(keys, &mut bytes);
    assert_eq!(*receiver.decode(&bytes).unwrap(), *keys);
    bytes.len()
}

proptest! {
    #[test]
    fn all_lists_arrive_and_memory_is_bounded(
        numbers in proptest::collection::vec(0u64..12, 1..60), most in 0usize..200,
        forgets_at in 0usize..60,
    ) {
        let (mut sender, mut receiver) = (KeyCache::new(most), KeyCache::new(most));
        for (time, number) in numbers.iter().enumerate() {
            if time == forgets_at {
                sender.forget();
                receiver.forget();
            }
            sent(&mut sender, &mut receiver, &list(*number));
            prop_assert!(receiver.n_keys <= most && sender.n_keys == receiver.n_keys);
            let held: usize =
                receiver.lists.values().filter_map(|list| Some(list.keys.as_ref()?.len())).sum();
            prop_assert_eq!(held, receiver.n_keys);
            prop_assert_eq!(receiver.by_use.len(), receiver.lists.len());
        }
        prop_assert_eq!(sender.saved(), receiver.saved());
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        form in 0u64..3, n in 0u64..6, rest in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let bytes = [&form.to_le_bytes()[..], &n.to_le_bytes(), &rest].concat();
        if let Ok(keys) = KeyCache::new(100).decode(&bytes) {
            prop_assert_eq!(bytes.len(), 16 + 8 * keys.len());
        }
    }
}

#[test]
fn a_list_that_was_seen_goes_as_its_digest() {
    let (mut sender, mut receiver) = (KeyCache::new(1000), KeyCache::new(1000));
    assert_eq!(sent(&mut sender, &mut receiver, &list(1)), 16 + 8 * 11);
    assert_eq!(sent(&mut sender, &mut receiver, &list(2)), 16 + 8 * 12);
    assert_eq!(sent(&mut sender, &mut receiver, &list(1)), 32);
    // Without the setting there would be no heads.
    assert_eq!(sender.saved(), Saved { before: 8 * 34, after: 8 * 23 + 2 * 16 + 32 });
    assert_eq!(receiver.saved(), sender.saved());
}

#[test]
fn the_list_that_was_longest_unused_is_forgotten() {
    let (mut sender, mut receiver) = (KeyCache::new(36), KeyCache::new(36));
    for number in [1, 2, 3, 1, 4] {
        sent(&mut sender, &mut receiver, &list(number));
    }
    assert_eq!(sent(&mut sender, &mut receiver, &list(1)), 32);
    assert_eq!(sent(&mut sender, &mut receiver, &list(2)), 16 + 8 * 12);
}

#[test]
fn a_receiver_that_is_new_asks_for_the_list() {
    let (mut sender, mut receiver) = (KeyCache::new(1000), KeyCache::new(1000));
    sent(&mut sender, &mut receiver, &list(1));
    receiver = KeyCache::new(1000);
    let mut bytes = Vec::new();
    sender.encode(&list(1), &mut bytes);
    assert!(matches!(receiver.decode(&bytes), Err(TrafficError::UnknownKeys { .. })));
    sender.forget();
    sent(&mut sender, &mut receiver, &list(1));
    assert_eq!(sent(&mut sender, &mut receiver, &list(1)), 32);
}

#[test]
fn a_sender_that_forgot_is_understood() {
    let (mut sender, mut receiver) = (KeyCache::new(1000), KeyCache::new(1000));
    sent(&mut sender, &mut receiver, &list(1));
    sender.forget();
    sent(&mut sender, &mut receiver, &list(1));
    assert_eq!(receiver.n_keys, 11);
}

#[test]
fn lengths_that_lie_are_refused() {
    let head = |form: u64, n: u64| [form.to_le_bytes(), n.to_le_bytes()].concat();
    let mut cache = KeyCache::new(100);
    for bytes in [head(LIST, u64::MAX), head(LIST, 1), head(DIGEST, 0), vec![0; 15]] {
        assert!(matches!(cache.decode(&bytes), Err(TrafficError::WrongLength { .. })));
    }
    assert_eq!(cache.decode(&head(2, 0)), Err(TrafficError::UnknownForm { form: 2 }));
    assert!(cache.decode(&head(LIST, 0)).unwrap().is_empty());
}
