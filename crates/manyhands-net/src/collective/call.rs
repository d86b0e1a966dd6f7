//! What an operation is called, as it stands at the head of every frame: ranks that call different ones find out at once.

use std::fmt;
use std::ops::Range;

use super::algorithm::Algorithm;
use super::element::{Element, ElementType, Reduction};

/// Bytes at the head of a frame.
pub(super) const HEADER: usize = 48;
/// The kind of a frame that says where a rank is, instead of what was expected of it.
const WHERE: u8 = 255;

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
    /// Two show each other where sums lie.
    SeeSums,
}

const NAMES: [(Kind, &str); 11] = [
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
    (Kind::SeeSums, "see_sums"),
];

/// Those whose `extra` is a root.
const ROOTED: [Kind; 4] = [Kind::Broadcast, Kind::Reduce, Kind::Gather, Kind::Scatter];

/// One call of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which call it is, from 0; between two ranks for send and receive.
    pub number: u64,
    kind: u8,
    element: u8,
    reduction: u8,
    /// The root, or the algorithm.
    extra: u8,
    /// The part of the operation that is at hand: no two that follow each other have the same.
    stage: u8,
    /// How many buckets there are, and which is at hand; none where all goes at once.
    n_buckets: u16,
    bucket: u32,
    /// Elements, where all ranks must have as many.
    n: u64,
    /// What stands for who brings what, where that is not plain.
    sharing: u64,
}

impl Call {
    pub(super) fn new<T: Element>(number: u64, kind: Kind, n: usize) -> Call {
        let (kind, element) = (kind as u8, T::TYPE as u8);
        let (reduction, extra, stage) = (0, 0, 0);
        let (n_buckets, bucket, n, sharing) = (0, 0, n as u64, 0);
        Call { number, kind, element, reduction, extra, stage, n_buckets, bucket, n, sharing }
    }

    pub(super) fn reducing(self, reduction: Reduction) -> Call {
        Call { reduction: reduction as u8, ..self }
    }

    pub(super) fn with(self, extra: usize) -> Call {
        Call { extra: extra as u8, ..self }
    }

    /// A part of the same call, which frames of other parts are not taken for.
    pub(super) fn stage(self, stage: usize) -> Call {
        Call { stage: stage as u8, ..self }
    }

    /// A bucket of the same call.
    pub(super) fn bucket(self, bucket: usize) -> Call {
        Call { bucket: bucket as u32, ..self }
    }

    /// All ranks must mean the same sharing of so many leaves.
    pub(super) fn sharing(self, n_leaves: usize, brings: &[Vec<Range<usize>>]) -> Call {
        let mut sharing = mix(self.sharing, n_leaves as u64);
        for own in brings {
            sharing = mix_ranges(mix(sharing, u64::MAX), own);
        }
        Call { sharing, ..self }
    }

    /// All ranks must mean the same buckets.
    pub(super) fn in_buckets(self, buckets: &[Range<usize>]) -> Call {
        let sharing = mix_ranges(mix(self.sharing, u64::MAX - 1), buckets);
        Call { sharing, n_buckets: buckets.len().min(u16::MAX as usize) as u16, ..self }
    }

    /// Whether it is between two ranks: such calls are numbered apart.
    pub(super) fn is_pair(&self) -> bool {
        self.kind == Kind::Send as u8
    }

    /// Whether another rank that is there is where this one can go on with it: in the same operation, and no bucket behind.
    pub(super) fn can_go_on_with(&self, there: &Call) -> bool {
        let same_place = Call { stage: self.stage, bucket: self.bucket, ..*there };
        *self == same_place && there.bucket >= self.bucket
    }
}

/// FNV-1a over words: a check against mistakes, not against malice.
fn mix(hash: u64, word: u64) -> u64 {
    let hash = if hash == 0 { 0xcbf2_9ce4_8422_2325 } else { hash };
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}

fn mix_ranges(hash: u64, ranges: &[Range<usize>]) -> u64 {
    ranges.iter().fold(hash, |hash, range| mix(mix(hash, range.start as u64), range.end as u64))
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
        match Algorithm::from_code(self.extra) {
            _ if ROOTED.iter().any(|kind| *kind as u8 == self.kind) => {
                write!(f, " with root {}", self.extra)?;
            }
            Some(algorithm) if self.kind == Kind::AllReduce as u8 => match algorithm {
                Algorithm::Auto => {}
                asked_for => write!(f, " by {}", asked_for.name())?,
            },
            _ => {}
        }
        if self.sharing != 0 {
            // Few digits tell apart what two ranks mean.
            write!(f, " shared as {:04x}", (self.sharing >> 32 ^ self.sharing) & 0xffff)?;
        }
        if self.n_buckets != 0 {
            write!(f, ", bucket {} of {}", self.bucket.saturating_add(1), self.n_buckets)?;
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
    /// Whether it says where the sender fails, instead of what was expected of it.
    pub(super) says_where: bool,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let call = &self.call;
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&call.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&call.n.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.n_bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.frame.to_le_bytes());
        let kind = if self.says_where { WHERE } else { call.kind };
        bytes[28..32].copy_from_slice(&[kind, call.element, call.reduction, call.extra]);
        bytes[32..40].copy_from_slice(&call.sharing.to_le_bytes());
        bytes[40..42].copy_from_slice(&[call.kind, call.stage]);
        bytes[42..44].copy_from_slice(&call.n_buckets.to_le_bytes());
        bytes[44..48].copy_from_slice(&call.bucket.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HEADER]) -> Header {
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let [element, reduction, extra] = [bytes[29], bytes[30], bytes[31]];
        let [kind, stage] = [bytes[40], bytes[41]];
        let n_buckets = u16::from_le_bytes([bytes[42], bytes[43]]);
        let bucket = (number(40) >> 32) as u32;
        let (n, sharing, number_of_call, n_bytes) = (number(8), number(32), number(0), number(16));
        let frame = number(24) as u32;
        let call = Call {
            number: number_of_call,
            kind,
            element,
            reduction,
            extra,
            stage,
            n_buckets,
            bucket,
            n,
            sharing,
        };
        Header { call, frame, n_bytes, says_where: bytes[28] == WHERE }
    }

    /// A frame of a call, of so many bytes.
    pub(super) fn new(call: Call, frame: usize, n_bytes: usize) -> Header {
        Header { call, frame: frame as u32, n_bytes: n_bytes as u64, says_where: false }
    }

    /// A frame that says that this rank is in `call`, and fails there.
    pub(super) fn saying_where(call: Call) -> Header {
        Header { says_where: true, ..Header::new(call, 0, 0) }
    }

    /// Where the sender is, if that is what the frame says.
    pub(super) fn said_where(&self) -> Option<Call> {
        self.says_where.then_some(self.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_frames_survive_the_wire() {
        let call = Call::new::<f32>(7, Kind::AllReduce, 1024).reducing(Reduction::Mean);
        let call = call.with(Algorithm::Ring as usize);
        let call = call.in_buckets(&[0..1000, 1000..1024]).bucket(1).stage(2);
        let header = Header::new(call, 9, 4096);
        assert_eq!(Header::decode(&header.encode()), header);
        let place = Header::decode(&Header::saying_where(call).encode());
        assert_eq!(place.said_where(), Some(call));
        let said = place.call.to_string();
        assert!(said.starts_with("all_reduce of 1024 f32 (mean) by ring shared as "), "{said}");
        assert!(said.ends_with(", bucket 2 of 2, call 7"), "{said}");
        assert!(header.said_where().is_none());
    }

    #[test]
    fn numbers_that_cannot_be_have_words_too() {
        let said = Header::decode(&[0xff; HEADER]).call.to_string();
        assert!(said.contains("bucket 4294967295 of 65535"), "{said}");
    }

    #[test]
    fn calls_are_told_apart_in_words() {
        let all_reduce = Call::new::<f32>(7, Kind::AllReduce, 10).reducing(Reduction::Sum);
        let auto = all_reduce.with(Algorithm::Auto as usize);
        assert_eq!(auto.to_string(), "all_reduce of 10 f32 (sum), call 7");
        let direct = all_reduce.with(Algorithm::Direct as usize);
        assert_eq!(direct.to_string(), "all_reduce of 10 f32 (sum) by direct exchange, call 7");
        let gather = Call::new::<u8>(8, Kind::Gather, 0).with(2);
        assert_eq!(gather.to_string(), "gather of u8 with root 2, call 8");
        assert_eq!(Call::new::<u8>(9, Kind::Barrier, 0).to_string(), "barrier, call 9");
    }

    #[test]
    fn who_is_in_another_operation_or_behind_is_no_help() {
        let call = Call::new::<f32>(7, Kind::AllReduce, 1024).in_buckets(&[0..1000, 1000..1024]);
        assert!(call.can_go_on_with(&call.stage(3)));
        assert!(call.can_go_on_with(&call.bucket(1)));
        assert!(!call.bucket(1).can_go_on_with(&call));
        assert!(!call.can_go_on_with(&call.with(2)));
        assert!(!call.can_go_on_with(&Call::new::<f32>(8, Kind::AllReduce, 1024)));
    }
}
