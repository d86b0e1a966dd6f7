//! Gradients against central differences in f64.
//!
//! For random operands x, a random direction u and L = sum(weights * results), the slope (L(x + hu) - L(x - hu)) / 2h must
//! agree with the inner product of the gradient and u to 1e-6 of the size of either.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // shared by tests that each use a part; panics are verdicts

use manyhands_device::{CpuDevice, Device};
use manyhands_program::{
    Builder, DType, Op, Program, ProgramError, RANDOM_CONTEXT, Shape, Tensor, Value,
};

pub type Built = Result<Value, ProgramError>;

/// SplitMix64: small, and the same everywhere.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn up_to(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// A size from 1 to `limit`.
    pub fn size(&mut self, limit: usize) -> usize {
        1 + self.up_to(limit)
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| self.size(5)).collect()
    }

    pub fn floats(&mut self, shape: &[usize], low: f64, high: f64) -> Tensor {
        let n = Shape::from(shape).n_elements();
        let values: Vec<f64> = (0..n).map(|_| self.between(low, high)).collect();
        Tensor::new(shape, &values).unwrap()
    }

    pub fn indices(&mut self, shape: &[usize], limit: usize) -> Tensor {
        let n = Shape::from(shape).n_elements();
        let values: Vec<i32> = (0..n).map(|_| self.up_to(limit) as i32).collect();
        Tensor::new(shape, &values).unwrap()
    }

    pub fn truths(&mut self, shape: &[usize]) -> Tensor {
        let n = Shape::from(shape).n_elements();
        let values: Vec<bool> = (0..n).map(|_| self.up_to(2) == 0).collect();
        Tensor::new(shape, &values).unwrap()
    }
}

type Build<'a> = dyn Fn(&Builder, &[Value]) -> Result<Vec<Value>, ProgramError> + 'a;

/// A function to differentiate, by example: its operands, of which the floats are differentiated.
pub struct Case<'a> {
    operands: Vec<Tensor>,
    build: Box<Build<'a>>,
}

pub fn case<'a>(
    operands: Vec<Tensor>,
    build: impl Fn(&Builder, &[Value]) -> Built + 'a,
) -> Case<'a> {
    Case { operands, build: Box::new(move |g, x| Ok(vec![build(g, x)?])) }
}

/// An operation on the operands as they are.
pub fn plain<'a>(operands: Vec<Tensor>, op: Op) -> Case<'a> {
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
pub fn check(what: &str, seed: u64, case: &Case<'_>, of_gradient: bool) {
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
pub fn check_seeds(what: &str, make: impl Fn(&mut Random) -> Case<'static>) {
    for seed in 0..4 {
        check(what, seed, &make(&mut Random(seed.wrapping_mul(77) + 1)), false);
    }
}

/// A function with several results.
pub fn many(
    operands: Vec<Tensor>,
    build: impl Fn(&Builder, &[Value]) -> Result<Vec<Value>, ProgramError> + 'static,
) -> Case<'static> {
    Case { operands, build: Box::new(build) }
}
