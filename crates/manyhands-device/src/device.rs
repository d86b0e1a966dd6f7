//! What a device is: it compiles programs, holds buffers, runs, and reads back.
//!
//! The trait is shaped so that an accelerator behind the PJRT C API can implement it: buffers and executables are handles,
//! a run takes and fills buffers, and parameters are updated in place (an accelerator donates the old buffer and takes the
//! new one under the same handle). Nothing here knows of threads, pointers or caches.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use manyhands_program::{Program, Tensor, TensorType};

use crate::error::DeviceError;

/// A compiled program of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExecutableId(pub(crate) u64);

/// A tensor in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub(crate) u64);

/// Several tensors in one piece of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub(crate) u64);

/// A group and the buffers in it, which are used as any others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferGroup {
    /// The group.
    pub id: GroupId,
    /// Its buffers, in the order of the types that were asked for.
    pub buffers: Vec<BufferId>,
}

/// Every tensor of a group begins at a multiple of so many bytes.
pub const GROUP_ALIGNMENT: usize = 64;

/// Where the tensors of a group begin, and how many bytes it has in all. On every device the same; what lies between the
/// tensors is zeros.
pub fn group_offsets(types: &[TensorType]) -> (Vec<usize>, usize) {
    let mut end = 0;
    let offsets = types.iter().map(|ty| {
        let offset = end;
        end += ty.n_bytes().next_multiple_of(GROUP_ALIGNMENT);
        offset
    });
    (offsets.collect(), end)
}

/// Memory for groups that somebody else has made, such as memory that other processes see.
///
/// # Safety
/// What is given is zeroed, begins at a multiple of [`GROUP_ALIGNMENT`], is not used or given to anybody else in this process, and stays where it is as long as
/// the value lives.
pub unsafe trait GroupMemory: fmt::Debug + Send + Sync {
    /// So many bytes; `None` where there is no room.
    fn take(&self, n_bytes: usize) -> Option<NonNull<u8>>;
}

/// Memory of somebody else that this process reads, such as memory of another process.
///
/// # Safety
/// What is shown begins at a multiple of [`GROUP_ALIGNMENT`], and can be read as long as the value lives. Whoever has launches read it sees to it that nobody writes there
/// meanwhile, or takes nothing of what came of them.
pub unsafe trait ShownMemory: fmt::Debug + Send + Sync {
    /// Where so many bytes are; `None` where there are not as many.
    fn start(&self, n_bytes: usize) -> Option<NonNull<u8>>;
}

/// Groups whose bytes can be read.
pub trait ReadGroups {
    /// The bytes of the group with this place in the list that was asked for; panics, as a slice does, where there is none.
    fn bytes(&self, idx: usize) -> &[u8];
}

/// What a device is, for reports and for the bit contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDescription {
    /// Such as `cpu`.
    pub name: String,
    /// Devices with the same kernel set give the same bits.
    pub kernel_set: String,
    /// The instruction set or model, for people.
    pub hardware: String,
    /// Threads that work together on one run.
    pub n_threads: usize,
}

/// The memory that running a compiled program takes, known before it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Inputs, parameters and outputs, held by the caller's buffers.
    pub argument_bytes: usize,
    /// Constants.
    pub constant_bytes: usize,
    /// Values between operations, after sharing memory among those that are never alive together.
    pub temporary_bytes: usize,
    /// Working space of kernels, all threads together.
    pub scratch_bytes: usize,
}

impl MemoryPlan {
    /// Everything together.
    pub fn peak_bytes(&self) -> usize {
        self.argument_bytes + self.constant_bytes + self.temporary_bytes + self.scratch_bytes
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: usize| bytes as f64 / 1e6;
        write!(
            f,
            "{:.1} MB at most: {:.1} for arguments, {:.1} for constants, {:.1} between operations, {:.1} of scratch",
            mb(self.peak_bytes()),
            mb(self.argument_bytes),
            mb(self.constant_bytes),
            mb(self.temporary_bytes),
            mb(self.scratch_bytes),
        )
    }
}

/// One run of a compiled program on given buffers, each list in the program's order.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What to run.
    pub executable: ExecutableId,
    /// The program's inputs.
    pub inputs: Vec<BufferId>,
    /// The program's parameters; updates replace their contents.
    pub parameters: Vec<BufferId>,
    /// Filled with the program's outputs.
    pub outputs: Vec<BufferId>,
}

/// Memory of the caller that takes the place of buffers while a launch runs: little-endian bytes that begin at a multiple of an element's size. Truth values are refused.
#[derive(Debug, Default)]
pub struct Lent<'a> {
    /// Read instead of these buffers.
    pub read: Vec<(BufferId, &'a [u8])>,
    /// Read and written instead of these.
    pub written: Vec<(BufferId, &'a mut [u8])>,
}

/// Buffers that can be read while a launch runs.
pub trait ReadBuffers {
    /// The little-endian bytes of a buffer, if the launch has written it for the last time or writes nothing in its memory.
    fn bytes(&self, buffer: BufferId) -> Option<&[u8]>;
}

/// A moment of a launch at which its caller may look at what is there.
pub struct Moment<'a> {
    finals: &'a [BufferId],
    read: &'a dyn ReadBuffers,
}

impl<'a> Moment<'a> {
    /// A moment at which these have become final.
    pub fn new(finals: &'a [BufferId], read: &'a dyn ReadBuffers) -> Moment<'a> {
        Moment { finals, read }
    }

    /// The outputs, and parameters with an update, that have had their last value since the moment before.
    pub fn finals(&self) -> &'a [BufferId] {
        self.finals
    }

    /// The little-endian bytes of a buffer that has its last value, or in whose memory the launch writes nothing.
    pub fn bytes(&self, buffer: BufferId) -> Option<&'a [u8]> {
        self.read.bytes(buffer)
    }
}

/// Executes programs.
pub trait Device: Send {
    /// What it is.
    fn describe(&self) -> DeviceDescription;

    /// Compiles a program, once; it can then be run many times.
    fn compile(&mut self, program: &Program) -> Result<ExecutableId, DeviceError>;

    /// The memory that running takes.
    fn memory(&self, executable: ExecutableId) -> Result<MemoryPlan, DeviceError>;

    /// Forgets a compiled program.
    fn release(&mut self, executable: ExecutableId) -> Result<(), DeviceError>;

    /// A buffer of zeros.
    fn allocate(&mut self, ty: &TensorType) -> Result<BufferId, DeviceError>;

    /// Buffers of zeros in one piece of memory, laid out by [`group_offsets`]. Truth values are refused.
    fn allocate_group(&mut self, types: &[TensorType]) -> Result<BufferGroup, DeviceError>;

    /// The same in memory that somebody else has made, where it has room and the device can use memory of the host.
    fn allocate_group_in(
        &mut self,
        types: &[TensorType],
        _memory: &Arc<dyn GroupMemory>,
    ) -> Result<BufferGroup, DeviceError> {
        self.allocate_group(types)
    }

    /// Buffers of tensors that somebody else has laid out by [`group_offsets`]: inputs of launches, which nothing here writes. `None` where the device cannot read
    /// memory of the host, or there is less of it.
    fn show_group(
        &mut self,
        _types: &[TensorType],
        _memory: &Arc<dyn ShownMemory>,
    ) -> Result<Option<BufferGroup>, DeviceError> {
        Ok(None)
    }

    /// Gives a buffer back; one of a group goes with its group.
    fn free(&mut self, buffer: BufferId) -> Result<(), DeviceError>;

    /// Gives a group back with all of its buffers.
    fn free_group(&mut self, group: GroupId) -> Result<(), DeviceError>;

    /// What a buffer holds.
    fn buffer_type(&self, buffer: BufferId) -> Result<TensorType, DeviceError>;

    /// Fills a buffer from little-endian bytes of exactly its size.
    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Has a buffer's little-endian bytes written by `fill`, which finds anything there and writes all of them. Nothing is copied where the device works in the host's
    /// memory.
    fn write_with(
        &mut self,
        buffer: BufferId,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let mut bytes = vec![0; self.buffer_type(buffer)?.n_bytes()];
        fill(&mut bytes);
        self.write(buffer, &bytes)
    }

    /// Copies a buffer's little-endian bytes out; `bytes` has exactly its size.
    fn read(&self, buffer: BufferId, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// A group's little-endian bytes, as the host sees them. Nothing is copied where the device works in the host's memory; an
    /// accelerator shows memory of the host into which it copied the group after the last run that wrote to it.
    fn host_bytes(&self, group: GroupId) -> Result<&[u8], DeviceError>;

    /// Shows groups to read, and at the same time one to write, whose bytes the next run finds. An accelerator copies what
    /// was written afterwards.
    fn with_host_bytes(
        &mut self,
        read: &[GroupId],
        written: GroupId,
        then: &mut dyn FnMut(&dyn ReadGroups, &mut [u8]),
    ) -> Result<(), DeviceError>;

    /// Runs the launches. After an error in the data (an index out of range) outputs and updated parameters hold nothing
    /// useful; the device itself goes on. Launches must not depend on each other: none may write what another reads or writes. One launch
    /// has the whole device; several may share it side by side.
    fn run(&mut self, launches: &[Launch]) -> Result<(), DeviceError>;

    /// Runs one launch with memory of the caller in the place of some of its buffers, each lent once. Nothing is copied where the device works in the host's memory. After an
    /// error what was lent to be written holds nothing useful.
    fn run_lent(&mut self, launch: &Launch, lent: Lent<'_>) -> Result<(), DeviceError>;

    /// Runs one launch and calls `announce` while it runs, in the thread of the caller, which goes on computing only when
    /// that is done. From the first moment at which something is final there are moments now and then until the end, some
    /// of them without anything new; each output and each updated parameter becomes final at one of them. After an error what
    /// was announced is of no use. A device that cannot tell announces all at the end.
    fn run_announcing(
        &mut self,
        launch: &Launch,
        announce: &mut dyn FnMut(Moment<'_>),
    ) -> Result<(), DeviceError>;

    /// A buffer that holds a tensor.
    fn upload(&mut self, tensor: &Tensor) -> Result<BufferId, DeviceError> {
        let buffer = self.allocate(tensor.ty())?;
        self.write(buffer, tensor.bytes())?;
        Ok(buffer)
    }

    /// The tensor that a buffer holds.
    fn download(&self, buffer: BufferId) -> Result<Tensor, DeviceError> {
        let ty = self.buffer_type(buffer)?;
        let mut bytes = vec![0; ty.n_bytes()];
        self.read(buffer, &mut bytes)?;
        Ok(Tensor::from_bytes(ty, bytes)?)
    }

    /// Compiles and runs a program once: its outputs, then its updated parameters, from its inputs and parameters. For
    /// tests, constant folding and one-off computations.
    fn evaluate(
        &mut self,
        program: &Program,
        inputs: &[Tensor],
        parameters: &[Tensor],
    ) -> Result<Evaluated, DeviceError> {
        let executable = self.compile(program)?;
        let result = self.evaluate_compiled(executable, program, inputs, parameters);
        self.release(executable)?;
        result
    }

    /// As [`Device::evaluate`], for a program that is compiled already.
    fn evaluate_compiled(
        &mut self,
        executable: ExecutableId,
        program: &Program,
        inputs: &[Tensor],
        parameters: &[Tensor],
    ) -> Result<Evaluated, DeviceError> {
        let mut launch = Launch { executable, inputs: vec![], parameters: vec![], outputs: vec![] };
        for tensor in inputs {
            launch.inputs.push(self.upload(tensor)?);
        }
        for tensor in parameters {
            launch.parameters.push(self.upload(tensor)?);
        }
        for output in program.outputs() {
            launch.outputs.push(self.allocate(program.ty(output.value))?);
        }
        let ran = self.run(std::slice::from_ref(&launch));
        let download = |buffers: &[BufferId]| {
            buffers.iter().map(|&buffer| self.download(buffer)).collect::<Result<Vec<_>, _>>()
        };
        let evaluated = ran.and_then(|()| {
            Ok(Evaluated {
                outputs: download(&launch.outputs)?,
                parameters: download(&launch.parameters)?,
            })
        });
        for buffer in launch.inputs.iter().chain(&launch.parameters).chain(&launch.outputs) {
            self.free(*buffer)?;
        }
        evaluated
    }
}

/// What [`Device::evaluate`] gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The outputs, in the program's order.
    pub outputs: Vec<Tensor>,
    /// The parameters after the run, in the program's order.
    pub parameters: Vec<Tensor>,
}
