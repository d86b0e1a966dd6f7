//! Where to cut so that chunks cost about the same.

use std::ops::Range;

/// Cuts a row of costs into `n_chunks` runs, none of them empty, so that the dearest is as cheap as can be. A cut before position `p` costs
/// `crossing[p]` on both its sides; of equally good choices the one with the least crossing in all is taken. `None` where there are fewer
/// positions than chunks.
pub fn balance(costs: &[f64], crossing: &[f64], n_chunks: usize) -> Option<Vec<Range<usize>>> {
    let n = costs.len();
    if n_chunks == 0 || n < n_chunks {
        return None;
    }
    let mut sums = vec![0.0; n + 1];
    for (idx, cost) in costs.iter().enumerate() {
        sums[idx + 1] = sums[idx] + cost;
    }
    let at = |position: usize| match position {
        0 => 0.0,
        inside if inside < n => crossing.get(inside).copied().unwrap_or(0.0),
        _ => 0.0,
    };
    // The best for the first `end` positions in so many chunks: the dearest chunk, all crossings, where the last chunk begins.
    let mut best: Vec<(f64, f64, usize)> = vec![(f64::INFINITY, f64::INFINITY, 0); n + 1];
    best[0] = (0.0, 0.0, 0);
    let mut begins: Vec<Vec<usize>> = Vec::with_capacity(n_chunks);
    for chunk in 0..n_chunks {
        let mut next = vec![(f64::INFINITY, f64::INFINITY, 0); n + 1];
        for end in chunk + 1..=n {
            for start in (chunk..end).rev() {
                let own = sums[end] - sums[start] + at(start) + at(end);
                if own > next[end].0 {
                    // Earlier starts make this chunk only dearer, but for what crosses there.
                    if sums[end] - sums[start] > next[end].0 {
                        break;
                    }
                    continue;
                }
                let (before, crossed, _) = best[start];
                let now = (before.max(own), crossed + at(start), start);
                if (now.0, now.1) < (next[end].0, next[end].1) {
                    next[end] = now;
                }
            }
        }
        begins.push(next.iter().map(|&(.., start)| start).collect());
        best = next;
    }
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
}
