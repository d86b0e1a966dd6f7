//! The tree, whoever walks it, and programs cut in two.

// A list with one range in it is meant as such.
#![allow(clippy::single_range_in_vec_init)]

use std::collections::BTreeSet;

use super::*;
use crate::{Builder, DType, Value};

/// The tree over a range as text: `((0 1) 2)`.
fn tree(range: Range<usize>) -> String {
    if range.len() == 1 {
        return range.start.to_string();
    }
    let middle = split_point(&range);
    format!("({} {})", tree(range.start..middle), tree(middle..range.end))
}

#[test]
fn the_schedule_adds_along_the_tree_for_every_number_of_grains() {
    for n_grains in 1..=200usize {
        let mut slots: Vec<Option<String>> = vec![None; n_grains.ilog2() as usize + 2];
        let mut next = 0;
        let mut used = BTreeSet::new();
        for action in tree_schedule(n_grains) {
            match action {
                GrainAction::Write { grain, slot } => {
                    assert_eq!(grain, next, "in grain order");
                    next += 1;
                    assert_eq!(slots[slot].replace(grain.to_string()), None, "nothing is lost");
                    used.insert(slot);
                }
                GrainAction::Accumulate { grain, slot } => {
                    assert_eq!(grain, next, "in grain order");
                    next += 1;
                    let left = slots[slot].take().unwrap();
                    slots[slot] = Some(format!("({left} {grain})"));
                }
                GrainAction::Merge { into, from } => {
                    let (left, right) = (slots[into].take().unwrap(), slots[from].take().unwrap());
                    slots[into] = Some(format!("({left} {right})"));
                }
            }
        }
        assert_eq!(slots[0].as_deref(), Some(tree(0..n_grains).as_str()));
        assert!(slots[1..].iter().all(Option::is_none));
        assert!(used.len() <= n_grains.ilog2() as usize + 1, "{n_grains}: {used:?}");
    }
    assert!(tree_schedule(0).is_empty());
}

#[test]
fn maximal_subtrees_cover_a_range_and_nothing_else() {
    assert_eq!(maximal_subtrees(0..8, 8), vec![0..8]);
    assert_eq!(maximal_subtrees(1..8, 8), [1..2, 2..4, 4..8]);
    assert_eq!(maximal_subtrees(4..7, 7), vec![4..7]);
    assert_eq!(maximal_subtrees(3..6, 7), [3..4, 4..6]);
    for n_grains in 1..40 {
        for start in 0..n_grains {
            for end in start..=n_grains {
                let subtrees = maximal_subtrees(start..end, n_grains);
                let covered: Vec<usize> = subtrees.iter().cloned().flatten().collect();
                assert_eq!(covered, (start..end).collect::<Vec<_>>());
                let whole = tree(0..n_grains);
                assert!(subtrees.iter().all(|subtree| whole.contains(&tree(subtree.clone()))));
            }
        }
    }
}

#[test]
fn ranges_that_touch_share_subtrees() {
    assert_eq!(maximal_subtrees_of(&[1..2, 0..1], 4), [0..2]);
    assert_eq!(maximal_subtrees_of(&[5..6, 0..3, 2..2], 8), [0..2, 2..3, 5..6]);
    assert_eq!(maximal_subtrees_of(&[0..3, 1..4], 4), [0..4]);
    assert_eq!(maximal_subtrees_of(&[], 4), Vec::<Range<usize>>::new());
}

/// A linear model trained by plain gradient descent, with the prediction as a per-grain output.
fn training() -> (Builder, Value, Value) {
    let g = Builder::new("linear");
    let x = g.input("x", DType::F32, [4, 3]).unwrap();
    let rate = g.input("rate", DType::F32, []).unwrap();
    let w = g.weight("w", [3, 1], Init::Constant(0.5)).unwrap();
    let y = x.matmul(&w).unwrap();
    let gradient = x.matmul_with(true, &y, false).unwrap().grain_sum().unwrap();
    let loss = (&y * &y).unwrap().sum_all().unwrap().grain_sum().unwrap();
    let next = (&w - (&gradient * &rate).unwrap()).unwrap();
    g.update(&w, &next).unwrap();
    g.output("prediction", &y).unwrap();
    g.output("loss", &loss).unwrap();
    (g, y, gradient)
}

fn names<'a>(named: impl Iterator<Item = (&'a str, ValueId)>) -> Vec<&'a str> {
    named.map(|(name, _)| name).collect()
}

fn output_names(program: &Program) -> Vec<&str> {
    program.outputs().iter().map(|output| output.name.as_str()).collect()
}

#[test]
fn a_training_program_is_cut_at_its_sums() {
    let (g, ..) = training();
    let split = split_grains(&g.finish()).unwrap();
    assert_eq!(split.n_sums, 2);
    assert_eq!(names(split.grain.inputs()), ["x"]);
    assert_eq!(output_names(&split.grain), ["grain_sum#0", "grain_sum#1", "prediction"]);
    assert!(split.grain.updates().is_empty());
    assert_eq!(names(split.step.inputs()), ["rate", "grain_sum#0", "grain_sum#1"]);
    assert_eq!(output_names(&split.step), ["loss"]);
    assert_eq!(split.step.updates().len(), 1);
    assert_eq!(split.step.parameters().map(|(name, ..)| name).collect::<Vec<_>>(), ["w"]);
}

#[test]
fn the_accumulating_half_adds_on_the_right_of_its_parameters() {
    let (g, ..) = training();
    let grain = split_grains(&g.finish()).unwrap().grain;
    let accumulating = accumulating(&grain).unwrap();
    assert_eq!(output_names(&accumulating), ["prediction"]);
    assert_eq!(accumulating.updates().len(), 2);
    for update in accumulating.updates() {
        let sum = accumulating.definer(update.value);
        assert_eq!(sum.op, Op::Binary(Binary::Add));
        assert_eq!(sum.operands[0], update.parameter);
    }
    let dense = crate::passes::fuse_dense(&accumulating).unwrap();
    let is_accumulation =
        |op: &Op| matches!(op, Op::Dense { add: Some(crate::Addend::Matrix), .. });
    assert!(dense.nodes().iter().any(|node| is_accumulation(&node.op)));
}

#[test]
fn merging_adds_the_right_sums_to_the_left() {
    let (g, ..) = training();
    let grain = split_grains(&g.finish()).unwrap().grain;
    let merging = merging(&grain).unwrap();
    assert_eq!(names(merging.inputs()), ["right/grain_sum#0", "right/grain_sum#1"]);
    assert_eq!(merging.updates().len(), 2);
}

#[test]
fn an_update_from_one_grain_alone_is_refused() {
    let (g, y, _) = training();
    let slot = g.parameter("y", y.ty(), Role::Slot, Init::Constant(0.0)).unwrap();
    g.update(&slot, &y).unwrap();
    let error = split_grains(&g.finish()).unwrap_err().to_string();
    assert!(error.contains("differs from grain to grain"), "{error}");
}

#[test]
fn a_grain_value_beside_a_sum_is_refused() {
    let (g, y, gradient) = training();
    g.output("mixed", &(gradient.sum_all().unwrap() + y).unwrap()).unwrap();
    let error = split_grains(&g.finish()).unwrap_err();
    assert!(matches!(error, ProgramError::GrainValueInStep { .. }), "{error}");
}

#[test]
fn a_sum_that_goes_back_into_grains_is_refused() {
    let (g, y, gradient) = training();
    let again = (&gradient.sum_all().unwrap() + &y).unwrap().grain_sum().unwrap();
    g.output("again", &again).unwrap();
    let error = split_grains(&g.finish()).unwrap_err().to_string();
    assert!(error.contains("known once a step and cannot feed `add`"), "{error}");
}
