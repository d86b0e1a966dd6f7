//! Gradients against central differences in f64, on random shapes, for every differentiable operation.
//!
//! For random operands x, a random direction u and L = sum(weights * results), the slope (L(x + hu) - L(x - hu)) / 2h must
//! agree with the inner product of the gradient and u to 1e-6 of the size of either.

use manyhands_device::{CpuDevice, Device};
use manyhands_program::{
    AttentionSpec, Binary, Builder, DType, Op, Pooling, Program, ProgramError, RANDOM_CONTEXT,
    Reduction, Shape, Tensor, TensorType, Unary, Value, Window,
};

type Built = Result<Value, ProgramError>;

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn up_to(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// A size from 1 to `limit`.
    fn size(&mut self, limit: usize) -> usize {
        1 + self.up_to(limit)
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| self.size(5)).collect()
    }

    fn floats(&mut self, shape: &[usize], low: f64, high: f64) -> Tensor {
        let n = Shape::from(shape).n_elements();
        let values: Vec<f64> = (0..n).map(|_| self.between(low, high)).collect();
        Tensor::new(shape, &values).unwrap()
    }

    fn indices(&mut self, shape: &[usize], limit: usize) -> Tensor {
        let n = Shape::from(shape).n_elements();
        let values: Vec<i32> = (0..n).map(|_| self.up_to(limit) as i32).collect();
        Tensor::new(shape, &values).unwrap()
    }

    fn truths(&mut self, shape: &[usize]) -> Tensor {
        let n = Shape::from(shape).n_elements();
        let values: Vec<bool> = (0..n).map(|_| self.up_to(2) == 0).collect();
        Tensor::new(shape, &values).unwrap()
    }
}

/// A function to differentiate, by example: its operands, of which the floats are differentiated.
struct Case<'a> {
    operands: Vec<Tensor>,
    build: Box<dyn Fn(&Builder, &[Value]) -> Result<Vec<Value>, ProgramError> + 'a>,
}

fn case<'a>(operands: Vec<Tensor>, build: impl Fn(&Builder, &[Value]) -> Built + 'a) -> Case<'a> {
    Case { operands, build: Box::new(move |g, x| Ok(vec![build(g, x)?])) }
}

/// An operation on the operands as they are.
fn plain<'a>(operands: Vec<Tensor>, op: Op) -> Case<'a> {
    case(operands, move |g, x| g.apply(op.clone(), &x.iter().collect::<Vec<_>>()))
}

fn inputs(g: &Builder, operands: &[Tensor]) -> Vec<Value> {
    let named = operands.iter().enumerate();
    named.map(|(idx, x)| g.input(&format!("x{idx}"), x.ty().dtype, x.shape()).unwrap()).collect()
}

/// L of the results, with weights that differ from element to element.
fn weighted(g: &Builder, results: &[Value]) -> Built {
    let mut loss = g.scalar(DType::F64, 0.0)?;
    for result in results {
        let n = result.shape().n_elements();
        let count = g.iota(DType::F64, [n], 0)?.reshape(result.shape())?;
        let weights = ((count * 0.73)?.sin()? + 0.4)?;
        loss = (loss + (result * weights)?.sum_all()?)?;
    }
    Ok(loss)
}

/// The tensors in the order in which a program takes its inputs.
fn in_order(program: &Program, operands: &[Tensor]) -> Vec<Tensor> {
    let tensor = |name: &str| match name.strip_prefix('x') {
        Some(idx) => operands[idx.parse::<usize>().unwrap()].clone(),
        None => {
            assert_eq!(name, RANDOM_CONTEXT);
            Tensor::new([3], &[7i64, 1, 2]).unwrap()
        }
    };
    program.inputs().map(|(name, _)| tensor(name)).collect()
}

fn moved(x: &Tensor, direction: &Tensor, by: f64) -> Tensor {
    let sum =
        x.to_f64().iter().zip(direction.to_f64()).map(|(x, u)| x + by * u).collect::<Vec<_>>();
    Tensor::new(x.shape(), &sum).unwrap()
}

/// Checks the gradients of a case; `of_gradient` differentiates a sum of its gradients instead.
fn check(what: &str, seed: u64, case: &Case<'_>, of_gradient: bool) {
    let g = Builder::new("test");
    let x = inputs(&g, &case.operands);
    let floats: Vec<usize> =
        (0..x.len()).filter(|&idx| case.operands[idx].ty().dtype == DType::F64).collect();
    let wrt: Vec<&Value> = floats.iter().map(|&idx| &x[idx]).collect();
    let fail = |error: &dyn std::fmt::Display| -> ! { panic!("{what} (seed {seed}): {error}") };
    let results = (case.build)(&g, &x).unwrap_or_else(|error| fail(&error));
    let mut loss = weighted(&g, &results).unwrap();
    if of_gradient {
        let first = g.gradients(&loss, &wrt).unwrap_or_else(|error| fail(&error));
        loss = weighted(&g, &first).unwrap();
    }
    let gradients = g.gradients(&loss, &wrt).unwrap_or_else(|error| fail(&error));
    g.output("loss", &loss).unwrap();
    for (idx, gradient) in gradients.iter().enumerate() {
        assert_eq!(gradient.ty(), wrt[idx].ty(), "{what}");
        g.output(&format!("gradient{idx}"), gradient).unwrap();
    }
    let program = g.finish();
    let mut device = CpuDevice::new(1).unwrap();
    let executable = device.compile(&program).unwrap_or_else(|error| fail(&error));
    let mut run = |operands: &[Tensor]| {
        let given = in_order(&program, operands);
        let ran = device.evaluate_compiled(executable, &program, &given, &[]);
        ran.unwrap_or_else(|error| fail(&error)).outputs
    };
    let gradients = run(&case.operands);
    let mut random = Random(seed ^ 0x5555);
    for (output, &operand) in gradients[1..].iter().zip(&floats) {
        let x = &case.operands[operand];
        let direction = random.floats(x.shape(), -1.0, 1.0);
        let h = 1e-5;
        let mut along = |by: f64| {
            let mut operands = case.operands.clone();
            operands[operand] = moved(x, &direction, by);
            run(&operands)[0].to_f64()[0]
        };
        let slope = (along(h) - along(-h)) / (2.0 * h);
        let terms: Vec<f64> =
            output.to_f64().iter().zip(direction.to_f64()).map(|(g, u)| g * u).collect();
        let found: f64 = terms.iter().sum();
        let size = terms.iter().map(|t| t.abs()).sum::<f64>().max(slope.abs()).max(1.0);
        assert!(
            (found - slope).abs() <= 1e-6 * size,
            "{what} (seed {seed}), operand {operand} {}: gradient {found}, slope {slope}",
            x.ty()
        );
    }
}

/// Checks a family of cases for several seeds.
fn check_seeds(what: &str, make: impl Fn(&mut Random) -> Case<'static>) {
    for seed in 0..4 {
        check(what, seed, &make(&mut Random(seed.wrapping_mul(77) + 1)), false);
    }
}

#[test]
fn unary_operations() {
    for &unary in Unary::ALL.iter().filter(|unary| **unary != Unary::Not) {
        check_seeds(unary.name(), |r| {
            let above_zero = matches!(unary.name(), "log" | "sqrt" | "rsqrt" | "log1p");
            let low = if above_zero { 0.1 } else { -3.0 };
            let shape = r.shape(2);
            plain(vec![r.floats(&shape, low, 3.0)], Op::Unary(unary))
        });
    }
}

#[test]
fn binary_operations() {
    for &binary in Binary::ALL.iter().filter(|op| !matches!(op.name(), "and" | "or" | "xor")) {
        check_seeds(binary.name(), |r| {
            let low = if binary == Binary::Pow { 0.2 } else { -2.0 };
            let shape = r.shape(3);
            let a = r.floats(&shape, low, 2.0);
            let b = r.floats(&shape, 0.3, 2.0);
            plain(vec![a, b], Op::Binary(binary))
        });
    }
}

#[test]
fn stretching_and_selecting() {
    check_seeds("select", |r| {
        let shape = r.shape(2);
        let (yes, no) = (r.floats(&shape, -1.0, 1.0), r.floats(&shape, -1.0, 1.0));
        plain(vec![r.truths(&shape), yes, no], Op::Select)
    });
    check_seeds("stretched product", |r| {
        let (n, m) = (r.size(4), r.size(4));
        let operands = vec![r.floats(&[3, 1, m], -1.0, 1.0), r.floats(&[n, 1], -1.0, 1.0)];
        case(operands, |_, x| &x[0] * &x[1])
    });
    check_seeds("cast", |r| {
        // There and back through a shorter float: the slope is seen only through the sum with the operand itself.
        let operands = vec![r.floats(&[4], -1.0, 1.0)];
        case(operands, |_, x| x[0].cast(DType::F64)?.exp())
    });
    check_seeds("dropout", |r| {
        let shape = r.shape(2);
        case(vec![r.floats(&shape, -1.0, 1.0)], |_, x| x[0].dropout(0.3)?.tanh())
    });
}

#[test]
fn operations_that_move_elements() {
    check_seeds("reshape and transpose", |r| {
        let shape = r.shape(3);
        case(vec![r.floats(&shape, -1.0, 1.0)], move |_, x| {
            let turned = x[0].transpose(&[1, 2, 0])?;
            turned.reshape([shape.iter().product::<usize>()])?.sin()
        })
    });
    check_seeds("concatenate", |r| {
        let operands = (0..3).map(|_| {
            let n = r.size(4);
            r.floats(&[2, n, 3], -1.0, 1.0)
        });
        plain(operands.collect(), Op::Concatenate { axis: 1 })
    });
    check_seeds("slice", |r| {
        let start = vec![r.up_to(3), r.up_to(3)];
        let limit = vec![start[0] + r.up_to(6), start[1] + r.size(6)];
        let stride = vec![r.size(3), r.size(3)];
        plain(vec![r.floats(&[9, 9], -1.0, 1.0)], Op::Slice { start, limit, stride })
    });
    check_seeds("pad", |r| {
        let mut three = || (0..3).map(|_| r.up_to(3)).collect::<Vec<_>>();
        let op = Op::Pad { low: three(), high: three(), interior: three() };
        let shape = r.shape(3);
        plain(vec![r.floats(&shape, -1.0, 1.0), r.floats(&[], -1.0, 1.0)], op)
    });
    for axis in 0..3 {
        check_seeds("gather", |r| {
            let shape = r.shape(3);
            let indices = r.indices(&[2, 3], shape[axis]);
            plain(vec![r.floats(&shape, -1.0, 1.0), indices], Op::Gather { axis })
        });
        check_seeds("scatter_add", |r| {
            let shape = r.shape(3);
            let indices = r.indices(&[4], shape[axis]);
            let mut updates = shape.clone();
            updates[axis] = 4;
            let (base, updates) = (r.floats(&shape, -1.0, 1.0), r.floats(&updates, -1.0, 1.0));
            plain(vec![base, indices, updates], Op::ScatterAdd { axis })
        });
    }
}

#[test]
fn reductions() {
    for &kind in Reduction::ALL {
        for axes in [vec![0], vec![1, 2], vec![0, 2], vec![0, 1, 2]] {
            check_seeds(kind.name(), |r| {
                let shape = r.shape(3);
                plain(vec![r.floats(&shape, -2.0, 2.0)], Op::Reduce { kind, axes: axes.clone() })
            });
        }
    }
    check_seeds("block_square_sums", |r| {
        let n = 1000 + r.size(100);
        plain(vec![r.floats(&[n], -1.0, 1.0)], Op::BlockSquareSums)
    });
}

#[test]
fn products() {
    for (transpose_lhs, transpose_rhs) in
        [(false, false), (true, false), (false, true), (true, true)]
    {
        let turned = |yes: bool, a: usize, b: usize| if yes { [b, a] } else { [a, b] };
        for rank in 0..3 {
            check_seeds("matmul", |r| {
                let (m, k, n) = (r.size(5), r.size(5), r.size(5));
                let leading = r.shape(rank);
                let shape = |matrix: [usize; 2]| [leading.clone(), matrix.to_vec()].concat();
                let lhs = r.floats(&shape(turned(transpose_lhs, m, k)), -1.0, 1.0);
                let rhs = r.floats(&shape(turned(transpose_rhs, k, n)), -1.0, 1.0);
                plain(vec![lhs, rhs], Op::Matmul { transpose_lhs, transpose_rhs })
            });
        }
        if !transpose_lhs {
            check_seeds("matmul of many by one", |r| {
                let (m, k, n) = (r.size(5), r.size(5), r.size(5));
                let lhs = r.floats(&[2, 3, m, k], -1.0, 1.0);
                let rhs = r.floats(&turned(transpose_rhs, k, n), -1.0, 1.0);
                plain(vec![lhs, rhs], Op::Matmul { transpose_lhs, transpose_rhs })
            });
        }
    }
}

fn random_window(r: &mut Random, n: usize) -> Window {
    Window {
        stride: (0..n).map(|_| r.size(3)).collect(),
        padding: (0..n).map(|_| (r.up_to(3), r.up_to(3))).collect(),
        dilation: (0..n).map(|_| r.size(2)).collect(),
        groups: r.size(2),
    }
}

#[test]
fn convolutions_and_their_gradients() {
    for n in 1..=2 {
        for seed in 0..6 {
            let r = &mut Random(seed);
            let window = random_window(r, n);
            let (channels, features) = (r.size(3), r.size(3) * window.groups);
            let spatial: Vec<usize> = (0..n).map(|_| 5 + r.up_to(4)).collect();
            let taps: Vec<usize> = (0..n).map(|_| r.size(3)).collect();
            let x =
                r.floats(&[vec![2], spatial, vec![channels * window.groups]].concat(), -1.0, 1.0);
            let kernel = r.floats(&[taps, vec![channels, features]].concat(), -1.0, 1.0);
            let case = plain(vec![x, kernel], Op::Convolution(window));
            check("convolution", seed, &case, false);
            check("gradients of a convolution", seed, &case, true);
        }
    }
}

#[test]
fn pooling() {
    for n in 1..=2 {
        for seed in 0..6 {
            let r = &mut Random(seed + 100);
            let window: Vec<usize> = (0..n).map(|_| r.size(3)).collect();
            let pooling = Pooling {
                stride: (0..n).map(|_| r.size(3)).collect(),
                padding: window.iter().map(|&w| (r.up_to(w), r.up_to(w))).collect(),
                window,
                count_padding: r.up_to(2) == 0,
            };
            let spatial: Vec<usize> = (0..n).map(|_| 4 + r.up_to(4)).collect();
            let x = r.floats(&[vec![2], spatial, vec![3]].concat(), -1.0, 1.0);
            check("max_pool", seed, &plain(vec![x.clone()], Op::MaxPool(pooling.clone())), false);
            let average = plain(vec![x], Op::AveragePool(pooling));
            check("average_pool", seed, &average, false);
        }
    }
}

#[test]
fn operations_on_rows() {
    check_seeds("softmax", |r| {
        let shape = r.shape(3);
        plain(vec![r.floats(&shape, -2.0, 2.0)], Op::Softmax)
    });
    check_seeds("log_softmax", |r| {
        let shape = r.shape(2);
        plain(vec![r.floats(&shape, -2.0, 2.0)], Op::LogSoftmax)
    });
    check_seeds("cross_entropy", |r| {
        let classes = r.size(6);
        let labels = r.indices(&[2, 3], classes);
        plain(vec![r.floats(&[2, 3, classes], -2.0, 2.0), labels], Op::CrossEntropy)
    });
    check_seeds("layer_norm", |r| {
        let n = 2 + r.up_to(6);
        let operands = vec![
            r.floats(&[2, 3, n], -2.0, 2.0),
            r.floats(&[n], -1.0, 1.0),
            r.floats(&[n], -1.0, 1.0),
        ];
        case(operands, |_, x| x[0].layer_norm(&x[1], &x[2], 1e-2))
    });
    check_seeds("batch_norm", |r| {
        let n = r.size(4);
        let operands = vec![
            r.floats(&[3, 4, n], -2.0, 2.0),
            r.floats(&[n], -1.0, 1.0),
            r.floats(&[n], -1.0, 1.0),
        ];
        case(operands, |_, x| Ok(x[0].batch_norm(&x[1], &x[2], 1e-2)?[0].clone()))
    });
}

#[test]
fn attention() {
    for seed in 0..8 {
        let r = &mut Random(seed + 9);
        let (batch, queries, heads, depth) = (r.size(2), r.size(4), r.size(2), r.size(3));
        let keys = queries + r.up_to(3);
        let (causal, masked) = (seed % 2 == 1, seed % 4 >= 2);
        let spec = AttentionSpec { heads, causal, scale: 0.7, masked };
        let width = heads * depth;
        let mut operands = vec![r.floats(&[batch, queries, width], -1.0, 1.0)];
        operands.extend((0..2).map(|_| r.floats(&[batch, keys, width], -1.0, 1.0)));
        if masked {
            // Every query may look at the first key.
            let mask = r.truths(&[queries, keys]).elements::<bool>().unwrap();
            let mask = mask.iter().enumerate().map(|(idx, &may)| may || idx % keys == 0);
            operands.push(Tensor::new([queries, keys], &mask.collect::<Vec<_>>()).unwrap());
        }
        check("attention", seed, &plain(operands, Op::Attention(spec)), false);
    }
}

#[test]
fn second_derivatives_where_there_are_rules() {
    for seed in 0..3 {
        let r = &mut Random(seed + 40);
        for unary in
            [Unary::Tanh, Unary::Gelu, Unary::Silu, Unary::Rsqrt, Unary::Erf, Unary::Softplus]
        {
            let case = plain(vec![r.floats(&[4], 0.3, 2.0)], Op::Unary(unary));
            check(unary.name(), seed, &case, true);
        }
        let (a, b) = (r.floats(&[3, 4], -1.0, 1.0), r.floats(&[4, 2], -1.0, 1.0));
        check("matmul", seed, &case(vec![a, b], |_, x| x[0].matmul(&x[1])?.tanh()), true);
    }
}

/// Operands of a small recurrent layer: items `[length, batch, 3]`, state `[batch, 2]`, weights, bias.
fn layer_operands(r: &mut Random, length: usize, batch: usize) -> Vec<Tensor> {
    let shapes: [&[usize]; 5] = [&[length, batch, 3], &[batch, 2], &[3, 2], &[2, 2], &[2]];
    shapes.map(|shape| r.floats(shape, -1.0, 1.0)).to_vec()
}

fn cell(x: &[Value], state: &Value, item: &Value) -> Built {
    ((item.matmul(&x[2])? + state.matmul(&x[3])?)? + &x[4])?.tanh()
}

fn many(
    operands: Vec<Tensor>,
    build: impl Fn(&Builder, &[Value]) -> Result<Vec<Value>, ProgramError> + 'static,
) -> Case<'static> {
    Case { operands, build: Box::new(build) }
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

/// The loss and the gradients of a program agree whether the scan is run once or the loss is taken of another builder.
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
