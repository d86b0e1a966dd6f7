//! The gradient of every differentiable operation against central differences, on random shapes.

#![allow(clippy::unwrap_used)] // a panic is how a test says that it cannot go on

mod finite_differences;

use finite_differences::{Random, case, check, check_seeds, plain};
use manyhands_program::{AttentionSpec, Binary, Op, Pooling, Reduction, Tensor, Unary, Window};

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
    check_seeds("slices side by side", |r| {
        case(vec![r.floats(&[2, 6], -1.0, 1.0)], |_, x| {
            let parts = x[0].split(1, 3)?;
            (&parts[0] * &parts[1])? + parts[2].exp()?
        })
    });
    check_seeds("slices side by side along one axis, with gaps along another", |r| {
        case(vec![r.floats(&[7, 4], -1.0, 1.0)], |_, x| {
            let left = x[0].slice(&[0, 0], &[7, 2], &[3, 1])?;
            let right = x[0].slice(&[0, 2], &[7, 4], &[3, 1])?;
            left * right
        })
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
