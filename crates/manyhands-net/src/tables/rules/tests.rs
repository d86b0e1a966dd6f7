//! The bits of every rule against scalar code that follows the formulas word by word, and settings that are refused.

use proptest::prelude::*;

use super::*;

const AT: At = At { table: 1, shard: 0, first: 0, step: 3, rate: 0.1, share: 1.0, divisor: 1.0 };

fn made(spec: &RuleSpec) -> Box<dyn Rule> {
    Rules::with_built_in().make(spec).unwrap()
}

/// What a rule makes of pushes to one run: values, and slots by kind.
fn applied(spec: &RuleSpec, at: At, start: &[f32], pushes: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut rule = made(spec);
    let mut values = start.to_vec();
    let mut slots = vec![vec![0.0; start.len()]; rule.n_slots()];
    for update in pushes {
        let mut slots: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        rule.apply(at, &mut values, &mut slots, update).unwrap();
    }
    slots.insert(0, values);
    slots
}

/// The same, one value at a time.
fn expected(
    start: &[f32],
    pushes: &[Vec<f32>],
    n_slots: usize,
    step: impl Fn(&mut [f32], f32),
) -> Vec<Vec<f32>> {
    let mut out = vec![vec![0.0; start.len()]; 1 + n_slots];
    for (idx, start) in start.iter().enumerate() {
        let mut state = vec![0.0; 1 + n_slots];
        state[0] = *start;
        pushes.iter().for_each(|update| step(&mut state, update[idx]));
        out.iter_mut().zip(state).for_each(|(out, state)| out[idx] = state);
    }
    out
}

fn bits(runs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    runs.iter().map(|run| run.iter().map(|value| value.to_bits()).collect()).collect()
}

fn runs() -> impl Strategy<Value = (Vec<f32>, Vec<Vec<f32>>, f32)> {
    (1usize..40, 1usize..6).prop_flat_map(|(n, n_pushes)| {
        let run = || proptest::collection::vec(prop_oneof![Just(0.0f32), -10.0f32..10.0], n);
        let share = prop_oneof![Just(1.0f32), 0.01f32..1.0];
        (run(), proptest::collection::vec(run(), n_pushes), share)
    })
}

proptest! {
    #[test]
    fn adagrad_has_the_bits_of_its_formula((start, pushes, share) in runs()) {
        let at = At { share, ..AT };
        let spec = RuleSpec::Adagrad { epsilon: 1e-8, initial: 0.1 };
        let wanted = expected(&start, &pushes, 1, |state, update| {
            let g = share * update;
            state[1] += g * g;
            state[0] -= 0.1f32 * g / ((state[1] + 0.1f32).sqrt() + 1e-8f32);
        });
        prop_assert_eq!(bits(&applied(&spec, at, &start, &pushes)), bits(&wanted));
    }

    #[test]
    fn ftrl_has_the_bits_of_its_formula((_, pushes, share) in runs()) {
        let at = At { share, ..AT };
        let (alpha, beta, l1, l2) = (0.05f32, 1.0f32, 0.7f32, 0.01f32);
        let start = vec![0.0; pushes[0].len()];
        let wanted = expected(&start, &pushes, 2, |state, update| {
            let [w, n, z] = [state[0], state[1], state[2]];
            let g = share * update;
            let sigma = ((n + g * g).sqrt() - n.sqrt()) / alpha;
            let z = z + (g - sigma * w);
            let n = n + g * g;
            let sign = if z > 0.0 { 1.0 } else { -1.0 };
            let w = match z.abs() <= l1 {
                true => 0.0,
                false => -(z - sign * l1) / ((beta + n.sqrt()) / alpha + l2),
            };
            state.copy_from_slice(&[w, n, z]);
        });
        let spec = RuleSpec::Ftrl { alpha, beta, l1, l2 };
        prop_assert_eq!(bits(&applied(&spec, at, &start, &pushes)), bits(&wanted));
    }

    #[test]
    fn sgd_has_the_bits_of_its_formula((start, pushes, share) in runs()) {
        let at = At { share, ..AT };
        let plain = RuleSpec::Sgd { momentum: 0.0, decay: 0.01 };
        let wanted = expected(&start, &pushes, 0, |state, update| {
            state[0] -= 0.1f32 * (share * (update + 0.01f32 * state[0]));
        });
        prop_assert_eq!(bits(&applied(&plain, at, &start, &pushes)), bits(&wanted));
        let heavy = RuleSpec::Sgd { momentum: 0.9, decay: 0.0 };
        let wanted = expected(&start, &pushes, 1, |state, update| {
            state[1] = 0.9f32 * state[1] + share * (update + 0.0 * state[0]);
            state[0] -= 0.1f32 * state[1];
        });
        prop_assert_eq!(bits(&applied(&heavy, at, &start, &pushes)), bits(&wanted));
    }

    #[test]
    fn a_rule_does_the_same_whole_and_in_parts((start, pushes, share) in runs(), cut in 0usize..40) {
        let at = At { share, ..AT };
        let cut = cut.min(start.len());
        let part = |range: std::ops::Range<usize>, spec: &RuleSpec| {
            let pushes: Vec<_> = pushes.iter().map(|push| push[range.clone()].to_vec()).collect();
            applied(spec, at, &start[range], &pushes)
        };
        for spec in all() {
            let (left, right) = (part(0..cut, &spec), part(cut..start.len(), &spec));
            let joined: Vec<_> = left.into_iter().zip(right).map(|(a, b)| [a, b].concat()).collect();
            prop_assert_eq!(bits(&applied(&spec, at, &start, &pushes)), bits(&joined));
        }
    }
}

fn all() -> Vec<RuleSpec> {
    vec![
        RuleSpec::Add,
        RuleSpec::Assign,
        RuleSpec::Sgd { momentum: 0.0, decay: 0.0 },
        RuleSpec::Sgd { momentum: 0.9, decay: 0.1 },
        RuleSpec::Adagrad { epsilon: 1e-10, initial: 0.0 },
        RuleSpec::Ftrl { alpha: 0.1, beta: 1.0, l1: 1.0, l2: 1.0 },
    ]
}

#[test]
fn add_adds_the_share_and_assign_takes_the_place() {
    let at = At { share: 0.5, ..AT };
    assert_eq!(applied(&RuleSpec::Add, at, &[1.0, 2.0], &[vec![2.0, -4.0]]), [[2.0, 0.0]]);
    assert_eq!(applied(&RuleSpec::Assign, at, &[1.0, 2.0], &[vec![2.0, -4.0]]), [[2.0, -4.0]]);
}

#[test]
fn ftrl_holds_values_at_zero_that_gradients_do_not_move_beyond_l1() {
    let spec = RuleSpec::Ftrl { alpha: 1.0, beta: 1.0, l1: 1.0, l2: 0.0 };
    let values = &applied(&spec, AT, &[0.0; 3], &[vec![0.4, 3.0, -3.0], vec![0.4, 3.0, -3.0]])[0];
    assert_eq!(values[0], 0.0);
    assert!(values[1] < 0.0 && values[2] == -values[1], "{values:?}");
}

#[test]
fn ftrl_starts_where_an_initialiser_put_a_value() {
    let spec = RuleSpec::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.5, l2: 0.1 };
    let start = [0.3, -0.2];
    let values = &applied(&spec, AT, &start, &[vec![1e-6, -1e-6]])[0];
    for (value, start) in values.iter().zip(start) {
        assert!((value - start).abs() < 1e-5, "{value} is far from {start}");
    }
}

#[test]
fn a_setting_out_of_range_is_named() {
    let refused = |spec| Rules::with_built_in().make(&spec).err().unwrap().to_string();
    let sentence = refused(RuleSpec::Ftrl { alpha: 0.0, beta: 1.0, l1: 0.0, l2: 0.0 });
    assert_eq!(sentence, "the rule ftrl cannot have alpha = 0: it must be above 0 and finite");
    let sentence = refused(RuleSpec::Sgd { momentum: f32::NAN, decay: 0.0 });
    assert!(sentence.contains("momentum = NaN: it must be at least 0 and below 1"), "{sentence}");
    let sentence = refused(RuleSpec::Adagrad { epsilon: 1e-8, initial: f32::INFINITY });
    assert!(sentence.contains("initial = inf"), "{sentence}");
}

#[test]
fn a_rule_that_nobody_added_is_named_with_those_that_there_are() {
    let rules = Rules::with_built_in().add("mine", |_| built_in::make(&RuleSpec::Add));
    let own = |name: &str| RuleSpec::Own { name: name.into(), settings: serde_json::Value::Null };
    assert!(rules.make(&own("mine")).is_ok());
    let sentence = rules.make(&own("hers")).err().unwrap().to_string();
    assert_eq!(sentence, r#"no rule is named "hers" here; those that were added: ["mine"]"#);
}

#[test]
fn rules_are_settings_with_defaults() {
    let check = |text: &str, wanted: RuleSpec| {
        assert_eq!(serde_json::from_str::<RuleSpec>(text).unwrap(), wanted);
        let again = serde_json::to_string(&wanted).unwrap();
        assert_eq!(serde_json::from_str::<RuleSpec>(&again).unwrap(), wanted);
    };
    check(r#""add""#, RuleSpec::Add);
    check(r#"{"sgd": {}}"#, RuleSpec::Sgd { momentum: 0.0, decay: 0.0 });
    let ftrl = RuleSpec::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 };
    check(r#"{"ftrl": {"alpha": 0.1}}"#, ftrl);
    assert!(serde_json::from_str::<RuleSpec>(r#"{"ftrl": {"alpha": 0.1, "l3": 1}}"#).is_err());
}

#[test]
fn a_store_with_other_slots_is_refused_before_anything_changes() {
    let mut values = [1.0];
    let error = made(&RuleSpec::Adagrad { epsilon: 1e-8, initial: 0.0 })
        .apply(AT, &mut values, &mut [], &[1.0])
        .unwrap_err();
    assert!(error.to_string().contains("needs 1 slots"), "{error}");
    assert_eq!(values, [1.0]);
}
