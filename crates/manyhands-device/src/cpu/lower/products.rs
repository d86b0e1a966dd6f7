//! Matrix products, with what is fused to them.

use manyhands_program::{Addend, Op, TensorType, Unary};

use super::Lowered;
use crate::cpu::instruction::Context;
use crate::cpu::kernels::Part;
use crate::cpu::kernels::gemm::{self, Activation, Finish, Gemm, Strided};
use crate::cpu::memory::Place;

/// The sizes and strides of a batched product.
#[derive(Clone, Copy)]
struct Product {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    transpose_lhs: bool,
    transpose_rhs: bool,
}

impl Product {
    fn new(
        lhs: &TensorType,
        rhs: &TensorType,
        transpose_lhs: bool,
        transpose_rhs: bool,
    ) -> Product {
        let matrix = |ty: &TensorType, transposed: bool| {
            let [a, b] = [ty.shape[ty.shape.rank() - 2], ty.shape[ty.shape.rank() - 1]];
            if transposed { (b, a) } else { (a, b) }
        };
        let (m, k) = matrix(lhs, transpose_lhs);
        let (_, n) = matrix(rhs, transpose_rhs);
        let batch: usize = lhs.shape[..lhs.shape.rank() - 2].iter().product();
        // One matrix on the right for all on the left is one taller product.
        if rhs.shape.rank() == 2 && !transpose_lhs {
            return Product { batch: 1, m: batch * m, n, k, transpose_lhs, transpose_rhs };
        }
        Product { batch, m, n, k, transpose_lhs, transpose_rhs }
    }

    fn gemm(&self, a: *const f32, b: *const f32, c: *mut f32, finish: Finish) -> Gemm {
        let strided = |ptr, row, col| Strided { ptr, row, col };
        Gemm {
            m: self.m,
            n: self.n,
            k: self.k,
            a: if self.transpose_lhs { strided(a, 1, self.m) } else { strided(a, self.k, 1) },
            b: if self.transpose_rhs { strided(b, 1, self.k) } else { strided(b, self.n, 1) },
            c,
            c_row: self.n,
            resume: false,
            finish,
        }
    }
}

/// What follows the product, with the bias as a place.
#[derive(Clone, Copy)]
struct Ending {
    accumulate: bool,
    bias: Option<Place>,
    activation: Activation,
}

/// Whether products are shared out whole among `n_parts` threads, or each is cut.
fn shares_whole(batch: usize, n_parts: usize) -> bool {
    n_parts == 1 || batch >= 2 * n_parts || (batch > 1 && batch.is_multiple_of(n_parts))
}

pub(super) fn product(out: &mut Lowered<'_>) {
    let (transpose_lhs, transpose_rhs, add, activation) = match out.node.op {
        Op::Matmul { transpose_lhs, transpose_rhs } => (transpose_lhs, transpose_rhs, None, None),
        Op::Dense { transpose_lhs, transpose_rhs, add, activation } => {
            (transpose_lhs, transpose_rhs, add, activation)
        }
        _ => unreachable!("only products come here"),
    };
    let product =
        Product::new(out.operand_type(0), out.operand_type(1), transpose_lhs, transpose_rhs);
    let (a, b, c) = (out.operand(0), out.operand(1), out.result(0));
    let accumulate = add == Some(Addend::Matrix);
    let bias = (add == Some(Addend::Bias)).then(|| out.operand(2));
    let relu = activation == Some(Unary::Relu);
    if accumulate && out.operand(2) != c {
        super::moves::copy(out, out.operand(2), c, out.result_type(0).n_bytes());
    }
    let ending = Ending {
        accumulate,
        bias,
        activation: if relu { Activation::Relu } else { Activation::None },
    };
    let finish = Finish { accumulate, activation: ending.activation, ..Finish::NONE };
    let probe = product.gemm(std::ptr::null(), std::ptr::null(), std::ptr::null_mut(), finish);
    // A launch has one thread, those of its lane, or all.
    let scratch = [1, out.env.threads_each, out.env.n_threads]
        .into_iter()
        .map(|n_parts| gemm::scratch_len(out.env.isa, &probe, n_parts))
        .max()
        .unwrap_or(0);
    out.emit(
        scratch,
        Box::new(move |context, part| {
            // SAFETY: the plan gives every place the bytes of its type, and the result overlaps no operand.
            unsafe { run(context, part, &product, [a, b, c], ending) };
            Ok(())
        }),
    );
    if let Some(unary) = activation.filter(|_| !relu) {
        super::moves::activation(out, unary);
    }
}

/// # Safety
/// The places hold the product's operands and its result, which overlaps none of them.
unsafe fn run(
    context: &Context<'_>,
    part: Part,
    product: &Product,
    [a, b, c]: [Place; 3],
    ending: Ending,
) {
    let bias = ending.bias.map_or(std::ptr::null(), |place| context.at::<f32>(place).cast_const());
    let finish = Finish { accumulate: ending.accumulate, bias, activation: ending.activation };
    let (a, b, c): (*mut f32, *mut f32, *mut f32) = (context.at(a), context.at(b), context.at(c));
    let (own, inner) = if shares_whole(product.batch, part.count) {
        (part.range(product.batch, 1), Part::WHOLE)
    } else {
        (0..product.batch, part)
    };
    for idx in own {
        // SAFETY: matrix `idx` of each operand and of the result lies inside its buffer; the scratch is this thread's.
        unsafe {
            let gemm = product.gemm(
                a.add(idx * product.m * product.k),
                b.add(idx * product.k * product.n),
                c.add(idx * product.m * product.n),
                finish,
            );
            gemm::gemm(context.isa, &gemm, context.scratch_f32(), inner);
        }
    }
}
