//! Schedules of random shapes, and faults planted into them.

use proptest::prelude::*;

use super::*;

const KINDS: [Schedule; 4] =
    [Schedule::Gpipe, Schedule::OneFOneB, Schedule::Interleaved, Schedule::Asynchronous];

/// A kind with the chunks a stage that it can have.
fn shapes() -> impl Strategy<Value = (Schedule, usize, usize, usize)> {
    (0..4usize, 1..8usize, 1..5usize, 1..20usize).prop_map(
        |(kind, n_stages, per_stage, n_grains)| {
            let several = KINDS[kind] == Schedule::Interleaved || n_stages == 1;
            (KINDS[kind], n_stages, if several { per_stage } else { 1 }, n_grains)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_schedule_is_complete_and_never_stuck_and_keeps_what_it_may(
        (kind, n_stages, per_stage, n_grains) in shapes(),
        is_double in proptest::bool::ANY,
    ) {
        let stages = schedule(kind, n_stages, per_stage, n_grains).unwrap();
        let times = [1.0, if is_double { 2.0 } else { 1.0 }];
        let checked = check_schedule(&stages, per_stage, n_grains, times).unwrap();
        for (stage, &n_kept) in checked.n_kept.iter().enumerate() {
            let most = match kind {
                Schedule::Gpipe => n_grains * per_stage,
                _ if n_stages == 1 => per_stage,
                _ if per_stage == 1 => n_stages - stage,
                _ => 2 * (n_stages - stage - 1) + (per_stage - 1) * n_stages + 1,
            };
            prop_assert!(n_kept <= most, "stage {stage} keeps {n_kept} of {most}");
            if kind == Schedule::Gpipe {
                prop_assert_eq!(n_kept, most);
            }
        }
        let formula = bubble(kind, n_stages, per_stage, n_grains);
        if per_stage == 1 || n_stages == 1 || n_grains % n_stages == 0 {
            prop_assert!((checked.bubble - formula).abs() < 1e-9, "{} {formula}", checked.bubble);
        } else {
            prop_assert!(checked.bubble > formula - 1e-9, "{} {formula}", checked.bubble);
        }
    }

    #[test]
    fn a_slot_that_is_missing_or_out_of_place_is_found(
        (kind, n_stages, per_stage, n_grains) in shapes(),
        at in 0..1000usize,
        other in 0..1000usize,
    ) {
        let stages = schedule(kind, n_stages, per_stage, n_grains).unwrap();
        let stage = at % n_stages;
        let n_slots = stages[stage].len();
        let mut removed = stages.clone();
        removed[stage].remove(at % n_slots);
        prop_assert!(check_schedule(&removed, per_stage, n_grains, [1.0; 2]).is_err());
        let mut twice = stages.clone();
        let again = twice[stage][at % n_slots];
        twice[stage].insert(other % n_slots, again);
        prop_assert!(check_schedule(&twice, per_stage, n_grains, [1.0; 2]).is_err());
        // Two of one chunk and phase in the wrong order, or backward before its own forward.
        let mut swapped = stages;
        let (left, right) = (at % n_slots, other % n_slots);
        let [one, two] = [swapped[stage][left], swapped[stage][right]];
        let same = one.chunk == two.chunk && one.phase == two.phase && one.grain != two.grain;
        let pair = one.chunk == two.chunk && one.grain == two.grain && one.phase != two.phase;
        swapped[stage].swap(left, right);
        let checked = check_schedule(&swapped, per_stage, n_grains, [1.0; 2]);
        prop_assert!(checked.is_err() || !(same || pair));
    }
}

#[test]
fn one_forward_one_backward_is_what_it_is_called() {
    let stages = schedule(Schedule::OneFOneB, 2, 1, 3).unwrap();
    let show = |slots: &[Slot]| {
        let word = |slot: &Slot| {
            let phase = if slot.phase == Phase::Forward { "F" } else { "B" };
            format!("{phase}{}", slot.grain)
        };
        slots.iter().map(word).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(show(&stages[0]), "F0 F1 B0 F2 B1 B2");
    assert_eq!(show(&stages[1]), "F0 B0 F1 B1 F2 B2");
}

#[test]
fn several_chunks_a_stage_are_refused_where_the_schedule_has_no_place_for_them() {
    let refused = schedule(Schedule::OneFOneB, 2, 3, 4).unwrap_err();
    assert!(refused.to_string().contains("`interleaved`"), "{refused}");
    assert!(schedule(Schedule::Gpipe, 0, 1, 4).is_err());
}

#[test]
fn names_are_those_of_the_settings() {
    let names: Vec<String> =
        KINDS.iter().map(|kind| serde_json::to_string(kind).unwrap()).collect();
    assert_eq!(names, ["\"gpipe\"", "\"1f1b\"", "\"interleaved\"", "\"asynchronous\""]);
}
