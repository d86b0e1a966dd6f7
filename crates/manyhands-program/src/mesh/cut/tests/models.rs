//! Models to cut, each of so many samples a grain.

use crate::{
    Adam, Builder, Clip, DType, Init, Lamb, Op, Optimizer, Program, ProgramError, Role,
    RunningStatistics, Sgd, TensorType, Training, Value, Window,
};

type Made = Result<Program, ProgramError>;
type Built = Result<Value, ProgramError>;

fn sgd() -> Optimizer {
    Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() })
}

fn normal(g: &Builder, name: &str, shape: &[usize]) -> Built {
    g.weight(name, shape, Init::Normal(0.1))
}

fn finish(g: Builder, loss: &Value, optimizer: Optimizer, clip: Option<Clip>, n: usize) -> Made {
    let divisor = g.scalar(DType::F32, n as f64)?;
    Training { optimizer, clip }.add_step(&g, loss, &divisor)?;
    Ok(g.finish())
}

fn dense(g: &Builder, name: &str, x: &Value, n_out: usize) -> Built {
    let n_in = x.shape().last();
    g.scope(name, |g| {
        let w = normal(g, "w", &[n_in, n_out])?;
        let b = normal(g, "b", &[n_out])?;
        x.matmul(&w)? + &b
    })
}

/// Dense layers with relu, so many of them.
pub(super) fn mlp(n: usize, n_layers: usize, optimizer: Optimizer, clip: Option<Clip>) -> Made {
    let g = Builder::new("mlp");
    let x = g.input("x", DType::F32, [n, 8])?;
    let labels = g.input("labels", DType::I32, [n])?;
    let mut h = x;
    for layer in 0..n_layers {
        h = dense(&g, &format!("dense{layer}"), &h, 8)?.relu()?;
    }
    let logits = dense(&g, "head", &h, 3)?;
    g.output("best", &logits.argmax(1)?)?;
    let right = logits.argmax(1)?.equal(&labels)?.cast(DType::F32)?.sum_all()?.grain_sum()?;
    g.output("right", &right)?;
    let loss = logits.cross_entropy(&labels)?.sum_all()?;
    finish(g, &loss, optimizer, clip, n)
}

pub(super) fn plain_mlp(n: usize) -> Made {
    mlp(n, 3, sgd(), None)
}

pub(super) fn clipped_mlp(n: usize) -> Made {
    mlp(n, 3, Optimizer::Adam(Adam::default()), Some(Clip::GlobalNorm(1.0)))
}

pub(super) fn lamb_mlp(n: usize) -> Made {
    mlp(n, 3, Optimizer::Lamb(Lamb::default()), None)
}

/// Convolutions with batch norm and dropout, and a residual around two of them.
pub(super) fn cnn(n: usize) -> Made {
    let g = Builder::new("cnn");
    let x = g.input("x", DType::F32, [n, 6, 6, 2])?;
    let labels = g.input("labels", DType::I32, [n])?;
    let window = Window { padding: vec![(1, 1), (1, 1)], ..Window::valid(2) };
    let mut statistics = Vec::new();
    let mut block = |name: &str, x: &Value, channels: usize| -> Built {
        let kernel = normal(&g, &format!("{name}/kernel"), &[3, 3, x.shape().last(), channels])?;
        let [scale, bias] =
            ["scale", "bias"].map(|own| normal(&g, &format!("{name}/{own}"), &[channels]));
        let y = g.scope(name, |_| x.convolution(&kernel, window.clone()))?;
        let [y, mean, variance] = g.scope(name, |_| y.batch_norm(&scale?, &bias?, 1e-5))?;
        statistics.push((name.to_string(), mean, variance, channels));
        y.relu()
    };
    let a = block("first", &x, 4)?;
    let b = block("second", &a, 4)?.dropout(0.1)?;
    let c = (block("third", &b, 4)? + &a)?;
    let logits = dense(&g, "head", &c.reshape([n, 144])?, 3)?;
    let loss = logits.cross_entropy(&labels)?.sum_all()?;
    for (name, mean, variance, channels) in &statistics {
        let running = |own: &str| {
            let ty = TensorType::new(DType::F32, [*channels]);
            g.parameter(&format!("{name}/{own}"), ty, Role::Statistic, Init::Constant(0.0))
        };
        let running = [&running("running_mean")?, &running("running_variance")?];
        RunningStatistics::default().add_updates(&g, [mean, variance], running, n * 36)?;
    }
    finish(g, &loss, sgd(), None, n)
}

/// Transformer blocks behind an embedding that is the head's weight too.
pub(super) fn transformer(n: usize) -> Made {
    let g = Builder::new("transformer");
    let tokens = g.input("tokens", DType::I32, [n, 5])?;
    let next = g.input("next", DType::I32, [n, 5])?;
    let embedding = normal(&g, "embedding", &[11, 8])?;
    let mut h = g.scope("embedding", |_| embedding.gather(0, &tokens))?;
    for block in 0..2 {
        h = g.scope(&format!("block{block}"), |g| -> Built {
            let norm = |name: &str, x: &Value| -> Built {
                let scale = normal(g, &format!("{name}/scale"), &[8])?;
                x.layer_norm(&scale, &normal(g, &format!("{name}/bias"), &[8])?, 1e-5)
            };
            let project = |name: &str, x: &Value, [i, o]: [usize; 2]| -> Built {
                x.matmul(&normal(g, name, &[i, o])?)
            };
            let x = norm("norm1", &h)?;
            let [q, k, v] =
                [project("q", &x, [8, 8])?, project("k", &x, [8, 8])?, project("v", &x, [8, 8])?];
            let a = (&h + project("o", &q.attention(&k, &v, 2, true, None)?, [8, 8])?)?;
            let inner = project("up", &norm("norm2", &a)?, [8, 16])?.gelu()?.dropout(0.1)?;
            &a + project("down", &inner, [16, 8])?
        })?;
    }
    let logits = g.scope("head", |_| h.matmul_with(false, &embedding, true))?;
    let loss = logits.cross_entropy(&next)?.sum_all()?;
    finish(g, &loss, Optimizer::Adam(Adam::default()), Some(Clip::GlobalNorm(1.0)), n)
}

/// Two recurrent layers, each a scan, with tensor splits' sums in between.
pub(super) fn recurrent(n: usize) -> Made {
    let g = Builder::new("recurrent");
    let x = g.input("x", DType::F32, [4, n, 3])?;
    let y = g.input("y", DType::F32, [n, 1])?;
    let mut h = x;
    for layer in 0..2 {
        let w = normal(&g, &format!("cell{layer}/w"), &[h.shape().last(), 5])?;
        let u = normal(&g, &format!("cell{layer}/u"), &[5, 5])?;
        let zero = g.full(&TensorType::new(DType::F32, [n, 5]), 0.0)?;
        h = g.scope(&format!("cell{layer}"), |g| -> Built {
            let (_, mut stacked) = g.scan(&[&zero], &[&h], false, |inner, carried, items| {
                let next = inner.scope("gate", |_| -> Built {
                    (items[0].matmul(&w)? + carried[0].matmul(&u)?)?.tanh()
                })?;
                Ok((vec![next.clone()], vec![next]))
            })?;
            Ok(stacked.remove(0))
        })?;
    }
    let last = h.slice_axis(0, 3, 4)?.reshape([n, 5])?;
    let loss = dense(&g, "head", &last, 1)?.squared_error(&y)?.sum_all()?;
    finish(g, &loss, sgd(), Some(Clip::Value(1.0)), n)
}

/// A choice between two layers, with outputs of each grain.
pub(super) fn choosing(n: usize) -> Made {
    let g = Builder::new("choosing");
    let x = g.input("x", DType::F32, [n, 4])?;
    let h = dense(&g, "first", &x, 4)?.tanh()?;
    let [a, b] = [normal(&g, "a", &[4, 4])?, normal(&g, "b", &[4, 4])?];
    let condition = h.sum_all()?.greater(&g.scalar(DType::F32, 0.0)?)?;
    let chosen = g.scope("choice", |g| {
        g.cond(&condition, |_| Ok(vec![h.matmul(&a)?]), |_| Ok(vec![h.matmul(&b)?.relu()?]))
    })?;
    let y = dense(&g, "last", &chosen[0], 2)?;
    g.output("hidden", &h)?;
    g.output("y", &y)?;
    let loss = (&y * &y)?.sum_all()?;
    finish(g, &loss, sgd(), None, n)
}

/// Dense layers of which every result is a sum over tensor parts, and norms as well.
pub(super) fn in_parts(n: usize) -> Made {
    let g = Builder::new("parts");
    let mut h = g.input("x", DType::F32, [n, 8])?;
    let mut weights = Vec::new();
    for layer in 0..3 {
        let w = normal(&g, &format!("w{layer}"), &[8, 8])?;
        h =
            g.scope(&format!("layer{layer}"), |_| h.matmul(&w)?.apply_one(Op::AllReduce)?.relu())?;
        weights.push((w, h.clone()));
    }
    // Gradients as they would be, written out: what a sum over parts gives goes back through another one.
    let mut d = (&h * 2.0)?;
    let loss = (&h * &h)?.sum_all()?;
    let mut gradients = Vec::new();
    for (idx, (w, h)) in weights.iter().enumerate().rev() {
        d = h.greater(&g.scalar(DType::F32, 0.0)?.stretch(h.shape())?)?.select(&d, &(&d * 0.0)?)?;
        gradients.push((idx, h.matmul_with(true, &d, false)?.grain_sum()?));
        d = d.matmul_with(false, w, true)?.apply_one(Op::AllReduce)?;
    }
    let mut norm: Option<Value> = None;
    for (_, gradient) in &gradients {
        let own = g.apply(Op::BlockSquareSums, &[gradient])?.sum_all()?;
        norm = Some(match norm {
            Some(before) => (before + own)?,
            None => own,
        });
    }
    let norm = norm.map_or_else(|| g.scalar(DType::F32, 1.0), Ok)?.apply_one(Op::AllReduce)?;
    for (idx, gradient) in &gradients {
        let next = (&weights[*idx].0 - (gradient / &norm)?)?;
        g.update(&weights[*idx].0, &next)?;
    }
    g.output("loss", &loss.grain_sum()?)?;
    Ok(g.finish())
}

/// Applies an operation to this value alone.
trait ApplyOne {
    fn apply_one(&self, op: Op) -> Built;
}

impl ApplyOne for Value {
    fn apply_one(&self, op: Op) -> Built {
        self.builder().apply(op, &[self])
    }
}

/// Dense layers where each takes the results of two earlier ones, and some share their weight.
pub(super) fn stack(n: usize, draws: &[(usize, usize, bool)]) -> Made {
    let g = Builder::new("stack");
    let mut made = vec![g.input("x", DType::F32, [n, 4])?];
    let shared = normal(&g, "shared", &[4, 4])?;
    for (layer, &(left, right, is_shared)) in draws.iter().enumerate() {
        let (left, right) = (made[left % made.len()].clone(), made[right % made.len()].clone());
        let y = match is_shared {
            true => left.matmul(&shared)?,
            false => dense(&g, &format!("dense{layer}"), &left, 4)?.relu()?,
        };
        made.push((y + right)?);
    }
    let last = &made[made.len() - 1];
    let loss = (last * last)?.sum_all()?;
    finish(g, &loss, sgd(), Some(Clip::GlobalNorm(1.0)), n)
}
