//! Which candidate to take, with the reason. Pure.

use super::Predicted;
use crate::job::bytes_in_words;

/// A candidate on several workers must be at least so much faster than one worker to be worth it.
const WORTH_IT: f64 = 1.05;

/// Of candidates on several workers that are slower than the fastest by less than this the first is taken, which is the simplest.
const ALIKE: f64 = 1.03;

/// The place of the one to take, and one sentence. The fastest of those that fit, or a simpler one that is hardly slower; one worker where distributing gains next to nothing. Layers are
/// split only where nothing else fits: it changes the last bits of results.
pub fn choose(predictions: &[Predicted], limit: Option<u64>) -> (Option<usize>, String) {
    let keeps_bits = |idx: usize| predictions[idx].candidate.mesh.tensor == 1;
    let any_keeps = (0..predictions.len()).any(|idx| predictions[idx].fits && keeps_bits(idx));
    let fitting = || {
        let all = (0..predictions.len()).filter(|&idx| predictions[idx].fits);
        all.filter(move |&idx| keeps_bits(idx) || !any_keeps)
    };
    let fastest =
        fitting().min_by(|&a, &b| predictions[a].seconds.total_cmp(&predictions[b].seconds));
    let Some(fastest) = fastest else { return (None, nothing_fits(predictions, limit)) };
    let alone = fitting().find(|&idx| predictions[idx].candidate.mesh.n_workers() == 1);
    let ms = |idx: usize| format!("{:.2} ms a step", predictions[idx].seconds * 1e3);
    let name = |idx: usize| &predictions[idx].candidate.name;
    let is_alike = |idx: &usize| {
        let one = &predictions[*idx];
        one.candidate.mesh.n_workers() > 1 && one.seconds <= ALIKE * predictions[fastest].seconds
    };
    let taken = fitting().find(is_alike).unwrap_or(fastest);
    let is_what = |those: &str| match taken == fastest {
        true => format!("the fastest{those}"),
        false => format!("hardly slower than {}, and simpler", name(fastest)),
    };
    let Some(alone) = alone else {
        let sentence = format!(
            "{} is {}, with {} and {} for each worker; one worker would not have the memory",
            name(taken),
            is_what(" that fits"),
            ms(taken),
            bytes_in_words(predictions[taken].memory_bytes)
        );
        return (Some(taken), sentence);
    };
    let gain = predictions[alone].seconds / predictions[fastest].seconds.max(f64::MIN_POSITIVE);
    if alone != fastest && gain >= WORTH_IT {
        let gain = predictions[alone].seconds / predictions[taken].seconds.max(f64::MIN_POSITIVE);
        let sentence = format!(
            "{} is {}, with {}: {gain:.2} times as fast as one worker",
            name(taken),
            is_what(""),
            ms(taken)
        );
        return (Some(taken), sentence);
    }
    let others = fitting().filter(|&idx| idx != alone);
    let next = others.min_by(|&a, &b| predictions[a].seconds.total_cmp(&predictions[b].seconds));
    let sentence = match next {
        Some(next) if predictions[next].seconds > predictions[alone].seconds => format!(
            "one worker is enough, with {}; distributing would be slower ({}: {})",
            ms(alone),
            name(next),
            ms(next)
        ),
        Some(next) => format!(
            "one worker is enough, with {}; distributing gains next to nothing ({}: {})",
            ms(alone),
            name(next),
            ms(next)
        ),
        None => format!("one worker is enough, with {}", ms(alone)),
    };
    (Some(alone), sentence)
}

fn nothing_fits(predictions: &[Predicted], limit: Option<u64>) -> String {
    let possible = predictions.iter().filter(|one| one.memory_bytes > 0);
    let least = possible.min_by_key(|one| one.memory_bytes);
    match (least, limit) {
        (Some(least), Some(limit)) => format!(
            "nothing fits in {} for each worker: the least is {} with {}; give each worker that much, more workers, a smaller grain, or `distribute.recompute`",
            bytes_in_words(limit),
            bytes_in_words(least.memory_bytes),
            least.candidate.name
        ),
        _ => "the model can be shared out in no way over so many workers; take fewer".to_string(),
    }
}
