//! The errors of devices: each says what was asked, of what, and what would be right.

use manyhands_program::{ProgramError, TensorError, TensorType};
use thiserror::Error;

use crate::cpu::Fault;

/// Why a device cannot do what it is asked.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum DeviceError {
    #[error("buffer {id:x} does not exist on this device, or was freed")]
    NoSuchBuffer { id: u64 },
    #[error("group {id:x} does not exist on this device, or was freed")]
    NoSuchGroup { id: u64 },
    #[error("buffer {id:x} is part of a group, and is freed with it")]
    GroupMember { id: u64 },
    #[error("group {id:x} cannot be read and written at the same time")]
    SharedGroup { id: u64 },
    #[error("group {id:x} lies in memory of somebody else, and can only be read")]
    ShownGroup { id: u64 },
    #[error("buffer {id:x} is written by the launch, and the memory lent for it can only be read")]
    LentToRead { id: u64 },
    #[error(
        "memory lent for a buffer {ty} must begin at a multiple of an element's size, and truth values cannot be lent: they would be bytes that nobody checked"
    )]
    LentMemory { ty: TensorType },
    #[error("what another worker shows is not where this device can read it")]
    NotShown,
    #[error("truth values cannot be in a group: its bytes are written unchecked")]
    GroupOfTruthValues,
    #[error("executable {id:x} does not exist on this device, or was released")]
    NoSuchExecutable { id: u64 },
    #[error("the buffer {ty} takes {expected} bytes, but {found} were given")]
    BufferLength { ty: TensorType, expected: usize, found: usize },
    #[error("program \"{program}\" takes {expected} {what}s, but {found} were given")]
    ArgumentCount { program: String, what: &'static str, expected: usize, found: usize },
    #[error("{what} {idx} of program \"{program}\" is {expected}, but the buffer holds {found}")]
    ArgumentType {
        program: String,
        what: &'static str,
        idx: usize,
        expected: TensorType,
        found: TensorType,
    },
    #[error(
        "buffer {id:x} is written by one use in a run and used by another; give each its own buffer"
    )]
    SharedBuffer { id: u64 },
    #[error("`{op}` in program \"{program}\"{place}: {fault}")]
    Data { program: String, op: String, place: String, fault: Fault },
    #[error("`{op}` sums over grains, which a device runs as two programs: split it first")]
    UnsplitGrains { op: &'static str },
    #[error(
        "`{op}` sums over the parts of a mesh, and a device runs pieces without any communication: cut the program there first"
    )]
    Communication { op: &'static str },
    #[error("a device needs at least one thread and at most {limit}, not {found}")]
    Threads { found: usize, limit: usize },
    #[error("the system does not start {n_threads} threads: {reason}")]
    NoThreads { n_threads: usize, reason: String },
    #[error("a step has at least one grain and at most {limit}, not {found}")]
    Grains { found: usize, limit: usize },
    #[error(
        "the last grain of \"{name}\" is of another program, \"{last}\": after the sums they must be the same"
    )]
    LastGrain { name: String, last: String },
    #[error("plan {plan} has not begun a step: begin one before its grains or its update are run")]
    NoStep { plan: usize },
    #[error("grain {grain} is in the step's sums already; it must not be added twice")]
    GrainTwice { grain: usize },
    #[error("sums of grains {found:?} are not those of all {n_grains} grains, each once")]
    OtherSums { found: Vec<std::ops::Range<usize>>, n_grains: usize },
    #[error("{what} {idx} does not exist; there are {n}")]
    NoSuchIndex { what: &'static str, idx: usize, n: usize },
    #[error("this machine does not have the {name} instructions")]
    NoSuchInstructions { name: &'static str },
    #[error("{bytes} bytes for {what} could not be allocated")]
    OutOfMemory { what: &'static str, bytes: usize },
    #[error("{what} \"{name}\" is {expected}, not {found}")]
    ValueType { what: &'static str, name: String, expected: TensorType, found: TensorType },
    #[error("the program has no {what} called \"{name}\"")]
    NoSuchName { what: &'static str, name: String },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
