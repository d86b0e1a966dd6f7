//! Rules of products: a sum over a cut axis gives summands, a free axis stays cut.

use super::{Rule, Site};
use crate::mesh::tensor::layout::{Cut, Layout};
use crate::op::Op;

pub(super) fn matmul(site: &Site<'_, '_>) -> Option<Rule> {
    let Op::Matmul { transpose_lhs, transpose_rhs } = site.node.op else { return None };
    let (l, r) = (site.shape(0).len(), site.shape(1).len());
    let (row, inner) = if transpose_lhs { (l - 1, l - 2) } else { (l - 2, l - 1) };
    let (own_inner, column) = if transpose_rhs { (r - 1, r - 2) } else { (r - 2, r - 1) };
    let op = || site.node.op.clone();
    let (lhs, rhs) = (site.layout(0), site.layout(1));
    let split = |cut: &Cut, axis: usize| Layout::Split(cut.at(axis));
    // Of two operands that are cut along free axes, only one can stay so.
    let is_free = rhs.cut_at(column).is_some();
    if let Some(cut) = lhs.cut_at(inner).filter(|_| !is_free).or(rhs.cut_at(own_inner)) {
        let operands = vec![split(cut, inner), split(cut, own_inner)];
        return Some(Rule::one(operands, op(), Layout::Partial));
    }
    if let Some(cut) = rhs.cut_at(column) {
        return Some(Rule::one(vec![Layout::Whole, rhs.clone()], op(), split(cut, l - 1)));
    }
    if let Some(cut) = lhs.cut_at(row) {
        return Some(Rule::one(vec![lhs.clone(), Layout::Whole], op(), split(cut, l - 2)));
    }
    // What is left are the axes in front.
    let cut = lhs.cut().or(rhs.cut())?;
    let of_rhs = if r > 2 { split(cut, cut.axis) } else { Layout::Whole };
    Some(Rule::one(vec![split(cut, cut.axis), of_rhs], op(), split(cut, cut.axis)))
}

/// Convolutions and their gradients, cut along channels or features; groups see only their own channels, so they stay together.
pub(super) fn convolution(site: &Site<'_, '_>) -> Option<Rule> {
    let op = site.node.op.clone();
    let (Op::Convolution(window)
    | Op::ConvolutionInputGrad { window, .. }
    | Op::ConvolutionKernelGrad { window, .. }) = &op
    else {
        return None;
    };
    let last = site.shape(0).len() - 1;
    if window.groups != 1 {
        return None;
    }
    let split = |cut: &Cut, axis: usize| Layout::Split(cut.at(axis));
    let (channels, features) = (last - 1, last);
    let (first, second) = (site.layout(0), site.layout(1));
    let whole = Layout::Whole;
    let (operands, result) = match &op {
        Op::Convolution(_) => {
            let contracted = first.cut_at(last).filter(|_| second.cut_at(features).is_none());
            match (contracted.or(second.cut_at(channels)), second.cut_at(features)) {
                (Some(cut), _) => ([split(cut, last), split(cut, channels)], Layout::Partial),
                (None, Some(cut)) => ([whole, second.clone()], split(cut, last)),
                _ => return None,
            }
        }
        Op::ConvolutionInputGrad { .. } => {
            let contracted = first.cut_at(last).filter(|_| second.cut_at(channels).is_none());
            match (contracted.or(second.cut_at(features)), second.cut_at(channels)) {
                (Some(cut), _) => ([split(cut, last), split(cut, features)], Layout::Partial),
                (None, Some(cut)) => ([whole, second.clone()], split(cut, last)),
                _ => return None,
            }
        }
        _ => match (first.cut_at(last), second.cut_at(last)) {
            (Some(cut), _) => ([first.clone(), whole], split(cut, channels)),
            (None, Some(cut)) => ([whole, second.clone()], split(cut, features)),
            _ => return None,
        },
    };
    Some(Rule::one(operands.to_vec(), op, result))
}
