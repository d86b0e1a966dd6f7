//! Where parameters are going to be.
//!
//! Where workers do not wait for each other, a gradient arrives when others have moved the parameters on, and says something of where they were. To an optimizer that keeps its
//! direction (momentum, Adam) such gradients act as more momentum than was asked for, and cost steps. So a worker computes its gradient where the parameters are going to be: as far
//! on as the others moved them since its last turn began, if they go on like that. What it moved itself is not late, and counts with its share of a step.

/// What a worker knows of how the parameters move.
#[derive(Default)]
pub(super) struct Foresight {
    /// The values at the beginning of the last turn, where there was one.
    before: Vec<f32>,
    /// Those at the beginning of this one.
    now: Vec<f32>,
    is_known: bool,
}

impl Foresight {
    /// Writes where these values, those from the first on, are going to be when the gradient of the turn that begins with them arrives, where so much of what moves them is
    /// done by others. In a first turn, nobody knows better.
    pub(super) fn look(&mut self, first: usize, values: &[f32], others: f32, ahead: &mut [f32]) {
        let place = first..first + values.len();
        for memory in [&mut self.before, &mut self.now] {
            memory.resize(memory.len().max(place.end), 0.0);
        }
        let now = &mut self.now[place.clone()];
        if self.is_known {
            let moved = values.iter().zip(&self.before[place]);
            let kept = ahead.iter_mut().zip(now);
            kept.zip(moved).for_each(|((ahead, kept), (now, before))| {
                *ahead = now + others * (now - before);
                *kept = *now;
            });
        } else {
            now.copy_from_slice(values);
            ahead.copy_from_slice(values);
        }
    }

    /// The turn that looked last is over.
    pub(super) fn remember(&mut self) {
        std::mem::swap(&mut self.before, &mut self.now);
        self.is_known = true;
    }

    /// What happened to the values since the last turn says nothing of what is going to.
    pub(super) fn forget(&mut self) {
        self.is_known = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn that begins with these values.
    fn turn<const N: usize>(foresight: &mut Foresight, values: [f32; N], others: f32) -> [f32; N] {
        let mut ahead = [0.0; N];
        foresight.look(0, &values, others, &mut ahead);
        foresight.remember();
        ahead
    }

    #[test]
    fn values_go_on_as_they_went_during_the_last_turn() {
        let mut foresight = Foresight::default();
        assert_eq!(turn(&mut foresight, [1.0, 8.0], 1.0), [1.0, 8.0]);
        assert_eq!(turn(&mut foresight, [2.0, 6.0], 1.0), [3.0, 4.0]);
        assert_eq!(turn(&mut foresight, [2.0, 5.0], 0.5), [2.0, 4.5]);
        assert_eq!(turn(&mut foresight, [4.0, 1.0], 0.0), [4.0, 1.0], "nobody else moves them");
        let mut second = [0.0];
        foresight.look(1, &[3.0], 1.0, &mut second);
        assert_eq!(second, [5.0], "a run of them");
        foresight.forget();
        assert_eq!(turn(&mut foresight, [9.0, 1.0], 1.0), [9.0, 1.0]);
        assert_eq!(turn(&mut foresight, [9.0, 2.0], 1.0), [9.0, 3.0]);
    }

    /// Steps of momentum on a parabola until it is as good as at its bottom, where gradients arrive so many steps late.
    fn steps_to_the_bottom(late: usize, looks_ahead: bool) -> usize {
        let (mut value, mut velocity) = (1.0_f32, 0.0_f32);
        let mut foresight = Foresight::default();
        let mut underway = std::collections::VecDeque::new();
        let mut last_away = 0;
        for step in 0..1000 {
            let at = if looks_ahead { turn(&mut foresight, [value], 1.0)[0] } else { value };
            underway.push_back(at);
            if underway.len() > late {
                let gradient = underway.pop_front().unwrap_or_default();
                velocity = 0.9 * velocity + gradient;
                value -= 0.05 * velocity;
            }
            if value.abs() > 1e-3 {
                last_away = step + 1;
            }
        }
        last_away
    }

    #[test]
    fn gradients_that_come_late_cost_hardly_any_steps() {
        let [in_time, late] = [0, 1].map(|late| steps_to_the_bottom(late, false));
        let ahead = steps_to_the_bottom(1, true);
        assert!(late > in_time * 5 / 4, "{in_time} steps, {late} with a gradient a step late");
        assert!(ahead < in_time * 21 / 20, "{in_time} steps, {ahead} looking ahead");
    }
}
