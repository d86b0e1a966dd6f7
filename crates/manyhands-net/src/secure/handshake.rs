//! The first bytes of every connection: both sides prove that they know the secret (N1). Bytes in, bytes out; no socket, no clock.
//!
//! ```text
//! initiator                                responder
//!   magic, version, purpose     11 bytes  ->
//!   Noise message 1             48 bytes  ->   proves the secret, but may be a recording
//!                                         <-   11 bytes    magic, version, verdict
//!                                         <- 1074 bytes    Noise message 2 with the responder's hello
//!   first record, with hello  1042 bytes  ->   proves the secret here and now
//! ```
//!
//! All lengths are fixed, so none is read from the other side; hellos are padded. Version and purpose are part of what is proven
//! (the prologue of Noise). A responder that refuses says so in the verdict, which nothing protects: it is for the sentence
//! that a person reads, and no more can be done with it than by cutting the connection.

use std::fmt;
use std::sync::Arc;

use snow::{Builder, HandshakeState};

use super::keys::{Keys, TAG_LEN};
use super::secret::Secret;

/// The version of everything that is said over connections. Sides of different versions refuse each other.
pub const PROTOCOL_VERSION: u16 = 1;
/// The longest hello in bytes.
pub const HELLO_MAX: usize = 1024;

const MAGIC: &[u8; 8] = b"manyhand";
const NOISE: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const PREAMBLE_LEN: usize = MAGIC.len() + 3;
const PUBLIC_KEY_LEN: usize = 32;
const FIRST_LEN: usize = PUBLIC_KEY_LEN + TAG_LEN;
/// A hello on the wire: its length in two bytes, itself, zeros.
const HELLO_LEN: usize = 2 + HELLO_MAX;
const SECOND_LEN: usize = PUBLIC_KEY_LEN + HELLO_LEN + TAG_LEN;
const THIRD_LEN: usize = HELLO_LEN + TAG_LEN;

const GO_ON: u8 = 0;
const WRONG_SECRET: u8 = 1;
const OTHER_PURPOSE: u8 = 2;
const OTHER_VERSION: u8 = 3;

/// What a connection is for. Each side of a handshake must mean the same; a responder names those that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Purpose(pub u8);

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The first bytes are of something else.
    #[error("the other side does not speak manyhands' protocol")]
    NotManyhands,
    /// Different releases.
    #[error("the other side speaks version {theirs} of the protocol, this one version {ours}")]
    OtherVersion {
        /// The version of this side.
        ours: u16,
        /// The version of the other.
        theirs: u16,
    },
    /// The proof failed: other secret, or bytes changed on the way.
    #[error("the other side has another secret")]
    WrongSecret,
    /// The responder does not serve this purpose.
    #[error("connections of purpose {purpose} are not served here")]
    OtherPurpose {
        /// What the initiator wanted.
        purpose: Purpose,
    },
    /// The connection ended too early.
    #[error("the connection ended after {had} of the {wanted} bytes of the {part}")]
    WrongLength {
        /// The part of the handshake that was to come.
        part: &'static str,
        /// Its length.
        wanted: usize,
        /// What came of it.
        had: usize,
    },
    /// This side's own hello.
    #[error("a hello of {len} bytes is longer than the {HELLO_MAX} that are allowed")]
    LongHello {
        /// Its length.
        len: usize,
    },
    /// A proven hello, or a verdict, that no right implementation sends.
    #[error("the other side sent {what} that means nothing")]
    Malformed {
        /// What it is.
        what: &'static str,
    },
    /// The cryptography is not available, as without a source of randomness.
    #[error("the handshake cannot be done here: {reason}")]
    Unavailable {
        /// What the library says.
        reason: String,
    },
}

/// How far a handshake is, as seen from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing has been proven.
    Unknown,
    /// The other side's first message was made with the secret, maybe long ago. Responders only.
    Plausible,
    /// The other side knows the secret.
    Proven,
}

/// What both sides have after a handshake.
#[derive(Debug)]
pub struct Established {
    /// What the connection is for.
    pub purpose: Purpose,
    /// What the other side said of itself.
    pub hello: Vec<u8>,
    /// For an encrypted stream. Dropped where the proof was enough.
    pub keys: Keys,
}

/// One side of a handshake. Send what is in [`Handshake::outgoing`], give it at most the [`Handshake::wants`] bytes that arrive, until
/// [`Handshake::stage`] is proven and nothing is left to send.
pub struct Handshake {
    hello: Vec<u8>,
    awaited: Awaited,
    incoming: [u8; SECOND_LEN],
    arrived: usize,
    outgoing: Vec<u8>,
    sent: usize,
}

/// What is waited for, with what is needed to take it.
enum Awaited {
    Preamble { secret: Secret, accepts: Arc<[Purpose]> },
    First { noise: Box<HandshakeState>, purpose: Purpose },
    Verdict { noise: Box<HandshakeState>, purpose: Purpose },
    Second { noise: Box<HandshakeState>, purpose: Purpose },
    Third { keys: Box<Keys>, purpose: Purpose },
    Done(Box<Established>),
    Failed(HandshakeError),
}

impl Awaited {
    fn len(&self) -> usize {
        match self {
            Awaited::Preamble { .. } | Awaited::Verdict { .. } => PREAMBLE_LEN,
            Awaited::First { .. } => FIRST_LEN,
            Awaited::Second { .. } => SECOND_LEN,
            Awaited::Third { .. } => THIRD_LEN,
            Awaited::Done(_) | Awaited::Failed(_) => 0,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Awaited::Preamble { .. } => "first words",
            Awaited::First { .. } | Awaited::Second { .. } => "proof of the secret",
            Awaited::Third { .. } => "proof of the secret and hello",
            Awaited::Verdict { .. } => "answer",
            Awaited::Done(_) | Awaited::Failed(_) => "handshake",
        }
    }
}

impl Handshake {
    /// The side that connects.
    pub fn initiate(
        secret: &Secret,
        purpose: Purpose,
        hello: &[u8],
    ) -> Result<Handshake, HandshakeError> {
        let mut outgoing = preamble(PROTOCOL_VERSION, purpose.0).to_vec();
        let mut noise = noise(secret, purpose, Side::Initiator)?;
        push_message(&mut noise, &[], &mut outgoing)?;
        Handshake::new(hello, Awaited::Verdict { noise: Box::new(noise), purpose }, outgoing)
    }

    /// The side that was connected to, which serves the given purposes.
    pub fn respond(
        secret: &Secret,
        accepts: impl Into<Arc<[Purpose]>>,
        hello: &[u8],
    ) -> Result<Handshake, HandshakeError> {
        let awaited = Awaited::Preamble { secret: secret.clone(), accepts: accepts.into() };
        Handshake::new(hello, awaited, Vec::new())
    }

    fn new(hello: &[u8], awaited: Awaited, outgoing: Vec<u8>) -> Result<Handshake, HandshakeError> {
        if hello.len() > HELLO_MAX {
            return Err(HandshakeError::LongHello { len: hello.len() });
        }
        let incoming = [0; SECOND_LEN];
        Ok(Handshake { hello: hello.into(), awaited, incoming, arrived: 0, outgoing, sent: 0 })
    }

    /// What is to be sent now. After an error too: a refusal, which may be sent before the connection is closed.
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.sent..]
    }

    /// Says that so many bytes of [`Handshake::outgoing`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.outgoing.len());
    }

    /// How many bytes are still to come before something follows from them. Not more may be read from the connection: what
    /// comes after the handshake is not for it.
    pub fn wants(&self) -> usize {
        self.awaited.len() - self.arrived
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        match self.awaited {
            Awaited::Third { .. } => Stage::Plausible,
            Awaited::Done(_) => Stage::Proven,
            _ => Stage::Unknown,
        }
    }

    /// Takes bytes that arrived. How many of them: never more than it wants. After an error it wants nothing any more.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        let mut taken = 0;
        loop {
            if let Awaited::Failed(error) = &self.awaited {
                return Err(error.clone());
            }
            let wants = self.wants();
            if wants == 0 || taken == bytes.len() {
                return Ok(taken);
            }
            let count = wants.min(bytes.len() - taken);
            self.incoming[self.arrived..][..count].copy_from_slice(&bytes[taken..][..count]);
            self.arrived += count;
            taken += count;
            if count == wants {
                self.advance();
            }
        }
    }

    /// Why the handshake is not complete, for a connection that ended.
    pub fn cut_off(&self) -> HandshakeError {
        let (part, wanted) = (self.awaited.name(), self.awaited.len());
        match &self.awaited {
            Awaited::Failed(error) => error.clone(),
            _ => HandshakeError::WrongLength { part, wanted, had: self.arrived },
        }
    }

    /// What was established; nothing before the other side is proven.
    pub fn finish(self) -> Option<Established> {
        match self.awaited {
            Awaited::Done(established) => Some(*established),
            _ => None,
        }
    }

    /// Goes on with what was awaited and is complete.
    fn advance(&mut self) {
        // The placeholder is never seen: what is awaited is put back below, on every way.
        let awaited =
            std::mem::replace(&mut self.awaited, Awaited::Failed(HandshakeError::WrongSecret));
        let len = awaited.len();
        let mut message = [0; SECOND_LEN];
        message[..len].copy_from_slice(&self.incoming[..len]);
        let message = &message[..len];
        let next = match awaited {
            Awaited::Preamble { secret, accepts } => self.take_preamble(message, &secret, &accepts),
            Awaited::First { noise, purpose } => self.take_first(message, noise, purpose),
            Awaited::Verdict { noise, purpose } => take_verdict(message, noise, purpose),
            Awaited::Second { noise, purpose } => self.take_second(message, noise, purpose),
            Awaited::Third { keys, purpose } => take_third(message, *keys, purpose),
            Awaited::Done(_) | Awaited::Failed(_) => Ok(awaited),
        };
        self.arrived = 0;
        self.awaited = next.unwrap_or_else(Awaited::Failed);
    }

    fn take_preamble(
        &mut self,
        message: &[u8],
        secret: &Secret,
        accepts: &[Purpose],
    ) -> Result<Awaited, HandshakeError> {
        let (theirs, purpose) = parse_preamble(message)?;
        if theirs != PROTOCOL_VERSION {
            self.refuse(OTHER_VERSION);
            return Err(HandshakeError::OtherVersion { ours: PROTOCOL_VERSION, theirs });
        }
        let purpose = Purpose(purpose);
        if !accepts.contains(&purpose) {
            self.refuse(OTHER_PURPOSE);
            return Err(HandshakeError::OtherPurpose { purpose });
        }
        let noise = noise(secret, purpose, Side::Responder)?;
        Ok(Awaited::First { noise: Box::new(noise), purpose })
    }

    fn take_first(
        &mut self,
        message: &[u8],
        mut noise: Box<HandshakeState>,
        purpose: Purpose,
    ) -> Result<Awaited, HandshakeError> {
        if noise.read_message(message, &mut [0; FIRST_LEN]).is_err() {
            self.refuse(WRONG_SECRET);
            return Err(HandshakeError::WrongSecret);
        }
        self.outgoing.extend_from_slice(&preamble(PROTOCOL_VERSION, GO_ON));
        push_message(&mut noise, &pad(&self.hello), &mut self.outgoing)?;
        let keys = Keys::new(noise.into_transport_mode().map_err(unavailable)?);
        Ok(Awaited::Third { keys: Box::new(keys), purpose })
    }

    fn take_second(
        &mut self,
        message: &[u8],
        mut noise: Box<HandshakeState>,
        purpose: Purpose,
    ) -> Result<Awaited, HandshakeError> {
        let mut padded = [0; SECOND_LEN];
        let read = noise.read_message(message, &mut padded);
        let len = read.map_err(|_| HandshakeError::WrongSecret)?;
        let hello = unpad(&padded[..len])?;
        let mut keys = Keys::new(noise.into_transport_mode().map_err(unavailable)?);
        let mut record = [0; THIRD_LEN];
        keys.seal(&pad(&self.hello), &mut record)
            .map_err(|error| HandshakeError::Unavailable { reason: error.to_string() })?;
        self.outgoing.extend_from_slice(&record);
        Ok(Awaited::Done(Box::new(Established { purpose, hello, keys })))
    }

    fn refuse(&mut self, verdict: u8) {
        self.outgoing.extend_from_slice(&preamble(PROTOCOL_VERSION, verdict));
    }
}

fn take_verdict(
    message: &[u8],
    noise: Box<HandshakeState>,
    purpose: Purpose,
) -> Result<Awaited, HandshakeError> {
    let (theirs, verdict) = parse_preamble(message)?;
    if theirs != PROTOCOL_VERSION {
        return Err(HandshakeError::OtherVersion { ours: PROTOCOL_VERSION, theirs });
    }
    match verdict {
        GO_ON => Ok(Awaited::Second { noise, purpose }),
        WRONG_SECRET => Err(HandshakeError::WrongSecret),
        OTHER_PURPOSE => Err(HandshakeError::OtherPurpose { purpose }),
        _ => Err(HandshakeError::Malformed { what: "an answer" }),
    }
}

fn take_third(message: &[u8], mut keys: Keys, purpose: Purpose) -> Result<Awaited, HandshakeError> {
    let mut padded = [0; THIRD_LEN];
    let len = keys.open(message, &mut padded).map_err(|_| HandshakeError::WrongSecret)?;
    let hello = unpad(&padded[..len])?;
    Ok(Awaited::Done(Box::new(Established { purpose, hello, keys })))
}

/// Magic, version, and the purpose or the verdict.
fn preamble(version: u16, last: u8) -> [u8; PREAMBLE_LEN] {
    let mut bytes = [0; PREAMBLE_LEN];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()..][..2].copy_from_slice(&version.to_le_bytes());
    bytes[PREAMBLE_LEN - 1] = last;
    bytes
}

fn parse_preamble(bytes: &[u8]) -> Result<(u16, u8), HandshakeError> {
    match bytes.strip_prefix(MAGIC) {
        Some(&[low, high, last]) => Ok((u16::from_le_bytes([low, high]), last)),
        _ => Err(HandshakeError::NotManyhands),
    }
}

/// The Noise state of one side, with version and purpose as part of what is proven.
fn noise(secret: &Secret, purpose: Purpose, side: Side) -> Result<HandshakeState, HandshakeError> {
    let prologue = preamble(PROTOCOL_VERSION, purpose.0);
    let builder = Builder::new(NOISE.parse().map_err(unavailable)?);
    let builder = builder.psk(0, secret.key()).and_then(|builder| builder.prologue(&prologue));
    let built = builder.and_then(|builder| match side {
        Side::Initiator => builder.build_initiator(),
        Side::Responder => builder.build_responder(),
    });
    built.map_err(unavailable)
}

enum Side {
    Initiator,
    Responder,
}

fn push_message(
    noise: &mut HandshakeState,
    payload: &[u8],
    outgoing: &mut Vec<u8>,
) -> Result<(), HandshakeError> {
    let mut message = [0; SECOND_LEN];
    let len = noise.write_message(payload, &mut message).map_err(unavailable)?;
    outgoing.extend_from_slice(&message[..len]);
    Ok(())
}

fn pad(hello: &[u8]) -> [u8; HELLO_LEN] {
    let mut padded = [0; HELLO_LEN];
    padded[..2].copy_from_slice(&(hello.len() as u16).to_le_bytes());
    padded[2..][..hello.len()].copy_from_slice(hello);
    padded
}

fn unpad(padded: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    let malformed = HandshakeError::Malformed { what: "a hello" };
    let Some((len, rest)) = padded.split_first_chunk() else { return Err(malformed) };
    let hello = rest.get(..usize::from(u16::from_le_bytes(*len)));
    hello.map(<[u8]>::to_vec).ok_or(malformed)
}

fn unavailable(error: snow::Error) -> HandshakeError {
    HandshakeError::Unavailable { reason: error.to_string() }
}
