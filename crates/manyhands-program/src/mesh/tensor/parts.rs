//! The programs of all parts while they are written, side by side: the same operations in the same order, so that a value has the same
//! id in all of them. What differs from part to part are attributes.

use std::collections::HashMap;

use super::layout::{Cut, Layout, shaped};
use crate::dtype::DType;
use crate::error::ProgramError;
use crate::op::{Binary, Op};
use crate::program::{Program, ValueId};
use crate::shape::{Shape, TensorType};
use crate::tensor::Tensor;

/// An index into a table cut along its rows, as each part sees it.
#[derive(Clone, Copy)]
pub(super) struct Lookup {
    /// The row among the part's own, 0 where it is none of them.
    pub(super) own: ValueId,
    /// Whether it is one of them.
    pub(super) inside: ValueId,
}

/// What cross-entropy and its gradient need of classes that are cut.
#[derive(Clone, Copy)]
pub(super) struct Classes {
    /// Of each sample, over all classes: the sum of the powers.
    pub(super) sum: ValueId,
    /// Of each sample: the logit of its label, less the largest.
    pub(super) of_label: ValueId,
    /// Of the part's classes: e to the power of the logit less the largest.
    pub(super) powers: ValueId,
    /// Of the part's classes: whether it is the label.
    pub(super) is_label: ValueId,
}

/// What is done to a block of an axis: to the value, along the axis, a block being so large.
type OfBlock<'a> = dyn Fn(&mut Parts<'a>, ValueId, usize, usize) -> Result<ValueId, ProgramError>;

/// The programs of the parts so far, and the values in them that stand for those of the whole program.
pub(super) struct Parts<'a> {
    pub(super) old: &'a Program,
    pub(super) n_parts: usize,
    pub(super) programs: Vec<Program>,
    /// By old value: the forms in which it is there.
    forms: Vec<Vec<(Layout, ValueId)>>,
    pub(super) uses: Vec<usize>,
    /// Split values that had to be gathered, as the whole program calls them, with the operation that asked.
    pub(super) gathered: Vec<(ValueId, usize)>,
    /// Masks of dropout by key, each with its cut.
    pub(super) masks: HashMap<u64, (Cut, ValueId)>,
    /// Rows that were looked up in tables cut along their rows, by index and size of the table.
    pub(super) lookups: HashMap<(ValueId, usize), Lookup>,
    /// Logits cut along the classes and their labels, where a cross-entropy was written.
    pub(super) classes: HashMap<(ValueId, ValueId), Classes>,
    /// The operation of the whole program at hand.
    pub(super) node_idx: usize,
}

impl<'a> Parts<'a> {
    /// Starts the programs of the first `n_written` of `n_parts` parts.
    pub(super) fn new(old: &'a Program, n_parts: usize, n_written: usize) -> Parts<'a> {
        Parts {
            old,
            n_parts,
            programs: vec![Program::new(old.name()); n_written],
            forms: vec![Vec::new(); old.n_values()],
            uses: old.use_counts(),
            gathered: Vec::new(),
            masks: HashMap::new(),
            lookups: HashMap::new(),
            classes: HashMap::new(),
            node_idx: 0,
        }
    }

    fn scope(&self) -> &'a str {
        self.old.nodes().get(self.node_idx).map_or("", |node| &node.scope)
    }

    /// Adds an operation to every part, with the attributes that the part needs.
    pub(super) fn emit_each(
        &mut self,
        op: impl Fn(usize) -> Op,
        operands: &[ValueId],
    ) -> Result<Vec<ValueId>, ProgramError> {
        let scope = self.scope();
        let mut results = Vec::new();
        for (part, program) in self.programs.iter_mut().enumerate() {
            results = program.push(op(part), operands, scope)?;
        }
        Ok(results)
    }

    /// Adds an operation with one result to every part.
    pub(super) fn emit(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, ProgramError> {
        Ok(self.emit_each(|_| op.clone(), operands)?[0])
    }

    /// A scalar that differs from part to part.
    pub(super) fn scalar_each(
        &mut self,
        dtype: DType,
        value: impl Fn(usize) -> f64,
    ) -> Result<ValueId, ProgramError> {
        Ok(self.emit_each(|part| Op::Constant(Tensor::scalar(dtype, value(part))), &[])?[0])
    }

    /// The same number everywhere.
    pub(super) fn full(&mut self, ty: &TensorType, value: f64) -> Result<ValueId, ProgramError> {
        let scalar = self.scalar_each(ty.dtype, |_| value)?;
        self.emit(Op::Broadcast { shape: ty.shape.clone(), axes: Vec::new() }, &[scalar])
    }

    /// The type of a new value on a part.
    pub(super) fn ty(&self, value: ValueId) -> &TensorType {
        self.programs[0].ty(value)
    }

    /// How an old value lies: as it was made, or whole if its summands were added up since.
    pub(super) fn layout(&self, old: ValueId) -> Layout {
        let forms = &self.forms[old.idx()];
        let made = forms.first().map_or(Layout::Whole, |(layout, _)| layout.clone());
        let added_up = || forms.iter().any(|(layout, _)| *layout == Layout::Whole);
        if made == Layout::Partial && added_up() { Layout::Whole } else { made }
    }

    /// Whether an old value is a summand that only one operation asks for.
    pub(super) fn is_partial(&self, old: ValueId) -> bool {
        self.layout(old) == Layout::Partial
    }

    /// Lets a new value stand for an old one. Summands that several ask for are added up at once.
    pub(super) fn bind(
        &mut self,
        old: ValueId,
        layout: Layout,
        new: ValueId,
    ) -> Result<(), ProgramError> {
        let several = layout == Layout::Partial && self.uses[old.idx()] > 1;
        let form = match several {
            true => (Layout::Whole, self.added_up(new)?),
            false => (layout, new),
        };
        self.forms[old.idx()].push(form);
        Ok(())
    }

    /// An old value as it is needed.
    pub(super) fn get(&mut self, old: ValueId, wanted: &Layout) -> Result<ValueId, ProgramError> {
        let found = self.forms[old.idx()].iter().find(|(layout, _)| layout == wanted);
        if let Some((_, value)) = found {
            return Ok(*value);
        }
        let value = match wanted {
            Layout::Split(cut) => match self.stretched(old, cut)? {
                Some(value) => value,
                None => {
                    let whole = self.get(old, &Layout::Whole)?;
                    self.share(whole, cut)?
                }
            },
            Layout::Whole => self.made_whole(old)?,
            // Part 0 has all of it, the others zeros.
            Layout::Partial => {
                let whole = self.get(old, &Layout::Whole)?;
                let ty = self.ty(whole).clone();
                let own = self.scalar_each(ty.dtype, |part| f64::from(u8::from(part == 0)))?;
                let own =
                    self.emit(Op::Broadcast { shape: ty.shape.clone(), axes: Vec::new() }, &[own])?;
                self.emit(Op::Binary(Binary::Mul), &[whole, own])?
            }
        };
        self.forms[old.idx()].push((wanted.clone(), value));
        Ok(value)
    }

    /// A value that is the same all along the axis is stretched to the share of a part; nothing is cut out of it.
    fn stretched(&mut self, old: ValueId, cut: &Cut) -> Result<Option<ValueId>, ProgramError> {
        let node = self.old.definer(old);
        let Op::Broadcast { shape, axes } = &node.op else { return Ok(None) };
        let own = &self.old.ty(node.operands[0]).shape;
        let from = axes.iter().position(|&axis| axis == cut.axis);
        if from.is_some_and(|axis| own[axis] == shape[cut.axis]) {
            return Ok(None);
        }
        let operand = self.get(node.operands[0], &Layout::Whole)?;
        let shape = cut.local(shape, self.n_parts);
        self.emit(Op::Broadcast { shape, axes: axes.clone() }, &[operand]).map(Some)
    }

    fn made_whole(&mut self, old: ValueId) -> Result<ValueId, ProgramError> {
        let Some((layout, value)) = self.forms[old.idx()].first().cloned() else {
            let (op, operands) = (self.old.definer(old).op.name().to_string(), Vec::new());
            let problem = Box::new(crate::Problem::Undefined { value: old.to_string() });
            return Err(ProgramError::Operation { op, operands, problem, at: None });
        };
        match layout {
            Layout::Whole => Ok(value),
            Layout::Partial => self.added_up(value),
            Layout::Split(cut) => {
                self.gathered.push((old, self.node_idx));
                self.gather(value, &cut, &self.old.ty(old).clone())
            }
        }
    }

    /// Each part puts its share into zeros of the whole shape, and the sum is the whole, exactly.
    fn gather(
        &mut self,
        value: ValueId,
        cut: &Cut,
        whole: &TensorType,
    ) -> Result<ValueId, ProgramError> {
        let moved = summed_as(whole.dtype);
        let value = self.cast(value, moved)?;
        let zero = self.scalar_each(moved, |_| 0.0)?;
        let n_parts = self.n_parts;
        let placed =
            self.by_blocks(value, cut, &whole.shape, &move |parts, piece, axis, block| {
                let rank = parts.ty(piece).shape.rank();
                let share = block / n_parts;
                let pad = |part: usize| {
                    let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
                    low[axis] = part * share;
                    high[axis] = block - (part + 1) * share;
                    Op::Pad { low, high, interior: vec![0; rank] }
                };
                Ok(parts.emit_each(pad, &[piece, zero])?[0])
            })?;
        let sum = self.emit(Op::AllReduce, &[placed])?;
        self.cast(sum, whole.dtype)
    }

    /// The sum over all parts. Integers travel as doubles.
    fn added_up(&mut self, value: ValueId) -> Result<ValueId, ProgramError> {
        let dtype = self.ty(value).dtype;
        let moved = self.cast(value, summed_as(dtype))?;
        let sum = self.emit(Op::AllReduce, &[moved])?;
        self.cast(sum, dtype)
    }

    fn cast(&mut self, value: ValueId, dtype: DType) -> Result<ValueId, ProgramError> {
        match self.ty(value).dtype == dtype {
            true => Ok(value),
            false => self.emit(Op::Cast { dtype }, &[value]),
        }
    }

    /// The share of each part, cut out of a whole value.
    pub(super) fn share(&mut self, whole: ValueId, cut: &Cut) -> Result<ValueId, ProgramError> {
        let (n_parts, shape) = (self.n_parts, self.ty(whole).shape.clone());
        let local = cut.local(&shape, n_parts);
        self.by_blocks(whole, cut, &local, &move |parts, piece, axis, block| {
            let shape = parts.ty(piece).shape.clone();
            let share = block / n_parts;
            let slice = |part: usize| {
                let (mut start, mut limit) = (vec![0; shape.rank()], shape.to_vec());
                start[axis] = part * share;
                limit[axis] = (part + 1) * share;
                Op::Slice { start, limit, stride: vec![1; shape.rank()] }
            };
            Ok(parts.emit_each(slice, &[piece])?[0])
        })
    }

    /// Does something to each block of an axis, and joins the results to a shape. Equal blocks are done as one, as an axis of blocks
    /// and one within them.
    fn by_blocks(
        &mut self,
        value: ValueId,
        cut: &Cut,
        to: &Shape,
        one: &OfBlock<'a>,
    ) -> Result<ValueId, ProgramError> {
        let (axis, first) = (cut.axis, cut.blocks[0]);
        let shape = self.ty(value).shape.clone();
        if cut.blocks.len() == 1 {
            return one(self, value, axis, first);
        }
        if cut.blocks.iter().all(|&block| block == first) {
            let mut apart = shape.to_vec();
            apart[axis] = shape[axis] / cut.blocks.len();
            apart.insert(axis, cut.blocks.len());
            let apart = self.emit(Op::Reshape { shape: apart.into() }, &[value])?;
            let done = one(self, apart, axis + 1, first)?;
            return self.emit(Op::Reshape { shape: to.clone() }, &[done]);
        }
        let total: usize = cut.blocks.iter().sum();
        let (mut at, mut pieces) = (0, Vec::new());
        for &block in &cut.blocks {
            // Either the whole axis is there or the share of a part.
            let size = block * shape[axis] / total;
            let (mut start, mut limit) = (vec![0; shape.rank()], shape.to_vec());
            (start[axis], limit[axis]) = (at, at + size);
            at += size;
            let slice = Op::Slice { start, limit, stride: vec![1; shape.rank()] };
            let piece = self.emit(slice, &[value])?;
            pieces.push(one(self, piece, axis, block)?);
        }
        self.emit(Op::Concatenate { axis }, &pieces)
    }

    /// The type of an old value on a part under a layout.
    pub(super) fn local_type(&self, old: ValueId, layout: &Layout) -> TensorType {
        let ty = self.old.ty(old);
        match layout.cut() {
            Some(cut) => shaped(ty, cut.local(&ty.shape, self.n_parts)),
            None => ty.clone(),
        }
    }
}

/// The element type in which values of another are summed over parts.
fn summed_as(dtype: DType) -> DType {
    match dtype {
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => dtype,
        DType::Bool | DType::U8 => DType::F32,
        DType::I32 | DType::I64 => DType::F64,
    }
}
