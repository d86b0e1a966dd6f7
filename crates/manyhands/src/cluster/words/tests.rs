//! What driver and workers say to each other, changed by chance, and what is refused of it.

use manyhands_program::DType;

use super::super::outer::LocalRule;
use super::*;

#[path = "../../../../../fuzz/bodies/mutations.rs"]
mod mutations;

fn programs() -> Programs {
    let text = r#"
program test {
  %0 = input {name: "x"} : f32[8, 4]
  %1 = parameter {name: "w", role: weight, init: normal(0.5)} : f32[4, 3]
  %2 = matmul %0, %1 : f32[8, 3]
  output y = %2
}
"#;
    let program: Program = text.trim_start().parse().unwrap();
    Programs {
        plans: vec![PlanPrograms {
            n_samples: 20,
            n_grains: 3,
            program,
            last: None,
            indices: None,
            last_indices: None,
        }],
        inputs: vec![("x".to_string(), 16)],
        places: Vec::new(),
        grain: 8,
        local: Some(LocalRule { every: 4, outer: None, last_step: 100 }),
        offer: None,
        overlap: Overlap::Auto,
        threads: Some(2),
        table: None,
        is_meshed: false,
    }
}

fn head() -> TensorHead {
    let ty = TensorType::new(DType::F32, [2, 3]);
    TensorHead { name: "w".to_string(), role: Role::Weight, ty }
}

fn said(message: &impl Serialize, beside: &[u8]) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(message).unwrap();
    bytes.push(b'\n');
    bytes.extend_from_slice(beside);
    bytes
}

#[test]
fn changed_words_are_errors_and_no_panics() {
    let loss = Loss::new(3, Some(0.5));
    let inputs = StepInputs { n_samples: 20, rate: 0.1, seed: 7 };
    let state = FromDriver::State { steps: 4, tensors: vec![head()] };
    let seeds = [
        said(&FromWorker::Want { step: 3, grains: vec![0..2, 4..5], reads: true }, b""),
        said(&FromWorker::Done { loss, work: Work::default() }, b""),
        said(&FromWorker::State { steps: 4, tensors: vec![head()], losses: vec![loss] }, &[1; 24]),
        said(&FromDriver::Programs(Box::new(programs())), b""),
        said(&FromWorker::CannotRead { reason: "there is no train.csv".to_string() }, b""),
        said(
            &FromDriver::Inputs { step: 3, grains: vec![0..2, 3..4], inputs, reads: false },
            &[0; 64],
        ),
        said(&state, &[1; 24]),
        said(&FromDriver::GiveState { steps: 4 }, b""),
    ];
    for number in 0..20_000 {
        read_words(&mutations::mutated(&seeds, &mut mutations::Chance::new(number)));
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence() {
    assert_eq!(programs().check(), Ok(()));
    let refused = |change: fn(&mut Programs)| {
        let mut changed = programs();
        change(&mut changed);
        changed.check().unwrap_err()
    };
    assert_eq!(refused(|programs| programs.grain = 0), "a grain of no samples");
    assert_eq!(
        refused(|programs| programs.plans[0].n_grains = 2),
        "20 samples are not 2 grains of 8"
    );
    assert_eq!(
        refused(|programs| programs.inputs[0].1 = usize::MAX),
        format!("the bytes of x in a grain: {} is more than {MAX_INPUT}", usize::MAX)
    );
    let want = |step, grains| FromWorker::Want { step, grains, reads: false }.check();
    assert_eq!(want(3, vec![0..2, 4..5]), Ok(()));
    assert_eq!(want(u64::MAX, Vec::new()), Err(format!("there is no step {}", u64::MAX)));
    assert_eq!(want(0, Vec::new()), Err("steps are counted from 1".to_string()));
    for grains in [vec![0..2, 1..3], vec![0..1, 3..3], vec![0..1, 2..MAX_GRAINS + 1]] {
        assert!(want(1, grains).is_err());
    }
    let mut work = Work::default();
    work.seconds.compute = f64::NAN;
    assert!(FromWorker::Done { loss: Loss::new(1, None), work }.check().is_err());
}
