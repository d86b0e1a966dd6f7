//! Who does which grain of a step: near proportional to speed, in few complete subtrees of the tree that grains are summed along, so
//! that few partial sums travel.
//!
//! First the shortest time is found in which the members could do all grains, then, among the sharings that take at most
//! [`SLACK`] longer, the one with the fewest subtrees. Everything is a function of the arguments: all members compute the same.

use super::message::Grains;

/// What a grain takes, in seconds, after another was measured. A new one counts a fifth, and for no more than four times what was known: one during which the
/// machine slept says nothing of its speed, and who got no grains for that would never be measured again.
pub fn measured_again(before: Option<f64>, seconds: f64) -> f64 {
    let before = before.filter(|before| *before > 0.0).unwrap_or(seconds);
    0.8 * before + 0.2 * seconds.min(4.0 * before)
}

/// What a grain may take one that has had none for long: what was known loses its weight, so that it is tried again.
pub fn not_measured_lately(before: Option<f64>) -> Option<f64> {
    before.map(|seconds| seconds / 2.0)
}

/// How much longer a step may take for the sake of fewer partial sums.
pub const SLACK: f64 = 0.10;
/// How much longer than the shortest time an assignment may take before it is given up for another.
pub const HYSTERESIS: f64 = 0.20;
/// Beyond so many pieces of work, neighbouring grains are assigned together.
const MAX_UNITS: usize = 128;

/// What is known of a member.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    /// How long one grain takes it, if known.
    pub seconds_per_grain: Option<f64>,
    /// Grains of the step that it has done.
    pub done: Vec<Grains>,
    /// Whether it is to do no more of them.
    pub is_excused: bool,
}

/// What a member brings to a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assigned {
    /// Grains it has done: those of its [`Share`] that no earlier member has done too.
    pub done: Vec<Grains>,
    /// Grains it is to do.
    pub to_do: Vec<Grains>,
}

/// Assigns every grain of a step to exactly one member. What is done stays with who did it. If all are excused, none is.
pub fn assign(n_grains: u32, shares: &[Share]) -> Vec<Assigned> {
    let mut owners: Vec<Option<usize>> = vec![None; n_grains as usize];
    for (rank, share) in shares.iter().enumerate() {
        for grain in share.done.iter().flat_map(|grains| grains.start..grains.end) {
            if let Some(owner) = owners.get_mut(grain as usize) {
                owner.get_or_insert(rank);
            }
        }
    }
    let grains_where = |wanted: Option<usize>| {
        (0..n_grains).filter(|&grain| owners[grain as usize] == wanted).collect::<Vec<u32>>()
    };
    let rest = grains_where(None);
    let to_do = divide(n_grains, &rest, &seconds(shares));
    let done = (0..shares.len()).map(|rank| runs(&grains_where(Some(rank))));
    done.zip(to_do).map(|(done, to_do)| Assigned { done, to_do }).collect()
}

/// As [`assign`] with nothing done, but goes on with the assignment before as long as it is not much slower, so that noise in
/// measured speeds moves no grains.
pub fn rebalance(n_grains: u32, shares: &[Share], before: &[Vec<Grains>]) -> Vec<Vec<Grains>> {
    let seconds = seconds(shares);
    let n_before: usize = before.iter().flatten().map(Grains::len).sum();
    let fits = before.len() == shares.len()
        && n_before == n_grains as usize
        && before.iter().zip(&seconds).all(|(grains, s)| grains.is_empty() || s.is_finite());
    if fits {
        let counts = before.iter().map(|grains| grains.iter().map(Grains::len).sum::<usize>());
        let time = counts.zip(&seconds).map(|(n, s)| time(n, *s)).fold(0.0, f64::max);
        if time <= (1.0 + HYSTERESIS) * shortest(n_grains as usize, &seconds) {
            return before.to_vec();
        }
    }
    divide(n_grains, &(0..n_grains).collect::<Vec<u32>>(), &seconds)
}

/// How many complete subtrees of the tree over `n_grains` the grains make: the partial sums that travel.
pub fn n_subtrees(n_grains: u32, grains: &[Grains]) -> usize {
    grains.iter().map(|grains| subtrees_in(*grains, Grains { start: 0, end: n_grains })).sum()
}

/// [a, b) splits at a + the largest power of two below b - a.
fn subtrees_in(wanted: Grains, tree: Grains) -> usize {
    if wanted.start >= tree.end || wanted.end <= tree.start || wanted.is_empty() {
        return 0;
    }
    if wanted.start <= tree.start && tree.end <= wanted.end {
        return 1;
    }
    let middle = tree.start + ((tree.end - tree.start).next_power_of_two() >> 1);
    subtrees_in(wanted, Grains { end: middle, ..tree })
        + subtrees_in(wanted, Grains { start: middle, ..tree })
}

/// Seconds per grain of each member: where unknown, those of the middle one of the known; infinite for the excused.
fn seconds(shares: &[Share]) -> Vec<f64> {
    let usable = |seconds: &f64| seconds.is_finite() && *seconds > 0.0;
    let mut known: Vec<f64> =
        shares.iter().filter_map(|share| share.seconds_per_grain).filter(usable).collect();
    known.sort_by(f64::total_cmp);
    let middle = known.get(known.len() / 2).copied().unwrap_or(1.0);
    let all_excused = shares.iter().all(|share| share.is_excused);
    let of = |share: &Share| match share.is_excused && !all_excused {
        true => f64::INFINITY,
        false => share.seconds_per_grain.filter(usable).unwrap_or(middle),
    };
    shares.iter().map(of).collect()
}

fn time(n: usize, seconds: f64) -> f64 {
    if n == 0 { 0.0 } else { n as f64 * seconds }
}

/// How many grains fit in a time. The small addition makes up for the rounding of a product by a quotient.
fn fits_in(time: f64, seconds: f64) -> usize {
    (time / seconds * (1.0 + 1e-9)) as usize
}

/// The shortest time in which `n` grains can be done: one more grain at a time to whoever is done with it first.
fn shortest(n: usize, seconds: &[f64]) -> f64 {
    let rate: f64 = seconds.iter().map(|s| 1.0 / s).sum();
    // Everyone starts with the whole grains of the ideal share; what is left is fewer than the members.
    let mut counts: Vec<usize> = seconds.iter().map(|s| (n as f64 / (rate * s)) as usize).collect();
    while counts.iter().sum::<usize>() < n {
        let next = |rank: &usize| (counts[*rank] + 1) as f64 * seconds[*rank];
        let first = (0..seconds.len()).min_by(|a, b| next(a).total_cmp(&next(b)));
        let Some(first) = first else { return 0.0 };
        counts[first] += 1;
    }
    counts.iter().zip(seconds).map(|(n, s)| time(*n, *s)).fold(0.0, f64::max)
}

/// Divides grains among members in the order of their ranks.
fn divide(n_grains: u32, grains: &[u32], seconds: &[f64]) -> Vec<Vec<Grains>> {
    if grains.is_empty() || seconds.is_empty() {
        return vec![Vec::new(); seconds.len()];
    }
    let units = units(grains);
    let mut limit = shortest(grains.len(), seconds) * (1.0 + SLACK);
    loop {
        let most: Vec<usize> = seconds.iter().map(|s| fits_in(limit, *s)).collect();
        if let Some(ends) = fewest_subtrees(n_grains, &units, &most, seconds) {
            let starts = std::iter::once(0).chain(ends.iter().copied());
            return starts.zip(&ends).map(|(from, to)| runs(&units[from..*to].concat())).collect();
        }
        // Only where several grains make a unit: then whole units may need a little longer.
        limit *= 1.0 + SLACK / 2.0;
    }
}

/// Grains that are assigned together: single ones, or blocks aligned in the tree where there are many.
fn units(grains: &[u32]) -> Vec<Vec<u32>> {
    let mut size = 1;
    while grains.chunk_by(|a, b| a / size == b / size).count() > MAX_UNITS {
        size *= 2;
    }
    grains.chunk_by(|a, b| a / size == b / size).map(<[u32]>::to_vec).collect()
}

/// Where each member's units end, so that no member gets more than its most grains and the number of subtrees is the least; among
/// equals, the one nearest to proportional.
fn fewest_subtrees(
    n_grains: u32,
    units: &[Vec<u32>],
    most: &[usize],
    seconds: &[f64],
) -> Option<Vec<usize>> {
    let n_units = units.len();
    let counts = |from: usize, to: usize| units[from..to].iter().map(Vec::len).sum::<usize>();
    let n_total = counts(0, n_units) as f64;
    let rate: f64 = seconds.iter().map(|s| 1.0 / s).sum();
    let subtrees = subtree_table(n_grains, units);
    // best[to]: the least cost of the units before `to` for the members so far; from[rank][to]: where the last one's begin.
    let mut best: Vec<Option<(usize, f64)>> = vec![None; n_units + 1];
    best[0] = Some((0, 0.0));
    let mut from = Vec::with_capacity(most.len());
    for (rank, most) in most.iter().enumerate() {
        let ideal = n_total / (rate * seconds[rank]);
        let mut next: Vec<Option<(usize, f64)>> = vec![None; n_units + 1];
        let mut begins = vec![0; n_units + 1];
        for to in 0..=n_units {
            let mut n = 0;
            for start in (0..=to).rev() {
                n += if start < to { units[start].len() } else { 0 };
                if n > *most {
                    break;
                }
                let Some((n_before, off_before)) = best[start] else { continue };
                let cost =
                    (n_before + subtrees[start][to], off_before + (n as f64 - ideal).powi(2));
                let is_better = |old: (usize, f64)| {
                    cost.0 < old.0 || (cost.0 == old.0 && cost.1 < old.1 - 1e-9)
                };
                if next[to].is_none_or(is_better) {
                    next[to] = Some(cost);
                    begins[to] = start;
                }
            }
        }
        best = next;
        from.push(begins);
    }
    best[n_units]?;
    let mut ends = vec![n_units; most.len()];
    for rank in (1..most.len()).rev() {
        ends[rank - 1] = from[rank][ends[rank]];
    }
    Some(ends)
}

/// The subtrees of the units from one to another.
fn subtree_table(n_grains: u32, units: &[Vec<u32>]) -> Vec<Vec<usize>> {
    let of = |from: usize, to: usize| {
        if to <= from { 0 } else { n_subtrees(n_grains, &runs(&units[from..to].concat())) }
    };
    (0..=units.len()).map(|from| (0..=units.len()).map(|to| of(from, to)).collect()).collect()
}

/// Grains in order as ranges.
pub(super) fn runs(grains: &[u32]) -> Vec<Grains> {
    let chunks = grains.chunk_by(|a, b| a + 1 == *b);
    chunks.map(|run| Grains { start: run[0], end: run[run.len() - 1] + 1 }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(seconds: f64) -> Share {
        Share { seconds_per_grain: Some(seconds), ..Share::default() }
    }

    #[test]
    fn one_freeze_changes_little_and_who_gets_no_grains_is_tried_again() {
        let before = Some(0.001);
        assert_eq!(measured_again(None, 0.001), 0.001);
        assert!(measured_again(before, 1000.0) < 0.002);
        // One that has become slow for good is known to be after a while.
        let slow = (0..30).fold(before, |known, _| Some(measured_again(known, 1.0)));
        assert!(slow.unwrap() > 0.9);
        let tried = (0..10).fold(slow, |known, _| not_measured_lately(known));
        assert!(tried.unwrap() < 0.001);
    }

    fn counts(assigned: &[Assigned]) -> Vec<usize> {
        assigned.iter().map(|one| one.to_do.iter().map(Grains::len).sum()).collect()
    }

    fn owners(n_grains: u32, assigned: &[Assigned]) -> Vec<usize> {
        let mut owners = vec![Vec::new(); n_grains as usize];
        for (rank, one) in assigned.iter().enumerate() {
            for grains in one.done.iter().chain(&one.to_do) {
                (grains.start..grains.end).for_each(|grain| owners[grain as usize].push(rank));
            }
        }
        assert!(owners.iter().all(|owners| owners.len() == 1), "{owners:?}");
        owners.concat()
    }

    #[test]
    fn equal_members_get_a_whole_subtree_each() {
        for (n_grains, n_members) in [(8, 1), (8, 2), (8, 4), (8, 8), (64, 16), (4096, 32)] {
            let assigned = assign(n_grains, &vec![share(0.3); n_members]);
            owners(n_grains, &assigned);
            for one in &assigned {
                assert_eq!(n_subtrees(n_grains, &one.to_do), 1, "{n_grains} {n_members}");
                assert_eq!(one.to_do[0].len(), n_grains as usize / n_members);
            }
        }
    }

    #[test]
    fn a_member_three_times_as_fast_gets_three_times_as_much() {
        let assigned = assign(8, &[share(1.0), share(3.0)]);
        assert_eq!(counts(&assigned), [6, 2]);
    }

    #[test]
    fn a_little_noise_moves_nothing_and_a_lot_does() {
        let before: Vec<Vec<Grains>> =
            assign(8, &[share(1.0), share(1.0)]).into_iter().map(|one| one.to_do).collect();
        assert_eq!(rebalance(8, &[share(1.0), share(1.15)], &before), before);
        let after = rebalance(8, &[share(1.0), share(3.0)], &before);
        assert_eq!(after[0].iter().map(Grains::len).sum::<usize>(), 6);
    }

    #[test]
    fn the_excused_do_nothing_unless_all_are() {
        let excused = Share { is_excused: true, ..share(1.0) };
        assert_eq!(counts(&assign(8, &[share(9.0), excused.clone()])), [8, 0]);
        assert_eq!(counts(&assign(8, &[excused.clone(), excused])), [4, 4]);
    }

    fn shares() -> impl Strategy<Value = Vec<Share>> {
        let grains = proptest::collection::vec((0_u32..300, 1_u32..20), 0..4);
        let share = (proptest::option::of(0.01_f64..50.0), grains, any::<bool>());
        let share = share.prop_map(|(seconds_per_grain, grains, is_excused)| {
            let mut done: Vec<u32> = grains.iter().flat_map(|(a, n)| *a..a + n).collect();
            done.sort_unstable();
            done.dedup();
            Share { seconds_per_grain, done: runs(&done), is_excused }
        });
        proptest::collection::vec(share, 1..9)
    }

    /// The shortest time by trying all that could be it.
    fn shortest_by_search(n: usize, seconds: &[f64]) -> f64 {
        let times = seconds.iter().flat_map(|s| (1..=n).map(move |k| k as f64 * s));
        let fits = |t: &f64| seconds.iter().map(|s| fits_in(*t, *s)).sum::<usize>() >= n;
        times.filter(fits).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn every_grain_has_one_owner_and_done_ones_keep_theirs(
            n_grains in 1_u32..300, shares in shares()
        ) {
            let assigned = assign(n_grains, &shares);
            let owners = owners(n_grains, &assigned);
            for (rank, share) in shares.iter().enumerate() {
                for grain in share.done.iter().flat_map(|g| g.start..g.end.min(n_grains)) {
                    prop_assert!(owners[grain as usize] <= rank);
                }
                let is_excused = share.is_excused && !shares.iter().all(|s| s.is_excused);
                prop_assert!(!is_excused || assigned[rank].to_do.is_empty());
            }
            prop_assert_eq!(assigned, assign(n_grains, &shares));
        }

        #[test]
        fn no_step_takes_much_longer_than_the_shortest(
            n_grains in 1_u32..120, seconds in proptest::collection::vec(0.1_f64..10.0, 1..7)
        ) {
            let shares: Vec<Share> = seconds.iter().map(|s| share(*s)).collect();
            let n = counts(&assign(n_grains, &shares));
            let best = shortest_by_search(n_grains as usize, &seconds);
            let time = n.iter().zip(&seconds).map(|(n, s)| time(*n, *s)).fold(0.0, f64::max);
            prop_assert!(time <= best * (1.0 + SLACK) * (1.0 + 1e-6), "{time} {best}");
            // The shortest is within one grain of proportional.
            let rate: f64 = seconds.iter().map(|s| 1.0 / s).sum();
            let slowest = seconds.iter().fold(0.0, |a: f64, b| a.max(*b));
            prop_assert!(best <= f64::from(n_grains) / rate + slowest);
        }

        #[test]
        fn unchanged_speeds_change_nothing(
            n_grains in 1_u32..120, seconds in proptest::collection::vec(0.1_f64..10.0, 1..7)
        ) {
            let shares: Vec<Share> = seconds.iter().map(|s| share(*s)).collect();
            let before: Vec<_> = assign(n_grains, &shares).into_iter().map(|p| p.to_do).collect();
            prop_assert_eq!(rebalance(n_grains, &shares, &before), before);
        }
    }
}
