//! Asynchronous pipelines: every grain is an update of its own, and its backward sees the weights that its forward saw.
//!
//! A stage copies its weights when a grain comes in, and both pieces of the chunk take the copy. Its update runs right after its backward, so
//! nothing can be waited for that is known later: sums of earlier chunks' backward, as a norm over all weights takes them.

use super::bonds::givers;
use super::{LowerError, Mesh};
use crate::error::ProgramError;
use crate::mesh::{Chunked, Phase, Piece};
use crate::op::{Op, Role};
use crate::passes::rewrite::Rewriter;
use crate::program::Program;

/// The value that a weight is kept in for a grain.
pub(super) fn kept_name(weight: &str) -> String {
    format!("kept/{weight}")
}

/// Whether a program can run so, or why not.
pub(super) fn check_asynchronous(chunked: &Chunked, mesh: Mesh) -> Result<(), LowerError> {
    if mesh.data > 1 || mesh.tensor > 1 {
        return Err(LowerError::AsynchronousMesh { mesh });
    }
    for parameter in &chunked.parameters {
        let mut stages = parameter.chunks.iter().map(|chunk| chunk % mesh.pipeline);
        let home = stages.next();
        if stages.any(|stage| Some(stage) != home) {
            return Err(LowerError::AsynchronousTied { name: parameter.name.clone() });
        }
    }
    let givers = givers(chunked)?;
    let once_a_step = |phase: Phase| matches!(phase, Phase::Prepare | Phase::Update);
    for taker in chunked.pieces.iter().filter(|piece| once_a_step(piece.phase)) {
        for (name, _) in taker.piece.program.inputs() {
            let Some(gift) = givers.get(name) else { continue };
            let giver = &chunked.pieces[gift.giver];
            // On its way back a grain comes to the last chunk first.
            let is_known = giver.phase == Phase::Forward || giver.chunk >= taker.chunk;
            if !is_known {
                let (piece, name) = (taker.piece.name.clone(), name.to_string());
                return Err(LowerError::AsynchronousAcross { piece, name });
            }
        }
    }
    Ok(())
}

/// The piece with weights as inputs that take what was kept of them.
pub(super) fn taking_kept(piece: &Piece) -> Result<Piece, ProgramError> {
    let last = piece.last.as_ref().map(with_kept).transpose()?;
    Ok(Piece { name: piece.name.clone(), program: with_kept(&piece.program)?, last })
}

fn with_kept(program: &Program) -> Result<Program, ProgramError> {
    let mut rewriter = Rewriter::new(program);
    for node in program.nodes() {
        match &node.op {
            Op::Parameter { name, dtype, shape, role: Role::Weight, .. } => {
                let (name, dtype, shape) = (kept_name(name), *dtype, shape.clone());
                rewriter.replace(node, Op::Input { name, dtype, shape }, &[])?;
            }
            _ => rewriter.keep(node)?,
        }
    }
    rewriter.finish()
}
