//! Expressions against an evaluation element by element, by bits: every instruction, every spread,
//! in place, cut into parts, on every instruction set.

use manyhands_program::{Binary, Comparison, Expression, Shape, Spread, Term, Unary};
use proptest::prelude::*;

use super::superoperators::{Access, Pattern, Piece, patterns};
use super::*;
use crate::cpu::kernels::Part;
use crate::cpu::simd::{Isa, Kernel, Lanes};

/// One element through the lanes, for functions that are not the language's own.
struct OneUnary(Unary, f32);

impl Kernel for OneUnary {
    type Output = f32;

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) -> f32 {
        // SAFETY: called by `Isa::run`.
        unsafe { l.to_array(elementwise::unary(l, self.0, l.splat(self.1)))[7] }
    }
}

struct OnePower(f32, f32);

impl Kernel for OnePower {
    type Output = f32;

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) -> f32 {
        // SAFETY: called by `Isa::run`.
        let power =
            unsafe { elementwise::binary(l, Binary::Pow, l.splat(self.0), l.splat(self.1)) };
        // SAFETY: as above.
        unsafe { l.to_array(power)[7] }
    }
}

fn unary(op: Unary, x: f32) -> f32 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign if x == 0.0 => 0.0,
        Unary::Sign if x.is_nan() => x,
        Unary::Sign => x.signum(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Relu if x > 0.0 || x.is_nan() => x,
        Unary::Relu => 0.0f32.copysign(if x == 0.0 { x } else { 1.0 }),
        // SAFETY: portable code runs everywhere.
        _ => unsafe { Isa::Portable.run(OneUnary(op, x)) },
    }
}

fn binary(op: Binary, a: f32, b: f32) -> f32 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Rem => a % b,
        Binary::Max | Binary::Min if a.is_nan() || b.is_nan() => f32::NAN,
        Binary::Max => {
            if a > b {
                a
            } else {
                b
            }
        }
        Binary::Min => {
            if a < b {
                a
            } else {
                b
            }
        }
        // SAFETY: portable code runs everywhere.
        _ => unsafe { Isa::Portable.run(OnePower(a, b)) },
    }
}

fn compare(comparison: Comparison, a: f32, b: f32) -> bool {
    match comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a != b,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Gt => a > b,
        Comparison::Ge => a >= b,
    }
}

/// An expression with shapes and the values of its operands.
#[derive(Clone, Debug)]
struct Case {
    expression: Expression,
    shape: Shape,
    operand_shapes: Vec<Shape>,
    operands: Vec<Vec<f32>>,
}

impl Case {
    /// Lays operands of the expression's spreads over rows and columns.
    fn new(expression: Expression, rows: usize, cols: usize, seed: u32) -> Case {
        let shape_of = |spread: &Spread| match spread {
            Spread::Full => Shape::from([rows, cols]),
            Spread::Scalar => Shape::scalar(),
            Spread::Trailing => Shape::from([cols]),
            Spread::Leading => Shape::from([rows]),
        };
        let operand_shapes: Vec<Shape> = expression.operands.iter().map(shape_of).collect();
        let values = |(idx, shape): (usize, &Shape)| {
            let seed = seed.wrapping_add(idx as u32 * 7919);
            (0..shape.n_elements()).map(|i| number(seed.wrapping_add(i as u32))).collect()
        };
        let operands = operand_shapes.iter().enumerate().map(values).collect();
        Case { expression, shape: Shape::from([rows, cols]), operand_shapes, operands }
    }

    fn tape(&self) -> Tape {
        Tape::new(&self.expression, &self.shape, &self.operand_shapes.iter().collect::<Vec<_>>())
    }

    /// The results, element by element.
    fn want(&self) -> Vec<Vec<f32>> {
        let n = self.shape.n_elements();
        let mut results = vec![Vec::with_capacity(n); self.expression.results.len()];
        for i in 0..n {
            let mut values: Vec<f32> = Vec::new();
            let mut truths: Vec<bool> = Vec::new();
            for term in &self.expression.terms {
                let at = |term: u32| values[term as usize];
                let mut truth = false;
                let value = match *term {
                    Term::Operand(operand) => {
                        let own = &self.operands[operand as usize];
                        own[match self.expression.operands[operand as usize] {
                            Spread::Full => i,
                            Spread::Scalar => 0,
                            Spread::Trailing => i % own.len(),
                            Spread::Leading => i / (n / own.len()),
                        }]
                    }
                    Term::Number(number) => number,
                    Term::Unary(op, a) => unary(op, at(a)),
                    Term::Binary(op, a, b) => binary(op, at(a), at(b)),
                    Term::Compare(comparison, a, b) => {
                        truth = compare(comparison, at(a), at(b));
                        f32::NAN
                    }
                    Term::Select(c, yes, no) => at(if truths[c as usize] { yes } else { no }),
                };
                values.push(value);
                truths.push(truth);
            }
            for (result, term) in results.iter_mut().zip(&self.expression.results) {
                result.push(values[*term as usize]);
            }
        }
        results
    }

    /// The results by the tape; result `r` has the memory of operand `in_place[r]`, if any.
    fn got(
        &self,
        tape: &Tape,
        isa: Isa,
        n_parts: usize,
        in_place: &[Option<usize>],
    ) -> Vec<Vec<f32>> {
        let mut operands = self.operands.clone();
        let mut own = vec![vec![f32::NAN; self.shape.n_elements()]; in_place.len()];
        let mut addresses: Vec<*mut f32> = own.iter_mut().map(|own| own.as_mut_ptr()).collect();
        let operand_addresses: Vec<*mut f32> =
            operands.iter_mut().map(|operand| operand.as_mut_ptr()).collect();
        for (address, operand) in addresses.iter_mut().zip(in_place) {
            if let Some(operand) = operand {
                *address = operand_addresses[*operand];
            }
        }
        let read: Vec<*const f32> = operand_addresses.iter().map(|p| p.cast_const()).collect();
        let mut scratch = vec![f32::NAN; tape.scratch_len() + 1];
        for idx in 0..n_parts {
            let part = Part { idx, count: n_parts };
            // Scratch memory is aligned to nothing in particular.
            let place = scratch[idx % 2..].as_mut_ptr();
            // SAFETY: operands and results have the case's sizes, the scratch memory the tape's.
            unsafe { run(isa, tape, &read, &addresses, place, part) };
        }
        let result = |(own, operand): (Vec<f32>, &Option<usize>)| match operand {
            Some(operand) => operands[*operand].clone(),
            None => own,
        };
        own.into_iter().zip(in_place).map(result).collect()
    }

    fn check(&self, in_place: &[Option<usize>]) {
        let (tape, want) = (self.tape(), self.want());
        for isa in Isa::available() {
            for n_parts in [1, 2, 3, 5] {
                let got = self.got(&tape, isa, n_parts, in_place);
                for (result, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert_eq!(got.len(), want.len());
                    for (i, (got, want)) in got.iter().zip(want).enumerate() {
                        let same = got.to_bits() == want.to_bits();
                        assert!(
                            same || got.is_nan() && want.is_nan(),
                            "result {result}[{i}] in {n_parts} parts on {}: {got:e}, not {want:e}, \
                             in place {in_place:?}, of {:?}",
                            isa.name(),
                            self.expression,
                        );
                    }
                }
            }
        }
    }
}

/// Mostly ordinary numbers, sometimes an edge.
fn number(seed: u32) -> f32 {
    let hash = (seed ^ seed >> 15).wrapping_mul(0x2c1b_3c6d);
    let hash = (hash ^ hash >> 12).wrapping_mul(0x297a_2d39);
    let hash = hash ^ hash >> 15;
    match hash % 40 {
        0 => 0.0,
        1 => -0.0,
        2 => f32::NAN,
        3 => f32::INFINITY,
        4 => f32::NEG_INFINITY,
        5 => f32::from_bits(hash >> 9),
        6 => f32::from_bits(hash),
        _ => (hash >> 8) as f32 / 2_000_000.0 - 4.0,
    }
}

const GRIDS: [(usize, usize); 18] = [
    (0, 4),
    (1, 1),
    (1, 15),
    (16, 1),
    (17, 1),
    (1, 17),
    (3, 5),
    (40, 25),
    (1, 1000),
    (4097, 1),
    (17, 241),
    (241, 17),
    (5, 820),
    (600, 3),
    (3, 600),
    (70, 64),
    (9, 130),
    (2, 2100),
];

const UNARIES: usize = Unary::ALL.len() - 1;
const BINARIES: usize = Binary::ALL.len() - 3;

/// A random expression from a list of random numbers, a few per term.
fn random_expression(spreads: &[usize], choices: &[(u8, u16, u16, u16)]) -> Expression {
    let spread =
        |idx: &usize| [Spread::Full, Spread::Scalar, Spread::Trailing, Spread::Leading][*idx];
    let mut operands = vec![Spread::Full];
    operands.extend(spreads.iter().map(spread));
    let mut terms: Vec<Term> = (0..operands.len() as u32).map(Term::Operand).collect();
    let mut numbers: Vec<u32> = (0..operands.len() as u32).collect();
    for &(kind, a, b, c) in choices {
        // Recent terms are likelier, which makes chains.
        let pick = |x: u16| {
            let back = usize::from(x >> 8) % numbers.len().min(if x & 1 == 0 { 3 } else { 99 });
            numbers[numbers.len() - 1 - back]
        };
        let op = usize::from(c);
        let term = match kind % 16 {
            0 => Term::Number(f32::from(a) / 8192.0 - 3.0),
            1 => Term::Operand(u32::from(a) % operands.len() as u32),
            2 | 3 => Term::Unary(Unary::ALL[op % UNARIES], pick(a)),
            4 | 5 => Term::Binary(Binary::ALL[op % BINARIES], pick(a), pick(b)),
            6 | 7 => {
                terms.push(Term::Compare(Comparison::ALL[op % 6], pick(a), pick(b)));
                Term::Select(terms.len() as u32 - 1, pick(c), pick(b ^ a))
            }
            _ => Term::Binary(Binary::ALL[op % 4], pick(a), pick(b)),
        };
        numbers.push(terms.len() as u32);
        terms.push(term);
    }
    let n_results = 1 + choices.len() % 3;
    let results = (0..n_results).map(|r| {
        let back = choices.get(r).map_or(0, |choice| usize::from(choice.1) % 3 * r);
        numbers[numbers.len() - 1 - back.min(numbers.len() - 1)]
    });
    Expression { operands, results: results.collect(), terms }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_expressions_agree_with_single_elements(
        spreads in prop::collection::vec(0..4usize, 0..5),
        choices in prop::collection::vec(any::<(u8, u16, u16, u16)>(), 0..16),
        grid in 0..GRIDS.len(),
        seed in any::<u32>(),
        places in any::<u16>(),
    ) {
        let expression = random_expression(&spreads, &choices);
        let (rows, cols) = GRIDS[grid];
        let case = Case::new(expression, rows, cols, seed);
        let full = |o: &usize| case.expression.operands[*o] == Spread::Full;
        let mut full: Vec<usize> = (0..case.operands.len()).filter(full).collect();
        let n_results = case.expression.results.len();
        case.check(&vec![None; n_results]);
        // Each result takes a full operand of its own, or none.
        let mut in_place = vec![None; n_results];
        for (r, place) in in_place.iter_mut().enumerate() {
            let choice = usize::from(places >> (4 * r) & 15);
            if choice < 12 && !full.is_empty() {
                *place = Some(full.swap_remove(choice % full.len()));
            }
        }
        case.check(&in_place);
    }
}

/// The expression that an instruction computes.
fn expression_of(pattern: &Pattern) -> Expression {
    let n_sources = pattern.access.iter().filter(|access| **access != Access::Absent).count();
    // One that may be either is one number where there are others.
    let spread = |(i, access): (usize, &Access)| match access {
        Access::Same => Spread::Scalar,
        Access::Any if i > 0 => Spread::Scalar,
        _ => Spread::Full,
    };
    let operands = pattern.access[..n_sources].iter().enumerate().map(spread).collect();
    let mut terms: Vec<Term> = Vec::new();
    let mut term_of = Vec::new();
    for piece in &pattern.parts {
        let at = |piece: usize| term_of[piece];
        match *piece {
            Piece::Source(source) if source >= n_sources => {}
            Piece::Source(source) => terms.push(Term::Operand(source as u32)),
            Piece::Unary(op, x) => terms.push(Term::Unary(op, at(x))),
            Piece::Binary(op, x, y) => terms.push(Term::Binary(op, at(x), at(y))),
            Piece::Select(comparison, [a, b, yes, no]) => {
                terms.push(Term::Compare(comparison, at(a), at(b)));
                terms.push(Term::Select(terms.len() as u32 - 1, at(yes), at(no)));
            }
        }
        term_of.push((terms.len() as u32).saturating_sub(1));
    }
    Expression { operands, results: vec![terms.len() as u32 - 1], terms }
}

#[test]
fn every_instruction_is_found_and_computes_what_it_says() {
    for pattern in patterns() {
        for (rows, cols) in [(0, 1), (1, 1), (3, 5), (1, 16), (17, 1), (50, 20), (4097, 1)] {
            let case = Case::new(expression_of(&pattern), rows, cols, 11);
            let tape = case.tape();
            assert_eq!(tape.direct.body.len(), 1, "{:?}", pattern.code);
            assert_eq!(tape.direct.body[0].code, pattern.code);
            case.check(&[None]);
            case.check(&[Some(0).filter(|_| case.expression.operands[0] == Spread::Full)]);
        }
    }
}

/// Two operands that become each other's memory, through no operation at all.
#[test]
fn operands_can_be_swapped_in_place() {
    let expression = Expression {
        operands: vec![Spread::Full, Spread::Full],
        terms: vec![Term::Operand(0), Term::Operand(1)],
        results: vec![1, 0],
    };
    let case = Case::new(expression, 3, 700, 5);
    case.check(&[Some(0), Some(1)]);
    case.check(&[Some(1), Some(0)]);
}

/// Momentum as programs spell it, of velocity, weight, gradient, and scalars.
fn momentum() -> Expression {
    use Binary::{Add, Mul, Sub};
    let mut terms: Vec<Term> = (0..6).map(Term::Operand).collect();
    let [velocity, weight, gradient, kept, inverse, rate] = [0, 1, 2, 3, 4, 5];
    terms.push(Term::Binary(Mul, velocity, kept));
    terms.push(Term::Binary(Mul, gradient, inverse));
    terms.push(Term::Binary(Add, 6, 7));
    terms.push(Term::Binary(Mul, rate, 8));
    terms.push(Term::Binary(Sub, weight, 9));
    let operands = [[Spread::Full; 3], [Spread::Scalar; 3]].concat();
    Expression { operands, terms, results: vec![8, 10] }
}

/// Adam as programs spell it, of mean, mean square, weight, gradient, and scalars.
fn adam() -> Expression {
    use Binary::{Add, Div, Mul, Sub};
    let mut terms: Vec<Term> = (0..7).map(Term::Operand).collect();
    let [mean, square, weight, gradient, inverse, correction, rate] = [0, 1, 2, 3, 4, 5, 6];
    let numbers = [0.1, 0.999, 0.001, 1e-8];
    terms.extend(numbers.map(Term::Number));
    terms.push(Term::Binary(Mul, gradient, inverse));
    terms.push(Term::Binary(Sub, 11, mean));
    terms.push(Term::Binary(Mul, 12, 7));
    terms.push(Term::Binary(Add, mean, 13));
    terms.push(Term::Binary(Mul, square, 8));
    terms.push(Term::Binary(Mul, 11, 11));
    terms.push(Term::Binary(Mul, 16, 9));
    terms.push(Term::Binary(Add, 15, 17));
    terms.push(Term::Unary(Unary::Sqrt, 18));
    terms.push(Term::Binary(Div, 19, correction));
    terms.push(Term::Binary(Add, 20, 10));
    terms.push(Term::Binary(Div, 14, 21));
    terms.push(Term::Binary(Mul, 22, rate));
    terms.push(Term::Binary(Sub, weight, 23));
    let operands = [&[Spread::Full; 4][..], &[Spread::Scalar; 3]].concat();
    Expression { operands, terms, results: vec![14, 18, 24] }
}

#[test]
fn updates_take_few_instructions() {
    let case = Case::new(momentum(), 40, 100, 3);
    assert_eq!(case.tape().direct.body.len(), 2);
    for in_place in [[Some(0), Some(1)], [Some(1), Some(0)], [None, Some(2)], [Some(1), None]] {
        case.check(&in_place);
    }
    let case = Case::new(adam(), 40, 100, 3);
    assert_eq!(case.tape().direct.body.len(), 4);
    for in_place in [[Some(0), Some(1), Some(2)], [Some(2), Some(3), Some(1)], [None; 3]] {
        case.check(&in_place);
    }
}
