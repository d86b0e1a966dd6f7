//! Fused elementwise expressions, term by term; each term rounds to f32 as the operation that it
//! came from.

use manyhands_program::{Expression, Spread, Term};

use super::elementwise::{binary_float, compare, unary_float};
use super::memory::Call;

pub(super) fn run(expression: &Expression, call: &mut Call<'_>) {
    let n = call.result_type(0).shape.n_elements();
    let values = call.take_scratch(expression.terms.len());
    for position in 0..n {
        for (idx, term) in expression.terms.iter().enumerate() {
            values[idx] = f64::from(evaluate(term, &values[..idx], |operand| {
                let own = call.operand::<f32>(operand);
                match expression.operands[operand] {
                    Spread::Full => own[position],
                    Spread::Scalar => own[0],
                    Spread::Trailing => own[position % own.len()],
                    Spread::Leading => own[position / (n / own.len())],
                }
            }));
        }
        for (idx, &result) in expression.results.iter().enumerate() {
            call.result::<f32>(idx).set(position, values[result as usize] as f32);
        }
    }
}

/// The value of one term, from those before it. A truth value is 0 or 1.
fn evaluate(term: &Term, earlier: &[f64], operand: impl Fn(usize) -> f32) -> f32 {
    let value = |term: u32| earlier[term as usize] as f32;
    match *term {
        Term::Operand(idx) => operand(idx as usize),
        Term::Number(number) => number,
        Term::Unary(unary, a) => unary_float(unary, value(a)),
        Term::Binary(binary, a, b) => binary_float(binary, value(a), value(b)),
        Term::Compare(comparison, a, b) => {
            f32::from(u8::from(compare(comparison, &value(a), &value(b))))
        }
        Term::Select(condition, yes, no) => {
            if value(condition) != 0.0 {
                value(yes)
            } else {
                value(no)
            }
        }
    }
}
