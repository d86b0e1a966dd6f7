//! Programs of every kind of operation, from numbers that a test draws.

use crate::{
    Addend, AttentionSpec, Binary, Builder, Comparison, DType, Distribution, Expression, Init, Op,
    Pooling, Program, ProgramError, Reduction, Role, Spread, Tensor, TensorType, Term, Unary,
    Value, Window,
};

type Made = Result<(), ProgramError>;

/// Adds some operations to a program.
type Action = fn(&mut Maker, &Builder) -> Made;

/// One action per operation or family of operations; those with bodies come last.
const ACTIONS: &[Action] = &[
    parameter,
    constant,
    iota,
    random,
    unary,
    binary,
    compare,
    select,
    cast,
    layout,
    pad,
    gather,
    rows,
    matmul,
    dense,
    convolution,
    pool,
    reduce,
    softmax,
    losses,
    layer_norm,
    batch_norm,
    attention,
    grain_sum,
    all_reduce,
    fused,
    scan,
    cond,
];

/// A program built from the given numbers; the same ones give the same program.
pub(super) fn random_program(draws: Vec<u32>) -> Program {
    let mut maker = Maker { draws, next: 0, pool: Vec::new(), n_names: 0, depth: 0 };
    let g = Builder::new(maker.name());
    while maker.next < maker.draws.len() {
        let action = maker.one_of(ACTIONS);
        // A combination that does not fit is no program, so it is left out.
        let _ = if maker.below(3) == 0 {
            let scope = maker.name();
            g.scope(&scope, |g| action(&mut maker, g))
        } else {
            action(&mut maker, &g)
        };
    }
    maker.finish(&g);
    g.finish()
}

/// A program with every operation in it.
pub(super) fn every_operation() -> Program {
    let mut maker = Maker { draws: vec![], next: 0, pool: Vec::new(), n_names: 0, depth: 0 };
    let g = Builder::new("every operation");
    for action in ACTIONS {
        g.scope("part", |g| action(&mut maker, g)).unwrap();
    }
    let x = g.input("f", DType::F32, [2]).unwrap();
    let c = g.input("c", DType::Bool, [2]).unwrap();
    for &unary in Unary::ALL {
        g.apply(Op::Unary(unary), &[if unary == Unary::Not { &c } else { &x }]).unwrap();
    }
    for &binary in Binary::ALL {
        let on_truths = matches!(binary, Binary::And | Binary::Or | Binary::Xor);
        let operand = if on_truths { &c } else { &x };
        g.apply(Op::Binary(binary), &[operand, operand]).unwrap();
    }
    for &comparison in Comparison::ALL {
        g.apply(Op::Compare(comparison), &[&x, &x]).unwrap();
    }
    maker.finish(&g);
    g.finish()
}

/// Builds from draws; without draws left, every choice is the first.
struct Maker {
    draws: Vec<u32>,
    next: usize,
    pool: Vec<Value>,
    n_names: usize,
    depth: usize,
}

impl Maker {
    fn draw(&mut self) -> u32 {
        self.next += 1;
        self.draws.get(self.next - 1).copied().unwrap_or(0)
    }

    fn below(&mut self, n: usize) -> usize {
        self.draw() as usize % n
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A name that no other value has.
    fn name(&mut self) -> String {
        let odd =
            ["a", "", "layer0/w", "\"quoted\\", "two\nlines\t", "größe 🦀", "\u{1}\u{2028}", "0"];
        self.n_names += 1;
        format!("{}{}", self.one_of(&odd), self.n_names)
    }

    fn number(&mut self) -> f64 {
        let (high, low) = (self.draw(), self.draw());
        let drawn = f64::from_bits(u64::from(high) << 32 | u64::from(low));
        let drawn = if drawn.is_finite() { drawn } else { 1.0 / 3.0 };
        let odd = [1e-5, 0.0, -0.0, 0.1, 5e-324, f64::MAX, -1e21, 123_456_789.0, drawn];
        self.one_of(&odd)
    }

    fn keep(&mut self, values: impl IntoIterator<Item = Value>) -> Made {
        self.pool.extend(values);
        Ok(())
    }

    /// A value of a type: one that is there, or a new input.
    fn of(&mut self, g: &Builder, ty: &TensorType) -> Result<Value, ProgramError> {
        let known: Vec<&Value> = self.pool.iter().filter(|value| value.ty() == *ty).collect();
        if let Some(last) = known.len().checked_sub(1) {
            let value = known[last].clone();
            if self.below(4) != 3 {
                return Ok(value);
            }
        }
        // An input of a body stands for an operand, so only the outermost program takes new ones.
        let value = if self.depth == 0 {
            let name = self.name();
            g.input(&name, ty.dtype, &ty.shape)?
        } else {
            g.full(ty, 0.0)?
        };
        self.pool.push(value.clone());
        Ok(value)
    }

    fn float(&mut self, g: &Builder, shape: &[usize]) -> Result<Value, ProgramError> {
        self.of(g, &TensorType::new(DType::F32, shape))
    }

    /// Any value, f32 if none is there.
    fn any(&mut self, g: &Builder) -> Result<Value, ProgramError> {
        match self.pool.len() {
            0 => self.float(g, &[2, 3]),
            n => {
                let idx = self.below(n);
                Ok(self.pool[idx].clone())
            }
        }
    }

    /// Names some values as results and updates some parameters.
    fn finish(&mut self, g: &Builder) {
        for value in std::mem::take(&mut self.pool) {
            let is_parameter =
                g.inspect(|program| matches!(program.definer(value.id()).op, Op::Parameter { .. }));
            if is_parameter {
                g.update(&value, &value).unwrap();
            } else if self.flag() {
                let name = self.name();
                g.output(&name, &value).unwrap();
            }
        }
    }
}

fn parameter(m: &mut Maker, g: &Builder) -> Made {
    let (name, number) = (m.name(), m.number());
    let init = m.one_of(&[Init::Constant(number), Init::Uniform(number), Init::Normal(number)]);
    let role = m.one_of(&[Role::Weight, Role::Statistic, Role::Slot]);
    let ty = TensorType::new(m.one_of(&DType::ALL), [2, 3]);
    let value = g.parameter(&name, ty, role, init)?;
    m.keep([value])
}

fn constant(m: &mut Maker, g: &Builder) -> Made {
    let dtype = m.one_of(&DType::ALL);
    let shape = m.one_of(&[&[] as &[usize], &[3], &[2, 2], &[0, 2], &[70]]);
    let ty = TensorType::new(dtype, shape);
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.1, 7.0];
    let tensor = match m.below(3) {
        0 => Tensor::filled(ty, m.one_of(&odd)).unwrap(),
        1 => {
            let elements = (0..ty.shape.n_elements()).map(|_| m.one_of(&odd));
            let one = |value| Tensor::scalar(dtype, value).bytes().to_vec();
            let bytes = elements.flat_map(one).collect();
            Tensor::from_bytes(ty, bytes)?
        }
        _ => {
            let limit = if dtype == DType::Bool { 2 } else { 256 };
            let bytes = (0..ty.n_bytes()).map(|_| m.below(limit) as u8).collect();
            Tensor::from_bytes(ty, bytes)?
        }
    };
    let value = g.constant(tensor)?;
    m.keep([value])
}

fn iota(m: &mut Maker, g: &Builder) -> Made {
    let dtype = m.one_of(&DType::ALL[..7]);
    let value = g.iota(dtype, [2, 3], m.below(2))?;
    m.keep([value])
}

fn random(m: &mut Maker, g: &Builder) -> Made {
    let distribution = m.one_of(&[Distribution::Uniform, Distribution::Normal]);
    let drawn = g.random(distribution, [2, 3])?;
    let rate = m.number().abs().min(0.999_999);
    m.keep([drawn.dropout(rate)?, drawn])
}

fn unary(m: &mut Maker, g: &Builder) -> Made {
    let (op, x) = (m.one_of(Unary::ALL), m.any(g)?);
    m.keep([x.unary(op)?])
}

fn binary(m: &mut Maker, g: &Builder) -> Made {
    let (op, x) = (m.one_of(Binary::ALL), m.any(g)?);
    let y = m.of(g, &x.ty())?;
    m.keep([g.apply(Op::Binary(op), &[&x, &y])?])
}

fn compare(m: &mut Maker, g: &Builder) -> Made {
    let (op, x) = (m.one_of(Comparison::ALL), m.any(g)?);
    let y = m.of(g, &x.ty())?;
    m.keep([g.apply(Op::Compare(op), &[&x, &y])?])
}

fn select(m: &mut Maker, g: &Builder) -> Made {
    let x = m.any(g)?;
    let y = m.of(g, &x.ty())?;
    let condition = m.of(g, &TensorType::new(DType::Bool, x.shape()))?;
    m.keep([condition.select(&x, &y)?])
}

fn cast(m: &mut Maker, g: &Builder) -> Made {
    let x = m.any(g)?;
    let dtype = m.one_of(&DType::ALL);
    m.keep([g.apply(Op::Cast { dtype }, &[&x])?])
}

fn layout(m: &mut Maker, g: &Builder) -> Made {
    let x = m.float(g, &[2, 3])?;
    let wide = x.broadcast([2, m.below(5), 3], &[0, 2])?;
    let flat = x.reshape([m.one_of(&[1, 2, 3, 6]), 6])?.reshape([3, 2]);
    let flat = flat.or_else(|_| x.reshape([6]))?;
    let turned = x.transpose(&[1, 0])?;
    let joined = g.concatenate(m.below(2), &[&x, &x])?;
    let part = x.slice(&[0, m.below(3)], &[2, 3], &[1, 1 + m.below(3)])?;
    m.keep([wide, flat, turned, joined, part])
}

fn pad(m: &mut Maker, g: &Builder) -> Made {
    let (x, value) = (m.float(g, &[2, 3])?, m.float(g, &[])?);
    let mut pair = || [m.below(3), m.below(3)];
    let (low, high, interior) = (pair(), pair(), pair());
    m.keep([x.pad(&value, &low, &high, &interior)?])
}

fn gather(m: &mut Maker, g: &Builder) -> Made {
    let dtype = m.one_of(&[DType::I32, DType::I64]);
    let (x, indices) = (m.float(g, &[2, 3])?, m.of(g, &TensorType::new(dtype, [4, 1]))?);
    let axis = m.below(2);
    let slices = x.gather(axis, &indices)?;
    m.keep([x.scatter_add(axis, &indices, &slices)?, slices])
}

fn rows(m: &mut Maker, g: &Builder) -> Made {
    let (table, random) = (m.float(g, &[4, 3])?, m.of(g, &TensorType::new(DType::I64, [3]))?);
    let table = table.cast(DType::F32)?;
    let indices = m.of(g, &TensorType::new(DType::I32, [2]))?;
    let taken = table.take_rows(&indices)?;
    let put = Op::PutGrain { n_grains: 2 };
    let (codes, values) =
        (g.apply(put.clone(), &[&random, &indices])?, g.apply(put.clone(), &[&random, &taken])?);
    let values = g.apply(put, &[&random, &taken, &values])?;
    let merged = g.apply_all(Op::MergeRows { most: 3 }, &[&codes, &values])?;
    let next = g.apply(Op::PutRows, &[&table, &merged[0], &merged[1]])?;
    m.keep([taken, next])
}

fn matmul(m: &mut Maker, g: &Builder) -> Made {
    let (x, w) = (m.float(g, &[2, 3])?, m.float(g, &[3, 2])?);
    let product = match m.below(3) {
        0 => x.matmul(&w)?,
        1 => x.matmul_with(false, &x, true)?,
        _ => x.matmul_with(true, &x, false)?,
    };
    m.keep([product])
}

fn dense(m: &mut Maker, g: &Builder) -> Made {
    let (x, w) = (m.float(g, &[2, 3])?, m.float(g, &[3, 2])?);
    let (bias, matrix) = (m.float(g, &[2])?, m.float(g, &[2, 2])?);
    let activation = m.one_of(&[None, Some(Unary::Relu), Some(Unary::Gelu)]);
    let add = m.one_of(&[None, Some(Addend::Bias), Some(Addend::Matrix)]);
    let mut operands = vec![&x, &w];
    match add {
        Some(Addend::Bias) => operands.push(&bias),
        Some(Addend::Matrix) => operands.push(&matrix),
        None => {}
    }
    let op = Op::Dense { transpose_lhs: false, transpose_rhs: false, add, activation };
    m.keep([g.apply(op, &operands)?])
}

fn convolution(m: &mut Maker, g: &Builder) -> Made {
    let n = 1 + m.below(2);
    let window = Window {
        stride: vec![1 + m.below(2); n],
        padding: vec![(m.below(3), m.below(3)); n],
        dilation: vec![1 + m.below(2); n],
        groups: 1 + m.below(2),
    };
    let sizes =
        |first: &[usize], each: usize, last: &[usize]| [first, &vec![each; n], last].concat();
    let x = m.float(g, &sizes(&[2], 7, &[4]))?;
    let kernel = m.float(g, &sizes(&[], 3, &[4 / window.groups, 6]))?;
    let y = x.convolution(&kernel, window.clone())?;
    let dx = Op::ConvolutionInputGrad { window: window.clone(), input: vec![7; n] };
    let dx = g.apply(dx, &[&y, &kernel])?;
    let dk = Op::ConvolutionKernelGrad { window: window.clone(), kernel: vec![3; n] };
    let dk = g.apply(dk, &[&x, &y])?;
    // What passes make of them is f32 alone.
    let x = g.full(&TensorType::new(DType::F32, x.shape()), 1.0)?;
    let kernel = g.full(&TensorType::new(DType::F32, kernel.shape()), 1.0)?;
    let bias = g.full(&TensorType::new(DType::F32, [6]), 1.0)?;
    let activation = m.flag().then_some(Unary::Relu);
    let fused = Op::BiasedConvolution { window: window.clone(), activation };
    let fused = g.apply(fused, &[&x, &kernel, &bias])?;
    let op = Op::ConvolutionInputGrad { window, input: vec![7; n] };
    let gated = g.apply(Op::Gated { op: Box::new(op) }, &[&fused, &kernel, &x])?;
    m.keep([dk, dx, y, fused, gated])
}

fn pool(m: &mut Maker, g: &Builder) -> Made {
    let x = m.float(g, &[2, 7, 7, 4])?;
    let pooling = Pooling {
        window: vec![2 + m.below(2); 2],
        stride: vec![1 + m.below(3); 2],
        padding: vec![(m.below(2), m.below(2)); 2],
        count_padding: m.flag(),
    };
    let (largest, mean) = (x.max_pool(pooling.clone())?, x.average_pool(pooling.clone())?);
    let dlargest = g.apply(Op::MaxPoolGrad(pooling.clone()), &[&x, &largest])?;
    let dmean = Op::AveragePoolGrad { pooling, input: vec![7, 7] };
    let dmean = g.apply(dmean, &[&mean])?;
    m.keep([largest, mean, dlargest, dmean])
}

fn reduce(m: &mut Maker, g: &Builder) -> Made {
    let x = m.float(g, &[2, 3])?;
    let axes = m.one_of::<&[usize]>(&[&[0], &[1], &[0, 1]]);
    let reduced = x.reduce(m.one_of(Reduction::ALL), axes)?;
    let largest = x.argmax(m.below(2))?;
    m.keep([reduced, largest, g.apply(Op::BlockSquareSums, &[&x])?])
}

fn softmax(m: &mut Maker, g: &Builder) -> Made {
    let x = m.float(g, &[2, 3])?;
    let (y, log) = (x.softmax(m.below(2))?, x.log_softmax(1)?);
    let dy = g.apply(Op::SoftmaxGrad, &[&y, &x])?;
    m.keep([g.apply(Op::LogSoftmaxGrad, &[&log, &x])?, y, log, dy])
}

fn losses(m: &mut Maker, g: &Builder) -> Made {
    let (x, labels) = (m.float(g, &[2, 3])?, m.of(g, &TensorType::new(DType::I32, [2]))?);
    let loss = x.cross_entropy(&labels)?;
    let slope = g.apply(Op::CrossEntropyGrad, &[&x, &labels, &loss])?;
    m.keep([x.huber(&slope, 0.5)?, loss, slope])
}

fn layer_norm(m: &mut Maker, g: &Builder) -> Made {
    let (x, scale) = (m.float(g, &[2, 3])?, m.float(g, &[3])?);
    let epsilon = m.number().abs();
    let norm = g.apply_all(Op::LayerNorm { epsilon }, &[&x, &scale, &scale])?;
    let operands = [&x, &scale, &norm[1], &norm[2], &norm[0]];
    let slopes = g.apply_all(Op::LayerNormGrad, &operands)?;
    m.keep(norm.into_iter().chain(slopes))
}

fn batch_norm(m: &mut Maker, g: &Builder) -> Made {
    let (x, scale) = (m.float(g, &[2, 3])?, m.float(g, &[3])?);
    let epsilon = m.number().abs();
    let [y, mean, variance] = x.batch_norm(&scale, &scale, epsilon)?;
    let operands = [&x, &scale, &mean, &variance, &y];
    let slopes = g.apply_all(Op::BatchNormGrad { epsilon }, &operands)?;
    m.keep(slopes.into_iter().chain([y, mean, variance]))
}

fn attention(m: &mut Maker, g: &Builder) -> Made {
    let (q, k) = (m.float(g, &[2, 4, 6])?, m.float(g, &[2, 5, 6])?);
    let mask = m.of(g, &TensorType::new(DType::Bool, [4, 5]))?;
    let (heads, scale, masked) = (m.one_of(&[1, 2, 3, 6]), m.number(), m.flag());
    let spec = AttentionSpec { heads, causal: m.flag(), scale, masked };
    let operands: Vec<&Value> = [&q, &k, &k].into_iter().chain(masked.then_some(&mask)).collect();
    let y = g.apply(Op::Attention(spec.clone()), &operands)?;
    let operands: Vec<&Value> = operands.into_iter().chain([&y]).collect();
    let slopes = g.apply_all(Op::AttentionGrad(spec), &operands)?;
    m.keep(slopes.into_iter().chain([y]))
}

/// Adds a few operations inside a body; what is made there stays there.
fn inside(m: &mut Maker, g: &Builder, seeds: &[Value]) -> Result<Value, ProgramError> {
    const INNERMOST: usize = 3;
    let outer = m.pool.clone();
    m.pool.extend(seeds.iter().cloned());
    m.depth += 1;
    for _ in 0..m.below(4) {
        let n_actions = if m.depth < INNERMOST { ACTIONS.len() } else { ACTIONS.len() - 2 };
        let action = m.one_of(&ACTIONS[..n_actions]);
        let _ = action(m, g);
    }
    let last = m.float(g, &[3]);
    m.depth -= 1;
    m.pool = outer;
    last
}

fn scan(m: &mut Maker, g: &Builder) -> Made {
    let (start, xs) = (m.float(g, &[3])?, m.float(g, &[2, 3])?);
    let reverse = m.flag();
    let (last, all) = g.scan(&[&start], &[&xs], reverse, |g, carried, items| {
        let sum = (&carried[0] + &items[0])?;
        let extra = inside(m, g, std::slice::from_ref(&sum))?;
        Ok((vec![sum.clone()], vec![extra, sum]))
    })?;
    m.keep(last.into_iter().chain(all))
}

fn cond(m: &mut Maker, g: &Builder) -> Made {
    let condition = m.of(g, &TensorType::new(DType::Bool, [0; 0]))?;
    let x = m.float(g, &[3])?;
    let yes = |m: &mut Maker, g: &Builder| Ok(vec![(&inside(m, g, &[])? + &x)?]);
    let mut other = Maker { draws: vec![], next: 0, pool: vec![], n_names: 0, depth: 1 };
    let chosen = g.cond(&condition, |g| yes(m, g), |g| Ok(vec![inside(&mut other, g, &[])?]))?;
    m.keep(chosen)
}

fn grain_sum(m: &mut Maker, g: &Builder) -> Made {
    let x = m.any(g)?;
    m.keep([x.cast(DType::F64)?.grain_sum()?])
}

fn all_reduce(m: &mut Maker, g: &Builder) -> Made {
    let x = m.float(g, &[2, 3])?;
    m.keep([x.all_reduce()?])
}

fn fused(m: &mut Maker, g: &Builder) -> Made {
    let (x, row) = (m.float(g, &[2, 3])?, m.float(g, &[3])?);
    let (column, one) = (m.float(g, &[2])?, m.float(g, &[])?);
    let drawn = f32::from_bits(m.draw());
    let number = if drawn.is_finite() { drawn } else { 0.1 };
    let expression = Expression {
        operands: vec![Spread::Full, Spread::Trailing, Spread::Leading, Spread::Scalar],
        terms: vec![
            Term::Operand(0),
            Term::Operand(1),
            Term::Number(number),
            Term::Binary(m.one_of(&Binary::ALL[..8]), 0, 1),
            Term::Unary(m.one_of(&Unary::ALL[..22]), 3),
            Term::Compare(m.one_of(Comparison::ALL), 4, 2),
            Term::Select(5, 3, 4),
        ],
        results: vec![6, 4],
    };
    let results = g.apply_all(Op::Fused(expression), &[&x, &row, &column, &one])?;
    m.keep(results)
}
