//! Costs that can be counted by hand.

use super::*;
use crate::{Builder, DType, Init, Pooling, Window};

fn total(build: impl FnOnce(&Builder) -> crate::Value) -> Cost {
    let g = Builder::new("test");
    let y = build(&g);
    g.output("y", &y).unwrap();
    Cost::of(&g.finish())
}

#[test]
fn a_product_counts_two_per_multiply_add() {
    let cost = total(|g| {
        let x = g.input("x", DType::F32, [128, 784]).unwrap();
        x.matmul(&g.weight("w", [784, 512], Init::Normal(0.1)).unwrap()).unwrap()
    });
    assert_eq!(cost.operations, 2 * 128 * 784 * 512);
    assert_eq!(cost.read, 4 * (128 * 784 + 784 * 512));
    assert_eq!(cost.written, 4 * 128 * 512);
}

#[test]
fn a_convolution_counts_its_taps_per_group() {
    let conv = |groups: usize| {
        total(|g| {
            let x = g.input("x", DType::F32, [2, 28, 28, 32]).unwrap();
            let kernel = g.weight("k", [3, 3, 32 / groups, 64], Init::Normal(0.1)).unwrap();
            x.convolution(&kernel, Window { groups, ..Window::valid(2) }).unwrap()
        })
    };
    assert_eq!(conv(1).operations, 2 * (2 * 26 * 26 * 64) * (3 * 3 * 32));
    assert_eq!(conv(4).operations, conv(1).operations / 4);
}

#[test]
fn a_causal_attention_costs_about_half() {
    let attention = |causal: bool| {
        total(|g| {
            let x = g.input("x", DType::F32, [8, 128, 256]).unwrap();
            x.attention(&x, &x, 4, causal, None).unwrap()
        })
    };
    assert_eq!(attention(false).operations, 8 * 128 * 128 * (4 * 256 + 4 * 12));
    assert_eq!(attention(true).operations, 8 * (128 * 129 / 2) * (4 * 256 + 4 * 12));
}

#[test]
fn a_scan_costs_its_body_times_its_length() {
    let cost = total(|g| {
        let x = g.input("x", DType::F32, [10, 4, 8]).unwrap();
        let start = g.input("h", DType::F32, [4, 8]).unwrap();
        let w = g.weight("w", [8, 8], Init::Normal(0.1)).unwrap();
        let (last, _) = g
            .scan(&[&start], &[&x], false, |_, h, x| {
                let next = (h[0].matmul(&w)? + &x[0])?;
                Ok((vec![next], vec![]))
            })
            .unwrap();
        last[0].clone()
    });
    assert_eq!(cost.operations, 10 * (2 * 4 * 8 * 8 + 4 * 8));
}

#[test]
fn a_pooling_reads_its_windows() {
    let cost = total(|g| {
        let x = g.input("x", DType::F32, [1, 4, 4, 3]).unwrap();
        x.max_pool(Pooling::tiles(&[2, 2])).unwrap()
    });
    assert_eq!(cost.operations, 2 * 2 * 3 * 4);
}

#[test]
fn memory_lives_from_its_making_to_its_last_use() {
    let g = Builder::new("test");
    let x = g.input("x", DType::F32, [1000]).unwrap();
    // Each sum reads its operand for the last time, so two values of 1000 are never alive beside each other...
    let a = x.exp().unwrap();
    let b = a.log().unwrap();
    let c = b.sum_all().unwrap();
    g.output("c", &c).unwrap();
    let memory = g.inspect(live_memory);
    assert_eq!((memory.arguments, memory.peak), (4000, 4004));
    // ... until something later needs the first one again.
    let d = (&a * &c).unwrap();
    g.output("d", &d).unwrap();
    assert_eq!(g.inspect(live_memory).peak, 8004);
}

#[test]
fn an_update_overwrites_its_parameter_where_nobody_reads_it_later() {
    let build = |reads_later: bool| {
        let g = Builder::new("test");
        let w = g.weight("w", [100], Init::Constant(0.0)).unwrap();
        let next = (&w * 0.5).unwrap();
        g.update(&w, &next).unwrap();
        if reads_later {
            g.output("old", &w.sum_all().unwrap()).unwrap();
        }
        live_memory(&g.finish()).peak
    };
    // The spread factor is a value too, before fusion. Where the old weight is read later, the new one takes its place,
    // and the sum lies beside it.
    assert_eq!(build(false), 400);
    assert_eq!(build(true), 404);
}

#[test]
fn a_scan_needs_the_memory_of_its_body_once() {
    let g = Builder::new("test");
    let x = g.input("x", DType::F32, [10, 100]).unwrap();
    let start = g.input("h", DType::F32, [100]).unwrap();
    let (last, _) = g
        .scan(&[&start], &[&x], false, |_, h, x| Ok((vec![(&h[0] + &x[0])?.tanh()?], vec![])))
        .unwrap();
    g.output("last", &last[0]).unwrap();
    assert_eq!(live_memory(&g.finish()).peak, 400 + 400);
}
