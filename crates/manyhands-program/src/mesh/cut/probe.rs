//! What is run to know how long operations take: the grain half in parts that are small enough to tell layers apart, and large enough that a device fuses
//! in them what it fuses in a whole.

use super::grain::Grain;
use super::{CutError, Cutting, Places, grain_pieces, places, split_alike};
use crate::cost::Cost;
use crate::program::Program;

/// The most parts, forward and backward, into which the grain half is taken apart.
const MOST_PARTS: usize = 96;

/// The grain half of a training program in parts, each a program that can be run by itself.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The parts. Their inputs may have any values.
    pub programs: Vec<Program>,
    /// By node of the grain half: the part that computes it, and its share of what that part counts. Nodes that are made wherever they are used are in none.
    shares: Vec<Option<(usize, f64)>>,
}

/// What operations take on a machine, by node of the grain half that a cut divides.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredCosts {
    /// The number of tensor parts that the program was split into.
    pub n_parts: usize,
    /// Whether the program was simplified, which decides on its nodes.
    pub simplifies: bool,
    /// By node: seconds.
    pub seconds: Vec<f64>,
    /// What a byte that crosses a cut takes of each side.
    pub seconds_per_byte: f64,
}

/// Takes the grain half of a training program apart, simplified or not, at the edges of layers where they have names.
pub fn probe(program: &Program, simplifies: bool) -> Result<Probe, CutError> {
    let (_, split, _) = split_alike(program, None, simplifies)?;
    let grain = Grain::of(&split)?;
    let starts = starts(&grain, MOST_PARTS / 2);
    let n_chunks = starts.len() + 1;
    let cutting = Cutting { places: Places::At(starts), ..Cutting::balanced(n_chunks) };
    let of_spine = places::chunks_of_spine(&grain, &cutting)?;
    let chunks = grain.place(&of_spine, n_chunks);
    let pieces = grain_pieces(&grain, &split, &chunks, &cutting, "v".to_string());
    let turns: Vec<_> = pieces.contents.keys().copied().collect();
    let counted = |node: usize| {
        // Nothing is free of cost: a part whose operations count nothing takes time as well.
        1.0 + Cost::of_node(&split.grain, &split.grain.nodes()[node]).weight() as f64
    };
    let mut sums = vec![0.0; turns.len()];
    let mut part_of = vec![None; chunks.len()];
    for (node, part) in part_of.iter_mut().enumerate() {
        let turn = pieces.turn(node);
        *part = turn.and_then(|turn| turns.binary_search(&turn).ok());
        if let Some(part) = *part {
            sums[part] += counted(node);
        }
    }
    let share = |(node, part): (usize, Option<usize>)| {
        part.map(|part| (part, counted(node) / f64::max(sums[part], 1.0)))
    };
    let shares = part_of.into_iter().enumerate().map(share).collect();
    let programs = pieces.emit(None)?.into_iter().map(|own| own.piece.program).collect();
    Ok(Probe { programs, shares })
}

impl Probe {
    /// The seconds of every node, where those of each part are known.
    pub fn of_nodes(&self, seconds: &[f64]) -> Vec<f64> {
        let of_part = |part: usize| seconds.get(part).copied().unwrap_or(0.0);
        let own = self.shares.iter();
        own.map(|share| share.map_or(0.0, |(part, share)| of_part(part) * share)).collect()
    }
}

/// The positions on the way to the loss at which parts begin, but for the first: where a layer begins, or a larger one where there are too many, or every so
/// many operations where layers have no names.
fn starts(grain: &Grain<'_>, most: usize) -> Vec<usize> {
    let scope = |at: usize| grain.graph.program.nodes()[grain.spine[at]].scope.as_str();
    let n = grain.spine.len();
    let deepest = (0..n).map(|at| scope(at).split('/').count()).max().unwrap_or(1);
    for depth in (1..=deepest).rev() {
        let layer = |at: usize| scope(at).split('/').take(depth).collect::<Vec<_>>();
        let found: Vec<usize> = (1..n).filter(|&at| layer(at) != layer(at - 1)).collect();
        if !found.is_empty() && found.len() < most {
            return found;
        }
    }
    let every = n.div_ceil(most).max(1);
    (1..n).filter(|at| at % every == 0).collect()
}
