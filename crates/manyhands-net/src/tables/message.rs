//! What directors, servers and clients say to each other: a head of words, and numbers as bytes beside it.
//!
//! Everything is bounded before memory is taken for it, and what makes no sense is found before anything is done with it.

mod director;
mod numbers;

pub use director::{FromDirector, Holding, Opened, Reach, ToDirector};
pub use numbers::{floats, keys, keys_and_values};

use serde::{Deserialize, Serialize};

use super::error::TableError;
use super::identity::{ClientId, Place, ServerId, Term, Version};
use super::traffic::rounding::Rounding;

/// The version of what is said here. Both sides of a link must speak the same.
pub const VERSION: u32 = 4;
/// The longest head.
pub const LONGEST_HEAD: usize = 4 << 20;
/// The most bytes beside a head.
pub const MOST_BYTES: usize = 1 << 30;
/// Saved states and copies travel in pieces of at most this.
pub const PIECE: usize = 4 << 20;

pub use super::body::Body;

/// A float as its bits: JSON has no words for all of them.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bits(u32);

impl From<f32> for Bits {
    fn from(value: f32) -> Bits {
        Bits(value.to_bits())
    }
}

impl From<Bits> for f32 {
    fn from(bits: Bits) -> f32 {
        f32::from_bits(bits.0)
    }
}

impl std::fmt::Debug for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f32::from(*self).fmt(f)
    }
}

/// What is done to a shard. Its values are in the bytes beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Its author takes part from this clock on.
    Enter {
        /// The clock.
        clock: u64,
    },
    /// Values for the rule: of elements from the first on, or of keys, which lie before them.
    Push {
        /// The first element; 0 where there are keys.
        first: u64,
        /// Elements or keys.
        n: u64,
        /// The clock of its author.
        clock: u64,
        /// The learning rate.
        rate: Bits,
        /// The share of the batch.
        share: Bits,
        /// Which grains it is of, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnOf>,
        /// How keys and values are written.
        #[serde(default, skip_serializing_if = "Packing::is_plain")]
        packing: Packing,
    },
    /// Its author has done everything of a clock.
    Finish {
        /// The clock.
        clock: u64,
    },
    /// The sum of some grains of a step, of a whole shard or of some keys.
    Part {
        /// The step.
        step: u64,
        /// The first grain and the end: a complete subtree.
        grains: [usize; 2],
        /// Grains of the step.
        n_grains: usize,
        /// The learning rate.
        rate: Bits,
        /// What the total is divided by: summed along the same tree.
        divisor: Bits,
        /// Elements or keys.
        n: u64,
        /// How keys and values are written.
        #[serde(default, skip_serializing_if = "Packing::is_plain")]
        packing: Packing,
    },
    /// Values that take the place of others, whatever the rule.
    Assign {
        /// The first element; 0 where there are keys.
        first: u64,
        /// Elements or keys.
        n: u64,
    },
    /// A piece of a saved state. The last one replaces the shard.
    Load {
        /// Whether it is the first piece.
        is_first: bool,
        /// Whether it is the last.
        is_last: bool,
    },
    /// A client that is gone holds nobody up. Said by the first holder.
    Leave {
        /// Who.
        client: ClientId,
    },
    /// Something that was refused: its number counts, and why it was, for an author who asks again. Said by the first holder.
    Refused {
        /// Why.
        error: TableError,
    },
}

impl Operation {
    /// The same, of values that were looked at: all that must be finite are.
    pub fn known_finite(mut self) -> Operation {
        if let Operation::Push { packing, .. } | Operation::Part { packing, .. } = &mut self {
            packing.is_finite = true;
        }
        self
    }
}

/// Which grains a push is of, where grains may be done again by others: a shard counts each of them once. A turn is one push to a table, and the turns of a step
/// lie one in the other or apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnOf {
    /// The step.
    pub step: u64,
    /// The first grain and the end.
    pub grains: [usize; 2],
    /// Grains of the step.
    pub n_grains: usize,
}

/// How keys and values are written beside a message, where not as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Packing {
    /// How values are rounded.
    pub rounding: Rounding,
    /// Bytes of the values before runs of zeros were taken out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_zeros: Option<usize>,
    /// Whether its author has looked that all values are finite. They are what is sent then, and nobody looks again.
    #[serde(skip_serializing_if = "is_not")]
    pub is_finite: bool,
}

fn is_not(flag: &bool) -> bool {
    !flag
}

impl Packing {
    /// Whether there is nothing to say of keys and values.
    pub fn is_plain(&self) -> bool {
        *self == Packing::default()
    }

    /// Whether keys and values are written as they are.
    pub fn is_as_it_is(&self) -> bool {
        let Packing { rounding, without_zeros, is_finite: _ } = *self;
        rounding == Rounding::None && without_zeros.is_none()
    }
}

/// Who did something, and the how manieth thing of it on that shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// Who.
    pub client: ClientId,
    /// Counts from 1 for each client and shard.
    pub number: u64,
}

/// What a read waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// Nothing.
    Now,
    /// That all clients have done all clocks before `clock - bound`.
    Clock {
        /// The reader's clock.
        clock: u64,
        /// Its bound.
        bound: u32,
    },
    /// That so many steps were applied, and not more.
    Steps {
        /// How many.
        n: u64,
    },
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// Values: of elements from the first on, or of the keys beside the message.
    Values {
        /// The first element; 0 where there are keys.
        first: u64,
        /// Elements or keys.
        n: u64,
    },
    /// All of the shard, to be saved. It comes in pieces.
    State,
}

/// From a client to a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToServer {
    /// The first word on a link.
    Hello {
        /// What it speaks.
        version: u32,
        /// Who it is.
        who: Who,
        /// What people call it.
        name: String,
    },
    /// Do something.
    Do {
        /// Where.
        place: Place,
        /// Counts from 1 for each client and shard.
        number: u64,
        /// What.
        operation: Operation,
    },
    /// Read something.
    Read {
        /// Where.
        place: Place,
        /// The client's number for the answer.
        id: u64,
        /// The number of its last operation there, which the answer must have.
        after: u64,
        /// What it waits for.
        until: Until,
        /// What is read.
        wanted: Wanted,
    },
    /// A read is not waited for any more.
    Forget {
        /// Where.
        place: Place,
        /// Its number.
        id: u64,
    },
    /// From a first holder to a copy.
    Follow(Follow),
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// A client.
    Client(ClientId),
    /// A server that is the first holder of something.
    Server(ServerId),
}

/// From a first holder to a copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Follow {
    /// Do this too.
    Do {
        /// Where.
        place: Place,
        /// The first holder's term.
        term: Term,
        /// Its place in the order.
        version: Version,
        /// Who did it; the first holder itself where nobody.
        author: Option<Author>,
        /// What.
        operation: Operation,
    },
    /// Say how far you are.
    Align {
        /// Where.
        place: Place,
        /// The first holder's term.
        term: Term,
        /// The decision that the first holder knows: the copy may hear of it later.
        number: u64,
    },
    /// A piece of the whole shard.
    Fill {
        /// Where.
        place: Place,
        /// The first holder's term.
        term: Term,
        /// The version that it is of.
        version: Version,
        /// Whether it is the first piece.
        is_first: bool,
        /// Whether it is the last.
        is_last: bool,
    },
}

/// From a copy to a first holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Followed {
    /// It has everything up to this.
    Has {
        /// Where.
        place: Place,
        /// The term that it follows.
        term: Term,
        /// How far it is.
        version: Version,
    },
    /// An answer to [`Follow::Align`].
    Stands {
        /// Where.
        place: Place,
        /// The term that it follows now.
        term: Term,
        /// The term of the last that it did.
        last_term: Term,
        /// How far it is. None where it has nothing.
        version: Option<Version>,
    },
    /// It follows a newer first holder.
    Outdated {
        /// Where.
        place: Place,
        /// The term that it follows.
        term: Term,
    },
}

/// From a server to a client, or to a first holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromServer {
    /// An operation is done, and every holder has it.
    Done {
        /// Where.
        place: Place,
        /// The client's number for it.
        number: u64,
        /// Its place in the order.
        version: Version,
    },
    /// An operation is refused. Its number counts.
    Refused {
        /// Where.
        place: Place,
        /// The client's number for it.
        number: u64,
        /// Why.
        error: TableError,
    },
    /// What was read.
    Read {
        /// Where.
        place: Place,
        /// The client's number for it.
        id: u64,
        /// How much of the order it has.
        version: Version,
        /// Steps that it has.
        steps: u64,
        /// Whether nothing more comes.
        is_last: bool,
    },
    /// A read is refused.
    NotRead {
        /// Where.
        place: Place,
        /// The client's number for it.
        id: u64,
        /// Why.
        error: TableError,
    },
    /// A read waits.
    Waits {
        /// Where.
        place: Place,
        /// The client's number for it.
        id: u64,
        /// For whom.
        waits_for: String,
    },
    /// This server is not the first holder.
    Elsewhere {
        /// Where.
        place: Place,
        /// The term that it knows.
        term: Term,
        /// How much it has of the client, where it is the first holder and something in between has not come.
        has: Option<u64>,
    },
    /// Keys came as a digest of a list that this server does not remember: they must come whole.
    UnknownKeys {
        /// Where.
        place: Place,
    },
    /// The link is refused.
    Unwelcome {
        /// Why.
        error: TableError,
    },
    /// To a first holder.
    Followed(Followed),
}
