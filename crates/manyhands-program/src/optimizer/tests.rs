//! Optimizers on one parameter, against their formulas written out in doubles.

use std::collections::HashMap;

use super::*;
use crate::passes::interpreter::run;
use crate::{DType, Init, Program, Tensor};

/// A program that updates one parameter of three elements from an input.
fn program(optimizer: Optimizer) -> Program {
    let g = Builder::new("t");
    let w = g.scope("layer", |g| g.weight("w", [3], Init::Constant(0.0))).unwrap();
    let gradient = g.input("g", DType::F32, [3]).unwrap();
    let rate = g.input("rate", DType::F32, []).unwrap();
    let step = g.input("step", DType::F32, []).unwrap();
    optimizer.update(&g, &w, &gradient, &rate, &step).unwrap();
    g.finish()
}

/// The weight after some steps with the rate of the optimizer.
fn trained(optimizer: Optimizer, weight: [f32; 3], gradients: &[[f32; 3]]) -> Vec<f64> {
    let program = program(optimizer);
    let mut state: HashMap<String, Tensor> = HashMap::new();
    for (name, _, id) in program.parameters() {
        state.insert(name.to_string(), Tensor::filled(program.ty(id).clone(), 0.0).unwrap());
    }
    state.insert("layer/w".into(), Tensor::new([3], &weight).unwrap());
    state.insert("rate".into(), Tensor::scalar(DType::F32, optimizer.rate()));
    for (idx, gradient) in gradients.iter().enumerate() {
        state.insert("g".into(), Tensor::new([3], gradient).unwrap());
        state.insert("step".into(), Tensor::scalar(DType::F32, idx as f64 + 1.0));
        for (name, tensor) in run(&program, &state) {
            let name = name.trim_start_matches("parameter \"").trim_end_matches('"').to_string();
            state.insert(name, tensor);
        }
    }
    state["layer/w"].to_f64()
}

const GRADIENTS: [[f32; 3]; 3] = [[0.5, -1.0, 2.0], [0.25, 0.0, -1.0], [-0.5, 3.0, 0.125]];
const WEIGHT: [f32; 3] = [1.0, -2.0, 0.5];

/// Asserts that an optimizer follows a rule: the new weight from weight, gradient, step and state.
fn follows(optimizer: Optimizer, rule: impl Fn(f64, f64, f64, &mut [f64; 3]) -> f64) {
    let found = trained(optimizer, WEIGHT, &GRADIENTS);
    for (element, found) in found.iter().enumerate() {
        let (mut weight, mut state) = (f64::from(WEIGHT[element]), [0.0; 3]);
        for (idx, gradient) in GRADIENTS.iter().enumerate() {
            weight = rule(weight, f64::from(gradient[element]), idx as f64 + 1.0, &mut state);
        }
        assert!((found - weight).abs() < 2e-6 * weight.abs().max(1.0), "{found} is not {weight}");
    }
}

#[test]
fn plain_descent_takes_the_rate_times_the_gradient() {
    follows(Optimizer::Sgd(Sgd { rate: 0.1, ..Sgd::default() }), |w, g, _, _| w - 0.1 * g);
}

#[test]
fn momentum_and_nesterov_follow_pytorch() {
    let own = Sgd { rate: 0.1, momentum: 0.9, weight_decay: 0.01, nesterov: false };
    follows(Optimizer::Sgd(own), |w, g, _, s| {
        s[0] = 0.9 * s[0] + (g + 0.01 * w);
        w - 0.1 * s[0]
    });
    follows(Optimizer::Sgd(Sgd { nesterov: true, ..own }), |w, g, _, s| {
        let g = g + 0.01 * w;
        s[0] = 0.9 * s[0] + g;
        w - 0.1 * (g + 0.9 * s[0])
    });
}

#[test]
fn adagrad_divides_by_the_root_of_all_squares() {
    let own = Adagrad { rate: 0.1, rate_decay: 0.5, ..Adagrad::default() };
    follows(Optimizer::Adagrad(own), |w, g, t, s| {
        s[0] += g * g;
        w - 0.1 / (1.0 + (t - 1.0) * 0.5) * g / (s[0].sqrt() + 1e-10)
    });
}

#[test]
fn rms_prop_centres_and_keeps_momentum() {
    let own = RmsProp { rate: 0.01, centered: true, momentum: 0.5, ..RmsProp::default() };
    follows(Optimizer::RmsProp(own), |w, g, _, s| {
        s[0] = 0.99 * s[0] + 0.01 * g * g;
        s[1] += 0.01 * (g - s[1]);
        s[2] = 0.5 * s[2] + g / ((s[0] - s[1] * s[1]).sqrt() + 1e-8);
        w - 0.01 * s[2]
    });
}

fn adam_step(g: f64, t: f64, s: &mut [f64; 3]) -> f64 {
    s[0] += 0.1 * (g - s[0]);
    s[1] = 0.999 * s[1] + 0.001 * g * g;
    let root = (s[1] / (1.0 - 0.999f64.powf(t))).sqrt();
    s[0] / (1.0 - 0.9f64.powf(t)) / (root + 1e-8)
}

#[test]
fn adam_and_adam_w_differ_in_how_weights_decay() {
    let own = Adam { rate: 0.1, weight_decay: 0.1, ..Adam::default() };
    follows(Optimizer::Adam(own), |w, g, t, s| w - 0.1 * adam_step(g + 0.1 * w, t, s));
    let own = AdamW { rate: 0.1, weight_decay: 0.1, ..AdamW::default() };
    follows(Optimizer::AdamW(own), |w, g, t, s| w * (1.0 - 0.1 * 0.1) - 0.1 * adam_step(g, t, s));
}

#[test]
fn lamb_steps_as_far_as_the_weight_is_long() {
    let own = Lamb { rate: 0.1, weight_decay: 0.0, ..Lamb::default() };
    let found = trained(Optimizer::Lamb(own), WEIGHT, &GRADIENTS[..1]);
    let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let before = WEIGHT.map(f64::from);
    let moved: Vec<f64> = found.iter().zip(before).map(|(after, before)| after - before).collect();
    assert!((norm(&moved) - 0.1 * norm(&before)).abs() < 1e-6, "{moved:?}");
    // From zeros the step is taken as it is: its elements are about 1 long at first.
    let found = trained(Optimizer::Lamb(own), [0.0; 3], &GRADIENTS[..1]);
    assert!(found.iter().all(|w| (w.abs() - 0.1).abs() < 1e-5), "{found:?}");
}

#[test]
fn ftrl_follows_the_papers_algorithm_from_zero_and_from_any_weight() {
    let own = Ftrl { rate: 0.5, beta: 1.0, l1: 0.3, l2: 0.1 };
    // Algorithm 1 of McMahan et al. 2013; s is n, z, and whether z was set.
    let rule = |w: f64, g: f64, _: f64, s: &mut [f64; 3]| {
        if s[2] == 0.0 {
            s[1] = -w * (1.0 / 0.5 + 0.1) - 0.3 * if w == 0.0 { 0.0 } else { w.signum() };
            s[2] = f64::from(g != 0.0);
        }
        let sigma = ((s[0] + g * g).sqrt() - s[0].sqrt()) / 0.5;
        s[1] += g - sigma * w;
        s[0] += g * g;
        match s[1].abs() <= 0.3 {
            true => 0.0,
            false => -(s[1] - 0.3 * s[1].signum()) / ((1.0 + s[0].sqrt()) / 0.5 + 0.1),
        }
    };
    follows(Optimizer::Ftrl(own), rule);
    let found = trained(Optimizer::Ftrl(own), [0.0; 3], &GRADIENTS);
    for (element, found) in found.iter().enumerate() {
        let (mut w, mut state) = (0.0, [0.0; 3]);
        for gradient in GRADIENTS {
            w = rule(w, f64::from(gradient[element]), 0.0, &mut state);
        }
        assert!((found - w).abs() < 2e-6, "{found} is not {w}");
    }
    // What does not outweigh l1 is exactly zero, and a weight without a gradient stays.
    let still = trained(Optimizer::Ftrl(own), [0.0, 1.0, 0.0], &[[0.2, 0.0, -0.3]]);
    assert_eq!((still[0], still[2]), (0.0, 0.0));
    assert!((still[1] - 1.0).abs() < 1e-6, "{still:?}");
    assert!(Optimizer::Ftrl(Ftrl { rate: 0.0, ..own }).check().is_err());
}

#[test]
fn state_is_named_after_its_parameter() {
    let names = |optimizer| -> Vec<String> {
        program(optimizer).parameters().map(|(name, ..)| name.to_string()).collect()
    };
    let momentum = Sgd { momentum: 0.9, ..Sgd::default() };
    assert_eq!(names(Optimizer::Sgd(momentum)), ["layer/w", "layer/w/momentum"]);
    let adam = names(Optimizer::Adam(Adam::default()));
    assert_eq!(adam, ["layer/w", "layer/w/mean", "layer/w/mean_square"]);
}

#[test]
fn settings_read_as_users_write_them_and_nonsense_is_refused() {
    let read = |text: &str| serde_json::from_str::<Optimizer>(text);
    let adam = read(r#"{"adam": {"rate": 0.01}}"#).unwrap();
    assert_eq!(adam, Optimizer::Adam(Adam { rate: 0.01, ..Adam::default() }));
    assert!(read(r#"{"adamw": {}}"#).is_ok() && read(r#"{"rmsprop": {}}"#).is_ok());
    assert!(read(r#"{"adam": {"ratte": 0.01}}"#).is_err());
    let refused = |optimizer: Optimizer| optimizer.check().unwrap_err().to_string();
    assert_eq!(
        refused(Optimizer::Adam(Adam { beta1: 1.0, ..Adam::default() })),
        "beta1 must be at least 0 and below 1, not 1"
    );
    assert!(refused(Optimizer::Sgd(Sgd { nesterov: true, ..Sgd::default() })).contains("momentum"));
    assert!(refused(Optimizer::Sgd(Sgd { rate: f64::NAN, ..Sgd::default() })).contains("NaN"));
    assert!(Clip::GlobalNorm(0.0).check().is_err());
}

#[test]
fn only_parameters_are_updated() {
    let g = Builder::new("t");
    let x = g.input("x", DType::F32, [3]).unwrap();
    let rate = g.input("rate", DType::F32, []).unwrap();
    let error = Optimizer::Sgd(Sgd::default()).update(&g, &x, &x, &rate, &rate).unwrap_err();
    assert_eq!(error.to_string(), "input \"x\" is not a parameter, so it cannot be updated");
}

/// Two gradients after clipping.
fn clipped(clip: Clip, scale: f64) -> Vec<Vec<f64>> {
    let g = Builder::new("t");
    let a = g.input("a", DType::F32, [2]).unwrap();
    let b = g.input("b", DType::F32, []).unwrap();
    for (idx, value) in clip.apply(&[a, b]).unwrap().iter().enumerate() {
        g.output(&idx.to_string(), value).unwrap();
    }
    let tensor = |ty: &[usize], values: &[f32]| Tensor::new(ty, values).unwrap();
    let s = scale as f32;
    let arguments = HashMap::from([
        ("a".to_string(), tensor(&[2], &[2.0 * s, -6.0 * s])),
        ("b".to_string(), tensor(&[], &[3.0 * s])),
    ]);
    run(&g.finish(), &arguments).into_iter().map(|(_, tensor)| tensor.to_f64()).collect()
}

#[test]
fn clipping_cuts_values_or_scales_all_gradients_together() {
    assert_eq!(clipped(Clip::Value(2.5), 1.0), [vec![2.0, -2.5], vec![2.5]]);
    // The norm of 2, -6 and 3 is 7.
    let scaled = clipped(Clip::GlobalNorm(3.5), 1.0).concat();
    let expected = [1.0, -3.0, 1.5];
    assert!(scaled.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{scaled:?}");
    assert_eq!(clipped(Clip::GlobalNorm(3.5), 0.25).concat(), [0.5, -1.5, 0.75]);
}
