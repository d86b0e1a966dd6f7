//! The instructions of a fused kernel: small expressions that run as one loop each.
//!
//! An instruction reads each of its sources once, keeps what is between in registers and writes
//! one array. Each is written once, over an [`Algebra`]: with [`OnLanes`] it is the loop that runs,
//! with [`Sketch`] it is the pattern that the compiler looks for. The single operations close the
//! table, so that every expression can be cut into instructions; adding a line above makes a chain
//! faster and changes no bits, since the operations and their order stay as they are.

use std::cell::RefCell;
use std::marker::PhantomData;

use manyhands_program::{Binary, Comparison, Unary};

use super::elementwise;
use crate::cpu::simd::{Kernel, Lanes, WIDTH};

/// The most sources of an instruction.
pub(super) const MAX_SOURCES: usize = 7;

/// How an instruction reads a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// An element each.
    Each,
    /// One number for all, held in a register: the source is a row of sixteen equal ones.
    Same,
    /// Either, known at run time.
    Any,
    /// There is no such source.
    Absent,
}

/// Something to evaluate an instruction over.
pub(super) trait Algebra: Copy {
    /// A value.
    type V: Copy;

    fn unary(self, op: Unary, x: Self::V) -> Self::V;
    fn binary(self, op: Binary, a: Self::V, b: Self::V) -> Self::V;
    fn select(self, comparison: Comparison, of: [Self::V; 4]) -> Self::V;

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        self.binary(Binary::Add, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        self.binary(Binary::Sub, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        self.binary(Binary::Mul, a, b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        self.binary(Binary::Div, a, b)
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        self.unary(Unary::Sqrt, a)
    }
    #[inline(always)]
    fn relu(self, a: Self::V) -> Self::V {
        self.unary(Unary::Relu, a)
    }
}

/// An instruction's meaning.
pub(super) trait Superoperator {
    /// How its sources are read.
    const ACCESS: [Access; MAX_SOURCES];

    /// Its value for the given sources.
    fn eval<A: Algebra>(o: A, x: [A::V; MAX_SOURCES]) -> A::V;
}

const fn padded<const N: usize>(given: [Access; N]) -> [Access; MAX_SOURCES] {
    let mut all = [Access::Absent; MAX_SOURCES];
    let mut i = 0;
    while i < N {
        all[i] = given[i];
        i += 1;
    }
    all
}

/// Declares the instructions: name(algebra; source: access, ...) = value.
macro_rules! superoperators {
    ($($name:ident($o:ident; $($x:ident: $access:ident),+) = $value:expr;)*) => {
        /// Which instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Code { $($name),* }

        $(
            struct $name;

            impl Superoperator for $name {
                const ACCESS: [Access; MAX_SOURCES] = padded([$(Access::$access),+]);

                #[inline(always)]
                fn eval<A: Algebra>($o: A, x: [A::V; MAX_SOURCES]) -> A::V {
                    let [$($x),+, ..] = x;
                    $value
                }
            }
        )*

        /// The patterns of all instructions, in the order of the table.
        pub(super) fn patterns() -> Vec<Pattern> {
            vec![$(Pattern::of::<$name>(Code::$name)),*]
        }

        /// Runs one instruction.
        ///
        /// # Safety
        /// As for [`Loop`].
        #[inline(always)]
        pub(super) unsafe fn execute<L: Lanes>(
            l: L,
            table: *const *mut f32,
            instruction: &Instruction,
            n: usize,
        ) {
            // SAFETY: as the caller says.
            unsafe {
                match instruction.code {
                    $(Code::$name => {
                        let meaning = PhantomData::<$name>;
                        l.outline(Loop { table, instruction, n, meaning });
                    })*
                }
            }
        }
    };
}

superoperators! {
    // Adam and its kin: a mean divided by the root of a mean square.
    AdamWStep(o; w: Each, d: Same, m: Each, v: Each, c: Same, e: Same, r: Same) =
        o.sub(o.mul(w, d), o.mul(o.div(m, o.add(o.div(o.sqrt(v), c), e)), r));
    AdamStep(o; w: Each, m: Each, v: Each, c: Same, e: Same, r: Same) =
        o.sub(w, o.mul(o.div(m, o.add(o.div(o.sqrt(v), c), e)), r));
    LambStep(o; m: Each, b: Same, v: Each, c: Same, e: Same, w: Each, d: Same) =
        o.add(o.div(o.div(m, b), o.add(o.div(o.sqrt(v), c), e)), o.mul(w, d));
    LambStepPlain(o; m: Each, b: Same, v: Each, c: Same, e: Same) =
        o.div(o.div(m, b), o.add(o.div(o.sqrt(v), c), e));
    RmsPropStep(o; w: Each, g: Each, v: Each, e: Same, r: Same) =
        o.sub(w, o.mul(o.div(g, o.add(o.sqrt(v), e)), r));
    AdagradStep(o; w: Each, g: Each, r: Same, v: Each, e: Same) =
        o.sub(w, o.div(o.mul(g, r), o.add(o.sqrt(v), e)));
    MeanSquare(o; v: Each, s: Same, g: Each, t: Same) =
        o.add(o.mul(v, s), o.mul(o.mul(g, g), t));
    Lerp(o; m: Each, g: Each, s: Same) = o.add(m, o.mul(o.sub(g, m), s));
    // A push that is a share of a step: as much of the way, and nothing where the step leads to nothing.
    ShareOfWay(o; x: Each, y: Each, s: Same, z: Same) =
        o.select(Comparison::Eq, [y, z, z, o.add(x, o.mul(s, o.sub(y, x)))]);
    DividedRoot(o; v: Each, c: Same, e: Same) = o.add(o.div(o.sqrt(v), c), e);
    Root(o; v: Each, e: Same) = o.add(o.sqrt(v), e);
    // Descent, with momentum, weight decay and gradients that are sums still to be scaled.
    DecayedVelocity(o; v: Each, s: Same, g: Each, t: Same, w: Each, d: Same) =
        o.add(o.mul(v, s), o.add(o.mul(g, t), o.mul(w, d)));
    ScaledDescent(o; w: Each, g: Each, s: Same, r: Same) = o.sub(w, o.mul(o.mul(g, s), r));
    ScaledSum(o; x: Each, s: Same, y: Each, t: Same) = o.add(o.mul(x, s), o.mul(y, t));
    MulSameAdd(o; x: Each, s: Same, y: Each) = o.add(o.mul(x, s), y);
    SubMulSame(o; y: Each, x: Each, s: Same) = o.sub(y, o.mul(x, s));
    MulSameAddSame(o; x: Each, s: Same, t: Same) = o.add(o.mul(x, s), t);
    // The slopes of activations, times what comes from above.
    TanhBack(o; g: Each, one: Same, y: Each) = o.mul(g, o.sub(one, o.mul(y, y)));
    LogisticBack(o; g: Each, y: Each, one: Same) = o.mul(g, o.mul(y, o.sub(one, y)));
    GeluBack(o; g: Each, x: Each) = o.mul(g, o.unary(Unary::GeluSlope, x));
    ReluBack(o; s: Same, y: Each, g: Each, t: Same) = o.select(Comparison::Lt, [s, y, g, t]);
    // An activation of a sum.
    AddRelu(o; x: Each, y: Each) = o.relu(o.add(x, y));
    AddGelu(o; x: Each, y: Each) = o.unary(Unary::Gelu, o.add(x, y));
    AddTanh(o; x: Each, y: Each) = o.unary(Unary::Tanh, o.add(x, y));
    // Two operations on arrays.
    AddAdd(o; x: Each, y: Each, z: Each) = o.add(o.add(x, y), z);
    AddMul(o; x: Each, y: Each, z: Each) = o.mul(o.add(x, y), z);
    AddMulSame(o; x: Each, y: Each, s: Same) = o.mul(o.add(x, y), s);
    SubMul(o; x: Each, y: Each, z: Each) = o.mul(o.sub(x, y), z);
    SubTimesSame(o; x: Each, y: Each, s: Same) = o.mul(o.sub(x, y), s);
    MulAdd(o; x: Each, y: Each, z: Each) = o.add(o.mul(x, y), z);
    MulSub(o; x: Each, y: Each, z: Each) = o.sub(o.mul(x, y), z);
    SubOfMul(o; x: Each, y: Each, z: Each) = o.sub(x, o.mul(y, z));
    MulMul(o; x: Each, y: Each, z: Each) = o.mul(o.mul(x, y), z);
    MulMulSame(o; x: Each, y: Each, s: Same) = o.mul(o.mul(x, y), s);
    // Single operations: all of them, in every form.
    SelectEq(o; a: Any, b: Any, c: Any, d: Any) = o.select(Comparison::Eq, [a, b, c, d]);
    SelectLt(o; a: Any, b: Any, c: Any, d: Any) = o.select(Comparison::Lt, [a, b, c, d]);
    SelectLe(o; a: Any, b: Any, c: Any, d: Any) = o.select(Comparison::Le, [a, b, c, d]);
    Add(o; x: Each, y: Each) = o.add(x, y);
    AddSame(o; x: Each, s: Same) = o.add(x, s);
    Sub(o; x: Each, y: Each) = o.sub(x, y);
    SubSame(o; x: Each, s: Same) = o.sub(x, s);
    SubFrom(o; s: Same, x: Each) = o.sub(s, x);
    Mul(o; x: Each, y: Each) = o.mul(x, y);
    MulSame(o; x: Each, s: Same) = o.mul(x, s);
    Div(o; x: Each, y: Each) = o.div(x, y);
    DivAny(o; x: Any, y: Any) = o.div(x, y);
    Rem(o; x: Any, y: Any) = o.binary(Binary::Rem, x, y);
    Pow(o; x: Any, y: Any) = o.binary(Binary::Pow, x, y);
    Max(o; x: Any, y: Any) = o.binary(Binary::Max, x, y);
    Min(o; x: Any, y: Any) = o.binary(Binary::Min, x, y);
    Neg(o; x: Each) = o.unary(Unary::Neg, x);
    Abs(o; x: Each) = o.unary(Unary::Abs, x);
    Sign(o; x: Each) = o.unary(Unary::Sign, x);
    Exp(o; x: Each) = o.unary(Unary::Exp, x);
    Expm1(o; x: Each) = o.unary(Unary::Expm1, x);
    Log(o; x: Each) = o.unary(Unary::Log, x);
    Log1p(o; x: Each) = o.unary(Unary::Log1p, x);
    Sqrt(o; x: Each) = o.unary(Unary::Sqrt, x);
    Rsqrt(o; x: Each) = o.unary(Unary::Rsqrt, x);
    Tanh(o; x: Each) = o.unary(Unary::Tanh, x);
    Logistic(o; x: Each) = o.unary(Unary::Logistic, x);
    Erf(o; x: Each) = o.unary(Unary::Erf, x);
    Sin(o; x: Each) = o.unary(Unary::Sin, x);
    Cos(o; x: Each) = o.unary(Unary::Cos, x);
    Floor(o; x: Each) = o.unary(Unary::Floor, x);
    Ceil(o; x: Each) = o.unary(Unary::Ceil, x);
    Round(o; x: Each) = o.unary(Unary::Round, x);
    Relu(o; x: Each) = o.unary(Unary::Relu, x);
    Gelu(o; x: Each) = o.unary(Unary::Gelu, x);
    GeluSlope(o; x: Each) = o.unary(Unary::GeluSlope, x);
    Silu(o; x: Each) = o.unary(Unary::Silu, x);
    Softplus(o; x: Each) = o.unary(Unary::Softplus, x);
    CopyOf(_o; x: Any) = x;
}

/// One instruction of a schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    /// Which one.
    pub(super) code: Code,
    /// Bit `i` says that source `i` is an array, not a row of equal numbers; for [`Access::Any`].
    pub(super) arrays: u8,
    /// Where the result goes, as an index into the table of addresses.
    pub(super) dst: u16,
    /// Where the sources are.
    pub(super) sources: [u16; MAX_SOURCES],
}

/// The loop of an instruction over `n` elements.
///
/// The table has an address for each index of the instruction: `n` elements for arrays, sixteen for
/// rows. The destination may be one of the sources, and overlaps none otherwise.
struct Loop<'a, S> {
    table: *const *mut f32,
    instruction: &'a Instruction,
    n: usize,
    meaning: PhantomData<S>,
}

impl<S: Superoperator> Kernel for Loop<'_, S> {
    type Output = ();

    // SAFETY: whoever runs the kernel vouches for its arguments.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self, l: L) {
        let Loop { table, instruction, n, meaning: PhantomData } = self;
        // SAFETY: the table has every index of the instruction, and its addresses hold `n` elements
        // or a row of sixteen; absent sources are not touched.
        unsafe {
            let mut source = [std::ptr::null::<f32>(); MAX_SOURCES];
            let mut held = [l.splat(0.0); MAX_SOURCES];
            let mut step = [0; MAX_SOURCES];
            for i in 0..MAX_SOURCES {
                if S::ACCESS[i] != Access::Absent {
                    source[i] = *table.add(usize::from(instruction.sources[i]));
                }
                if S::ACCESS[i] == Access::Same {
                    held[i] = l.load(source[i]);
                }
                step[i] = usize::from(instruction.arrays >> i & 1);
            }
            let dst = *table.add(usize::from(instruction.dst));
            let mut at = 0;
            while at + WIDTH <= n {
                let mut x = held;
                for i in 0..MAX_SOURCES {
                    match S::ACCESS[i] {
                        Access::Each => x[i] = l.load(source[i].add(at)),
                        Access::Any => x[i] = l.load(source[i].add(at * step[i])),
                        Access::Same | Access::Absent => {}
                    }
                }
                l.store(dst.add(at), S::eval(OnLanes(l), x));
                at += WIDTH;
            }
            if at < n {
                let mut x = held;
                for i in 0..MAX_SOURCES {
                    match S::ACCESS[i] {
                        Access::Each => x[i] = l.load_first(source[i].add(at), n - at),
                        Access::Any => x[i] = l.load_first(source[i].add(at * step[i]), n - at),
                        Access::Same | Access::Absent => {}
                    }
                }
                l.store_first(dst.add(at), S::eval(OnLanes(l), x), n - at);
            }
        }
    }
}

/// Evaluates for real. Exists only inside [`Kernel::run`].
#[derive(Clone, Copy)]
struct OnLanes<L>(L);

impl<L: Lanes> Algebra for OnLanes<L> {
    type V = L::F;

    #[inline(always)]
    fn unary(self, op: Unary, x: L::F) -> L::F {
        // SAFETY: values of this type exist only where the instruction set is there.
        unsafe { elementwise::unary(self.0, op, x) }
    }
    #[inline(always)]
    fn binary(self, op: Binary, a: L::F, b: L::F) -> L::F {
        // SAFETY: as above.
        unsafe { elementwise::binary(self.0, op, a, b) }
    }
    #[inline(always)]
    fn select(self, comparison: Comparison, of: [L::F; 4]) -> L::F {
        // SAFETY: as above.
        unsafe { elementwise::select(self.0, comparison, of) }
    }
}

/// What an instruction computes, as the compiler sees it.
pub(super) struct Pattern {
    /// The instruction.
    pub(super) code: Code,
    /// How its sources are read.
    pub(super) access: [Access; MAX_SOURCES],
    /// Its parts, operands first; the last is the whole.
    pub(super) parts: Vec<Piece>,
}

/// A part of a pattern; numbers are indexes of earlier parts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece {
    Source(usize),
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    Select(Comparison, [usize; 4]),
}

impl Pattern {
    fn of<S: Superoperator>(code: Code) -> Pattern {
        let parts = RefCell::new((0..MAX_SOURCES).map(Piece::Source).collect());
        let whole = S::eval(Sketch(&parts), std::array::from_fn(|i| i));
        let mut parts = parts.into_inner();
        parts.truncate(whole + 1);
        Pattern { code, access: S::ACCESS, parts }
    }

    /// How many operations it does.
    pub(super) fn n_operations(&self) -> usize {
        self.parts.iter().filter(|part| !matches!(part, Piece::Source(_))).count()
    }

    /// The part that is the whole.
    pub(super) fn whole(&self) -> usize {
        self.parts.len() - 1
    }
}

/// Writes down what is evaluated.
#[derive(Clone, Copy)]
struct Sketch<'a>(&'a RefCell<Vec<Piece>>);

impl Sketch<'_> {
    fn note(self, part: Piece) -> usize {
        let mut parts = self.0.borrow_mut();
        parts.push(part);
        parts.len() - 1
    }
}

impl Algebra for Sketch<'_> {
    type V = usize;

    fn unary(self, op: Unary, x: usize) -> usize {
        self.note(Piece::Unary(op, x))
    }
    fn binary(self, op: Binary, a: usize, b: usize) -> usize {
        self.note(Piece::Binary(op, a, b))
    }
    fn select(self, comparison: Comparison, of: [usize; 4]) -> usize {
        self.note(Piece::Select(comparison, of))
    }
}
