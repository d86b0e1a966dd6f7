//! Which parameters are cut: as was asked, what follows from that, and, where nothing was said, weights whose cut needs no gathering.

use super::layout::Cut;
use super::{Annotations, Cuts, SplitError, StaysWhole, Wish, Written, write};
use crate::error::ProgramError;
use crate::op::{Op, Role};
use crate::program::{Program, ValueId};

/// Into how many blocks the columns of a weight may be divided: halves of a gate, queries with keys and values, gates of a cell.
const MOST_BLOCKS: usize = 4;
/// The largest number of parts that a message proposes.
const MOST_PROPOSED: usize = 64;

/// The cuts of parameters, and why weights stay whole.
pub(super) fn cuts(
    program: &Program,
    n_parts: usize,
    wishes: &Annotations,
) -> Result<(Cuts, Vec<StaysWhole>), SplitError> {
    let mut search = Search { program, n_parts, wishes, cuts: Cuts::new(), n_gathered: 0 };
    for (name, wish) in &wishes.parameters {
        search.wished(name, wish)?;
    }
    let mut whole = Vec::new();
    if wishes.rest {
        for (name, role, value) in program.parameters() {
            let said = wishes.parameters.contains_key(name) || search.cuts.contains_key(name);
            if role != Role::Weight || said || program.ty(value).shape.rank() < 2 {
                continue;
            }
            if let Some(reason) = search.tried(name, value)? {
                whole.push(StaysWhole { name: name.to_string(), reason });
            }
        }
    }
    whole.retain(|stays| !search.cuts.contains_key(&stays.name));
    Ok((search.cuts, whole))
}

struct Search<'a> {
    program: &'a Program,
    n_parts: usize,
    wishes: &'a Annotations,
    cuts: Cuts,
    /// Values that must be gathered under these cuts.
    n_gathered: usize,
}

impl Search<'_> {
    fn wished(&mut self, name: &str, wish: &Wish) -> Result<(), SplitError> {
        let found = self.program.parameters().find(|(known, ..)| *known == name);
        let Some((_, _, value)) = found else {
            return Err(SplitError::NoSuchParameter { name: name.to_string() });
        };
        let &Wish::Axis { axis, blocks } = wish else { return Ok(()) };
        let shape = &self.program.ty(value).shape;
        let Some(&size) = shape.get(axis) else {
            let (name, rank) = (name.to_string(), shape.rank());
            return Err(SplitError::NoSuchAxis { name, axis, rank });
        };
        let Some(cut) = Cut::even(axis, size, blocks, self.n_parts) else {
            let fits = |n: &usize| Cut::even(axis, size, blocks, *n).is_some();
            let fitting = (1..=MOST_PROPOSED).filter(fits).collect();
            let (name, n_parts) = (name.to_string(), self.n_parts);
            return Err(SplitError::Size { name, axis, size, blocks, n_parts, fitting });
        };
        let alone = Cuts::from([(name.to_string(), cut.clone())]);
        let written = write(self.program, self.n_parts, 1, &alone)?;
        if let Some(heads) = written.gathered.iter().find_map(|(_, at)| self.odd_heads(*at)) {
            let fitting = (1..=heads).filter(|n| heads.is_multiple_of(*n)).collect();
            let (name, n_parts) = (name.to_string(), self.n_parts);
            return Err(SplitError::Heads { name, heads, n_parts, fitting });
        }
        self.cuts.insert(name.to_string(), cut);
        let cuts = self.cuts.clone();
        self.n_gathered = self.settled(cuts)?.gathered.len();
        Ok(())
    }

    /// The heads of the attention at a node, if they do not fit the parts.
    fn odd_heads(&self, node_idx: usize) -> Option<usize> {
        match &self.program.nodes().get(node_idx)?.op {
            Op::Attention(spec) | Op::AttentionGrad(spec)
                if !spec.heads.is_multiple_of(self.n_parts) =>
            {
                Some(spec.heads)
            }
            _ => None,
        }
    }

    /// Lets parameters follow these cuts until none is left that would, and keeps them.
    fn settled(&mut self, mut cuts: Cuts) -> Result<Written, ProgramError> {
        loop {
            let mut written = write(self.program, self.n_parts, 1, &cuts)?;
            let following = std::mem::take(&mut written.following);
            let n_before = cuts.len();
            for (name, cut) in following {
                let kept_whole = self.wishes.parameters.get(&name) == Some(&Wish::Whole);
                if !kept_whole {
                    cuts.entry(name).or_insert(cut);
                }
            }
            if cuts.len() == n_before {
                self.cuts = cuts;
                return Ok(written);
            }
        }
    }

    /// Cuts a weight if that needs no gathering; else says what stands against it.
    fn tried(&mut self, name: &str, value: ValueId) -> Result<Option<String>, ProgramError> {
        let Some((axis, most_blocks)) = self.columns(value) else {
            return Ok(Some("no product, convolution or lookup uses it".to_string()));
        };
        let size = self.program.ty(value).shape[axis];
        let mut reason = None;
        for blocks in 1..=most_blocks {
            let Some(cut) = Cut::even(axis, size, blocks, self.n_parts) else { continue };
            let mut cuts = self.cuts.clone();
            cuts.insert(name.to_string(), cut);
            let written = write(self.program, self.n_parts, 1, &cuts)?;
            if written.gathered.len() <= self.n_gathered {
                self.settled(cuts)?;
                return Ok(None);
            }
            // Heads that do not fit say more than what happens when they are not looked at.
            let heads = written.gathered.iter().find(|(_, at)| self.odd_heads(*at).is_some());
            let heads = heads.map(|&at| self.needed_whole(at));
            let first = || written.gathered.last().map(|&at| self.needed_whole(at));
            reason = heads.or(reason).or_else(first);
        }
        let odd = || {
            format!(
                "its size of {size} along axis {axis} does not divide into {} parts",
                self.n_parts
            )
        };
        Ok(Some(reason.unwrap_or_else(odd)))
    }

    fn needed_whole(&self, (value, node_idx): (ValueId, usize)) -> String {
        let by = match self.program.nodes().get(node_idx) {
            Some(node) if node.scope.is_empty() => format!("`{}`", node.op.name()),
            Some(node) => format!("`{}` of {}", node.op.name(), node.scope),
            None => "an output".to_string(),
        };
        let odd = match self.odd_heads(node_idx) {
            Some(heads) => {
                format!(", whose {heads} heads do not divide into {} parts", self.n_parts)
            }
            None => String::new(),
        };
        format!("{by}{odd} needs all of {}", self.program.describe(value))
    }

    /// The axis of a weight that becomes an axis of what it is first used for, and into how many blocks that may be divided.
    fn columns(&self, weight: ValueId) -> Option<(usize, usize)> {
        let rank = self.program.ty(weight).shape.rank();
        self.program.nodes().iter().find_map(|node| {
            let at = node.operands.iter().position(|&operand| operand == weight)?;
            match (&node.op, at) {
                (Op::Matmul { transpose_rhs, .. }, 1) => {
                    Some((rank - 1 - usize::from(*transpose_rhs), MOST_BLOCKS))
                }
                (Op::Convolution(_), 1) => Some((rank - 1, 1)),
                (Op::Gather { axis: 0 }, 0) => Some((0, 1)),
                _ => None,
            }
        })
    }
}
