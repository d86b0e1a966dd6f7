//! Rules of norms, pooling, softmax, attention and dropout.

use super::{Rule, Site};
use crate::error::ProgramError;
use crate::mesh::tensor::layout::{Cut, Layout};
use crate::mesh::tensor::parts::Parts;
use crate::op::{AttentionSpec, Binary, Op};
use crate::program::Node;

pub(super) fn rule(site: &Site<'_, '_>) -> Option<Rule> {
    let op = site.node.op.clone();
    let n = site.node.operands.len();
    let cut = (0..n).find_map(|operand| site.cut(operand))?;
    let last = site.shape(0).len().checked_sub(1)?;
    let own = Layout::Split(cut.clone());
    let at = |axis: usize| Layout::Split(cut.at(axis));
    match &op {
        Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::AveragePool(_) | Op::AveragePoolGrad { .. }
            if cut.axis == last =>
        {
            Some(Rule::one(vec![own.clone(); n], op, own))
        }
        Op::Softmax | Op::LogSoftmax | Op::SoftmaxGrad | Op::LogSoftmaxGrad if cut.axis != last => {
            Some(Rule::one(vec![own.clone(); n], op, own))
        }
        // Channels do not see each other.
        Op::BatchNorm { .. } if site.cut(0)?.axis == last => {
            let operands = vec![own.clone(), at(0), at(0)];
            Some(Rule { operands, op, results: vec![own, at(0), at(0)] })
        }
        Op::BatchNormGrad { .. } if site.cut(0)?.axis == last => {
            let operands = vec![own.clone(), at(0), at(0), at(0), own.clone()];
            Some(Rule { operands, op, results: vec![own, at(0), at(0)] })
        }
        Op::Attention(spec) | Op::AttentionGrad(spec) => attention(site, spec, &cut),
        _ => None,
    }
}

/// Attention is cut by heads: queries, keys and values alike, and all heads of a part are its own.
fn attention(site: &Site<'_, '_>, spec: &AttentionSpec, cut: &Cut) -> Option<Rule> {
    let n_parts = site.n_parts();
    if cut.axis != 2 || cut.blocks.len() != 1 || !spec.heads.is_multiple_of(n_parts) {
        return None;
    }
    let by_heads = |operand: usize| {
        let size = site.shape(operand)[2];
        Some(Layout::Split(Cut::even(2, size, 1, n_parts)?))
    };
    let own = AttentionSpec { heads: spec.heads / n_parts, ..spec.clone() };
    let n = site.node.operands.len();
    let is_mask = |operand: usize| spec.masked && operand == 3;
    let layout = |operand: usize| match is_mask(operand) {
        true => Some(Layout::Whole),
        false => by_heads(operand),
    };
    let operands: Vec<Layout> = (0..n).map(layout).collect::<Option<_>>()?;
    match &site.node.op {
        Op::Attention(_) => Some(Rule::one(operands, Op::Attention(own), by_heads(2)?)),
        _ => {
            let results = operands[..3].to_vec();
            Some(Rule { operands, op: Op::AttentionGrad(own), results })
        }
    }
}

/// Dropout of a cut value. Random numbers depend on the place of an element in the whole, so the mask is made of the whole and each part
/// takes its share of it.
pub(super) fn dropout(parts: &mut Parts<'_>, node: &Node) -> Result<bool, ProgramError> {
    let Op::Dropout { key, .. } = &node.op else { return Ok(false) };
    let layout = parts.layout(node.operands[0]);
    let Some(cut) = layout.cut() else { return Ok(false) };
    let mask = match parts.masks.get(key) {
        Some((known, mask)) if known == cut => *mask,
        _ => {
            let whole = parts.old.ty(node.operands[0]).clone();
            let mut operands = vec![parts.full(&whole, 1.0)?];
            for &operand in &node.operands[1..] {
                operands.push(parts.get(operand, &Layout::Whole)?);
            }
            let mask = parts.emit(node.op.clone(), &operands)?;
            parts.share(mask, cut)?
        }
    };
    parts.masks.insert(*key, (cut.clone(), mask));
    let value = parts.get(node.operands[0], &layout)?;
    let result = parts.emit(Op::Binary(Binary::Mul), &[value, mask])?;
    parts.bind(node.results[0], layout, result)?;
    Ok(true)
}
