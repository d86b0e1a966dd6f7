//! Where to cut so that chunks cost about the same.

use std::ops::Range;

/// Costs are not known better than so, as a share: of cuts that are as good but for that, the one is taken where least crosses.
const AS_GOOD: f64 = 0.02;

/// Cuts a row of costs into `n_chunks` runs, none of them empty, so that the dearest is about as cheap as can be. A cut before position `p` costs
/// `crossing[p]` on both its sides; of choices that are about equally good the one with the least crossing in all is taken. `None` where there are fewer
/// positions than chunks.
pub fn balance(costs: &[f64], crossing: &[f64], n_chunks: usize) -> Option<Vec<Range<usize>>> {
    // Runs that are filled one after the other are not dearer than that, whatever the rounding.
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let equal = costs.iter().sum::<f64>() / n_chunks.max(1) as f64;
    let enough = (equal + most(costs) + 2.0 * most(crossing)) * (1.0 + AS_GOOD);
    let cheapest = runs(costs, crossing, n_chunks, enough, |dearest, all| (dearest, all))?;
    let bound = dearest(&cheapest, costs, crossing) * (1.0 + AS_GOOD);
    let least_crosses = runs(costs, crossing, n_chunks, bound, |dearest, all| (all, dearest));
    Some(least_crosses.unwrap_or(cheapest))
}

/// What crosses before a position: nothing at either end.
fn crosses(crossing: &[f64], position: usize, n: usize) -> f64 {
    match position {
        inside if inside > 0 && inside < n => crossing.get(inside).copied().unwrap_or(0.0),
        _ => 0.0,
    }
}

/// The cost of the dearest of some runs.
fn dearest(runs: &[Range<usize>], costs: &[f64], crossing: &[f64]) -> f64 {
    let at = |position| crosses(crossing, position, costs.len());
    let each = runs.iter();
    each.map(|run| costs[run.clone()].iter().sum::<f64>() + at(run.start) + at(run.end))
        .fold(0.0, f64::max)
}

/// The runs of which none is dearer than `bound` and of which `first_and_second` of the dearest and of all crossings is least.
fn runs(
    costs: &[f64],
    crossing: &[f64],
    n_chunks: usize,
    bound: f64,
    first_and_second: fn(f64, f64) -> (f64, f64),
) -> Option<Vec<Range<usize>>> {
    let n = costs.len();
    if n_chunks == 0 || n < n_chunks {
        return None;
    }
    let mut sums = vec![0.0; n + 1];
    for (idx, cost) in costs.iter().enumerate() {
        sums[idx + 1] = sums[idx] + cost;
    }
    let at = |position| crosses(crossing, position, n);
    // The best for the first `end` positions in so many chunks: the dearest chunk, all crossings, where the last chunk begins.
    let mut best: Vec<Option<(f64, f64, usize)>> = vec![None; n + 1];
    best[0] = Some((0.0, 0.0, 0));
    let mut begins: Vec<Vec<usize>> = Vec::with_capacity(n_chunks);
    for chunk in 0..n_chunks {
        let mut next: Vec<Option<(f64, f64, usize)>> = vec![None; n + 1];
        for end in chunk + 1..=n {
            for start in (chunk..end).rev() {
                // Earlier starts make this chunk only dearer, but for what crosses there.
                if sums[end] - sums[start] > bound {
                    break;
                }
                let own = sums[end] - sums[start] + at(start) + at(end);
                let Some((before, crossed, _)) = best[start].filter(|_| own <= bound) else {
                    continue;
                };
                let now = (before.max(own), crossed + at(start), start);
                let is_better = |known: (f64, f64, usize)| {
                    first_and_second(now.0, now.1) < first_and_second(known.0, known.1)
                };
                if next[end].is_none_or(is_better) {
                    next[end] = Some(now);
                }
            }
        }
        begins.push(next.iter().map(|found| found.map_or(0, |(.., start)| start)).collect());
        best = next;
    }
    best[n]?;
    let mut chunks = Vec::with_capacity(n_chunks);
    let mut end = n;
    for begin in begins.iter().rev() {
        chunks.push(begin[end]..end);
        end = begin[end];
    }
    chunks.reverse();
    Some(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_costs_are_cut_into_equal_runs() {
        assert_eq!(balance(&[1.0; 6], &[0.0; 6], 3), Some(vec![0..2, 2..4, 4..6]));
        assert_eq!(balance(&[1.0; 3], &[0.0; 3], 3), Some(vec![0..1, 1..2, 2..3]));
        assert_eq!(balance(&[1.0; 2], &[0.0; 2], 3), None);
    }

    #[test]
    fn one_dear_operation_stands_alone() {
        assert_eq!(balance(&[1.0, 1.0, 9.0, 1.0], &[0.0; 4], 3), Some(vec![0..2, 2..3, 3..4]));
    }

    #[test]
    fn a_cut_is_made_where_little_crosses() {
        let crossing = [0.0, 5.0, 5.0, 0.1, 5.0, 5.0];
        assert_eq!(balance(&[1.0; 6], &crossing, 2), Some(vec![0..3, 3..6]));
        let crossing = [0.0, 5.0, 0.1, 5.0, 5.0, 5.0];
        assert_eq!(balance(&[1.0; 6], &crossing, 2), Some(vec![0..2, 2..6]));
    }

    #[test]
    fn what_is_nearly_as_good_is_taken_where_less_crosses() {
        let (costs, crossing) = ([1.0, 0.99, 0.01, 1.0, 1.0], [0.0, 0.9, 0.01, 0.001, 0.9]);
        assert_eq!(balance(&costs, &crossing, 2), Some(vec![0..3, 3..5]));
        let crossing = [0.0, 0.9, 0.001, 0.01, 0.9];
        assert_eq!(balance(&costs, &crossing, 2), Some(vec![0..2, 2..5]));
        // Not where it makes a stage dearer.
        let costs = [1.0, 0.8, 0.2, 1.0, 1.0];
        assert_eq!(balance(&costs, &crossing, 2), Some(vec![0..3, 3..5]));
    }
}
