//! What servers and clients say to the director, and what it says to them.

use serde::{Deserialize, Serialize};

use crate::tables::error::TableError;
use crate::tables::identity::{ClientId, Place, ServerId, TableId, Term};
use crate::tables::spec::TableSpec;

/// Where somebody is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The machine.
    pub host: String,
    /// Addresses of its station.
    pub addresses: Vec<String>,
    /// What calls for it begin with.
    pub door: String,
}

/// Who holds a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Counts the director's decisions: the greater is the newer.
    pub number: u64,
    /// Counts first holders.
    pub term: Term,
    /// Those that have everything that was acknowledged, the first first.
    pub holders: Vec<ServerId>,
    /// Those that are being filled.
    pub filling: Vec<ServerId>,
}

impl Holding {
    /// Who answers for it.
    pub fn first(&self) -> Option<ServerId> {
        self.holders.first().copied()
    }
}

/// A table as the director tells of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// Its number.
    pub id: TableId,
    /// Its name.
    pub name: String,
    /// What it is.
    pub spec: TableSpec,
}

/// From a server or a client to the director.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToDirector {
    /// A server is there.
    JoinAsServer {
        /// What it speaks.
        version: u32,
        /// What people call it.
        name: String,
        /// Where it is reached.
        reach: Reach,
        /// Bytes that it may use for tables.
        memory_limit: u64,
    },
    /// A client is there.
    JoinAsClient {
        /// What it speaks.
        version: u32,
        /// What people call it.
        name: String,
    },
    /// It is alive.
    Beat {
        /// Bytes that a server uses for tables.
        n_bytes: u64,
    },
    /// A client wants a table.
    Open {
        /// Its name.
        name: String,
        /// What it is.
        spec: TableSpec,
    },
    /// A first holder: this one has everything now.
    Complete {
        /// Where.
        place: Place,
        /// The first holder's term.
        term: Term,
        /// Who.
        server: ServerId,
    },
    /// A server cannot hold what it was given.
    CannotHold {
        /// Where.
        place: Place,
        /// Why.
        error: TableError,
    },
    /// A first holder cannot reach a copy.
    CannotReach {
        /// Whom.
        server: ServerId,
        /// What was seen.
        reason: String,
    },
    /// It can again.
    Reaches {
        /// Whom.
        server: ServerId,
    },
    /// It wants to leave in an orderly way.
    Leave,
}

/// From the director to a server or a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromDirector {
    /// To a server: this is who you are.
    WelcomeServer {
        /// Its number.
        id: ServerId,
    },
    /// To a client: this is who you are.
    WelcomeClient {
        /// Its number.
        id: ClientId,
    },
    /// It may not join.
    Unwelcome {
        /// Why.
        error: TableError,
    },
    /// Where a server is reached, and what people call it.
    Server {
        /// Which.
        id: ServerId,
        /// Its name.
        name: String,
        /// Where.
        reach: Reach,
    },
    /// A server is gone.
    ServerGone {
        /// Which.
        id: ServerId,
        /// Why.
        reason: String,
    },
    /// A table is open.
    Table(Opened),
    /// A table cannot be opened.
    NotOpened {
        /// Its name.
        name: String,
        /// Why.
        error: TableError,
    },
    /// Who holds a shard now.
    Holds {
        /// Which.
        place: Place,
        /// Who.
        holding: Holding,
    },
    /// Nobody holds a shard any more.
    Lost {
        /// Which.
        place: Place,
        /// Why, for whoever asks for it.
        error: TableError,
    },
    /// A client is gone, for good.
    ClientGone {
        /// Who.
        id: ClientId,
        /// Why.
        reason: String,
    },
    /// Clients that went before.
    ClientsGone {
        /// The first and the last of each run of them.
        ranges: Vec<[ClientId; 2]>,
    },
    /// Nothing of you is needed any more.
    MayLeave,
    /// The director is alive.
    Alive,
}
