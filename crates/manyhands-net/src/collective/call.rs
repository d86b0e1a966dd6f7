//! What an operation is called, as it stands at the head of every frame: ranks that call different ones find out at once.

use std::fmt;
use std::ops::Range;

use super::element::{Element, ElementType, Reduction};

/// Bytes at the head of a frame.
pub(super) const HEADER: usize = 48;
/// The kind of a frame that says where a rank is, instead of what was expected of it.
pub(super) const WHERE: u8 = 255;

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// All have the reduction of all.
    AllReduce = 1,
    /// Each has its part of the reduction.
    ReduceScatter,
    /// All have what each brought.
    AllGather,
    /// Each has something for each.
    AllToAll,
    /// All have what the root brought.
    Broadcast,
    /// The root has the reduction of all.
    Reduce,
    /// The root has what each brought.
    Gather,
    /// Each has its part of what the root brought.
    Scatter,
    /// All have come here.
    Barrier,
    /// One to one.
    Send,
}

const NAMES: [(Kind, &str); 10] = [
    (Kind::AllReduce, "all_reduce"),
    (Kind::ReduceScatter, "reduce_scatter"),
    (Kind::AllGather, "all_gather"),
    (Kind::AllToAll, "all_to_all"),
    (Kind::Broadcast, "broadcast"),
    (Kind::Reduce, "reduce"),
    (Kind::Gather, "gather"),
    (Kind::Scatter, "scatter"),
    (Kind::Barrier, "barrier"),
    (Kind::Send, "send"),
];

/// One call of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which call it is, from 0; between two ranks for send and receive.
    pub number: u64,
    kind: u8,
    element: u8,
    reduction: u8,
    /// The root, or what tells apart ways of doing the same.
    extra: u8,
    /// Elements, where all ranks must have as many.
    n: u64,
    /// What stands for who brings what, where that is not plain.
    sharing: u64,
}

impl Call {
    pub(super) fn new<T: Element>(number: u64, kind: Kind, n: usize) -> Call {
        let (kind, element) = (kind as u8, T::TYPE as u8);
        Call { number, kind, element, reduction: 0, extra: 0, n: n as u64, sharing: 0 }
    }

    pub(super) fn reducing(self, reduction: Reduction) -> Call {
        Call { reduction: reduction as u8, ..self }
    }

    pub(super) fn with(self, extra: usize) -> Call {
        Call { extra: extra as u8, ..self }
    }

    /// A part of the same call, which frames of other parts are not taken for.
    pub(super) fn stage(self, stage: usize) -> Call {
        Call { extra: self.extra + stage as u8, ..self }
    }

    /// All ranks must mean the same sharing of so many leaves.
    pub(super) fn sharing(self, n_leaves: usize, brings: &[Vec<Range<usize>>]) -> Call {
        let edges = |range: &Range<usize>| [range.start as u64, range.end as u64];
        let ranks = brings.iter().flat_map(|own| {
            std::iter::once(u64::MAX).chain(own.iter().flat_map(edges).collect::<Vec<_>>())
        });
        // FNV-1a over words: a check against mistakes, not against malice.
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        let sharing = ranks.fold(mix(0xcbf2_9ce4_8422_2325, n_leaves as u64), mix);
        Call { sharing, ..self }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = NAMES.iter().find(|(kind, _)| *kind as u8 == self.kind);
        let kind = kind.map_or("an unknown operation", |(_, name)| *name);
        let element = ElementType::name_of(self.element);
        match self.kind {
            kind if kind == Kind::Barrier as u8 => write!(f, "barrier")?,
            _ if self.n == 0 => write!(f, "{kind} of {element}")?,
            _ => write!(f, "{kind} of {} {element}", self.n)?,
        }
        if self.reduction != 0 {
            write!(f, " ({})", Reduction::name_of(self.reduction))?;
        }
        write!(f, ", call {}", self.number)
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) call: Call,
    /// Which frame of the operation between the two ranks it is.
    pub(super) frame: u32,
    pub(super) n_bytes: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let call = &self.call;
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&call.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&call.n.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.n_bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.frame.to_le_bytes());
        bytes[28..32].copy_from_slice(&[call.kind, call.element, call.reduction, call.extra]);
        bytes[32..40].copy_from_slice(&call.sharing.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEADER]) -> Header {
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let [kind, element, reduction, extra] = [bytes[28], bytes[29], bytes[30], bytes[31]];
        let (n, sharing) = (number(8), number(32));
        let call = Call { number: number(0), n, kind, element, reduction, extra, sharing };
        let frame = number(24) as u32;
        Header { call, frame, n_bytes: number(16) }
    }

    /// A frame that says that this rank is in `call`, and fails there.
    pub(super) fn saying_where(call: Call, n_bytes: usize) -> Header {
        // The kind of the call moves to where roots are written.
        let call = Call { extra: call.kind, kind: WHERE, ..call };
        Header { call, frame: 0, n_bytes: n_bytes as u64 }
    }

    /// Where the sender is, if that is what the frame says.
    pub(super) fn said_where(&self) -> Option<Call> {
        let call = self.call;
        (call.kind == WHERE).then_some(Call { kind: call.extra, extra: 0, ..call })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_frames_survive_the_wire() {
        let call = Call::new::<f32>(7, Kind::AllReduce, 1024).reducing(Reduction::Mean).with(3);
        let header = Header { call, frame: 9, n_bytes: 4096 };
        assert_eq!(Header::decode(&header.encode()), header);
        let place = Header::decode(&Header::saying_where(call, 12).encode());
        let said = place.said_where().map(|call| call.to_string());
        assert_eq!(said.as_deref(), Some("all_reduce of 1024 f32 (mean), call 7"));
        assert!(header.said_where().is_none());
    }
}
