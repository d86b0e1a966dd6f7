//! The gradients of scans and conds, alone and in each other, against central differences.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

mod finite_differences;

use finite_differences::{Built, Random, case, check, check_seeds, many};
use manyhands_program::{Binary, Builder, DType, Op, Tensor, TensorType, Unary, Value};

/// Operands of a small recurrent layer: items `[length, batch, 3]`, state `[batch, 2]`, weights, bias.
fn layer_operands(r: &mut Random, length: usize, batch: usize) -> Vec<Tensor> {
    let shapes: [&[usize]; 5] = [&[length, batch, 3], &[batch, 2], &[3, 2], &[2, 2], &[2]];
    shapes.map(|shape| r.floats(shape, -1.0, 1.0)).to_vec()
}

fn cell(x: &[Value], state: &Value, item: &Value) -> Built {
    ((item.matmul(&x[2])? + state.matmul(&x[3])?)? + &x[4])?.tanh()
}

#[test]
fn scans_forward_and_reverse() {
    for reverse in [false, true] {
        for length in [1, 4] {
            check_seeds("recurrent layer", |r| {
                many(layer_operands(r, length, 2), move |g, x| {
                    let (last, stacked) =
                        g.scan(&[&x[1]], &[&x[0]], reverse, |_, carried, items| {
                            let next = cell(x, &carried[0], &items[0])?;
                            let shown = (&next * &carried[0])?;
                            Ok((vec![next], vec![shown]))
                        })?;
                    Ok(last.into_iter().chain(stacked).collect())
                })
            });
        }
    }
}

#[test]
fn scans_over_sequences_of_different_lengths() {
    for reverse in [false, true] {
        check_seeds("lengths", |r| {
            let mut operands = layer_operands(r, 5, 3);
            operands.push(Tensor::new([3], &[5i32, 0, 2]).unwrap());
            many(operands, move |g, x| {
                let body = |_: &Builder, carried: &[Value], items: &[Value]| {
                    let next = cell(x, &carried[0], &items[0])?;
                    Ok((vec![next.clone()], vec![next.exp()?]))
                };
                let (last, stacked) = g.scan_lengths(&x[5], &[&x[1]], &[&x[0]], reverse, body)?;
                Ok(last.into_iter().chain(stacked).collect())
            })
        });
    }
}

/// A captured weight that is used several ways: in products on both sides, elementwise, transposed, and outside too.
#[test]
fn scans_that_use_a_captured_value_often() {
    check_seeds("captured", |r| {
        let operands = vec![r.floats(&[3, 2, 2], -1.0, 1.0), r.floats(&[2, 2], -1.0, 1.0)];
        many(operands, |g, x| {
            let w = &x[1];
            let (last, _) = g.scan(&[w], &[&x[0]], false, |_, carried, items| {
                let left = w.matmul(&items[0])?;
                let right = carried[0].matmul_with(true, w, true)?;
                let product = w.matmul(w)?;
                let next = (((left + right)?.sin()? * w)? + (product * &items[0])?)?;
                Ok((vec![next], vec![]))
            })?;
            Ok(vec![(&last[0] + w)?])
        })
    });
}

#[test]
fn scans_with_counters_and_values_that_do_not_matter() {
    check_seeds("odd carried values", |r| {
        let operands = vec![r.floats(&[4, 3], -1.0, 1.0), r.floats(&[3], -1.0, 1.0)];
        many(operands, |g, x| {
            let count = g.scalar(DType::I32, 0.0)?;
            let zeros = g.full(&TensorType::new(DType::F64, [3]), 0.0)?;
            let carried = [&count, &x[1], &zeros, &zeros];
            let (last, stacked) = g.scan(&carried, &[&x[0]], false, |g, carried, items| {
                let one = g.scalar(DType::I32, 1.0)?;
                let count = (&carried[0] + &one)?;
                let scale = count.cast(DType::F64)?;
                let next = (carried[1].sin()? * (&items[0] * scale)?)?;
                // The third only ever takes from the item; nothing reads the fourth after it was written.
                let unread = items[0].floor()?;
                Ok((
                    vec![count, next.clone(), items[0].exp()?, unread],
                    vec![next, items[0].clone()],
                ))
            })?;
            Ok(vec![last[1].clone(), last[2].clone(), stacked[0].clone(), stacked[1].clone()])
        })
    });
}

#[test]
fn scans_with_dropout_draw_the_same_numbers_backward() {
    check_seeds("dropout in a scan", |r| {
        many(layer_operands(r, 4, 3), |g, x| {
            let (last, _) = g.scan(&[&x[1]], &[&x[0]], false, |_, carried, items| {
                let kept = cell(x, &carried[0], &items[0])?.dropout(0.4)?;
                Ok((vec![(kept + &carried[0])?], vec![]))
            })?;
            Ok(last)
        })
    });
}

#[test]
fn scans_in_scans() {
    for (outer_reverse, inner_reverse) in [(false, false), (true, false), (false, true)] {
        check_seeds("nested scan", |r| {
            many(layer_operands(r, 3, 2), move |g, x| {
                let (last, stacked) =
                    g.scan(&[&x[1]], &[&x[0]], outer_reverse, |g, carried, items| {
                        let (last, all) =
                            g.scan(&[&carried[0]], &[&x[0]], inner_reverse, |_, inner, own| {
                                let next =
                                    cell(x, &inner[0], &(&own[0] * &items[0])?)?.dropout(0.2)?;
                                Ok((vec![next.clone()], vec![(next * &carried[0])?]))
                            })?;
                        Ok((last, vec![all[0].sum(&[0])?]))
                    })?;
                Ok(last.into_iter().chain(stacked).collect())
            })
        });
    }
}

/// `x * w` through cond, or `sin(x)`; built inside the bodies.
fn either(g: &Builder, condition: &Value, x: &Value, w: &Value) -> Built {
    let chosen = g.cond(
        condition,
        |g| Ok(vec![g.apply(Op::Binary(Binary::Mul), &[x, w])?]),
        |g| Ok(vec![g.apply(Op::Unary(Unary::Sin), &[x])?]),
    )?;
    Ok(chosen[0].clone())
}

#[test]
fn conds_alone_and_in_scans() {
    for truth in [false, true] {
        check_seeds("cond", |r| {
            let condition = Tensor::scalar(DType::Bool, f64::from(u8::from(truth)));
            let operands = vec![r.floats(&[3], -1.0, 1.0), r.floats(&[3], -1.0, 1.0), condition];
            case(operands, |g, x| either(g, &x[2], &x[0], &x[1]))
        });
    }
    check_seeds("cond in a scan", |r| {
        let operands =
            vec![r.floats(&[5, 3], -1.0, 1.0), r.floats(&[3], -1.0, 1.0), r.truths(&[5])];
        many(operands, |g, x| {
            let carried = [&x[1]];
            let (last, stacked) =
                g.scan(&carried, &[&x[0], &x[2]], false, |g, carried, items| {
                    let state = (&carried[0] + &items[0])?;
                    let next = either(g, &items[1], &state, &x[1])?;
                    Ok((vec![next.clone()], vec![next.exp()?]))
                })?;
            Ok(last.into_iter().chain(stacked).collect())
        })
    });
}

#[test]
fn scans_in_conds() {
    for truth in [false, true] {
        check_seeds("scan in a cond", |r| {
            let mut operands = layer_operands(r, 3, 2);
            operands.push(Tensor::scalar(DType::Bool, f64::from(u8::from(truth))));
            many(operands, |g, x| {
                g.cond(
                    &x[5],
                    |g| {
                        let (last, _) = g.scan(&[&x[1]], &[&x[0]], true, |_, carried, items| {
                            Ok((vec![cell(x, &carried[0], &items[0])?], vec![]))
                        })?;
                        Ok(last)
                    },
                    |g| Ok(vec![g.apply(Op::Unary(Unary::Exp), &[&x[1]])?]),
                )
            })
        });
    }
}

#[test]
fn gradients_of_gradients_through_a_scan() {
    for seed in 0..3 {
        let r = &mut Random(seed + 60);
        let operands = layer_operands(r, 3, 2);
        let case = many(operands, |g, x| {
            let (last, _) = g.scan(&[&x[1]], &[&x[0]], false, |_, carried, items| {
                Ok((vec![cell(x, &carried[0], &items[0])?], vec![]))
            })?;
            Ok(last)
        });
        check("second derivative of a scan", seed, &case, true);
    }
}

/// Gradients that went through a scan once go through it again, for another loss and with respect to more.
#[test]
fn two_losses_through_one_scan() {
    for seed in 0..3 {
        let r = &mut Random(seed + 80);
        let case = many(layer_operands(r, 3, 2), |g, x| {
            let (last, stacked) = g.scan(&[&x[1]], &[&x[0]], false, |_, carried, items| {
                let next = cell(x, &carried[0], &items[0])?;
                Ok((vec![next.clone()], vec![next]))
            })?;
            // The slope of the first loss takes part in the results, and those are differentiated again.
            let slope = g.gradients(&stacked[0].sum_all()?, &[&x[2]])?;
            Ok(vec![last[0].clone(), slope[0].clone()])
        });
        check("two losses", seed, &case, false);
    }
}
