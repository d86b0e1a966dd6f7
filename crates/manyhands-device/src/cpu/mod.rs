//! The native CPU device.
//!
//! A program is compiled once: passes fuse it, memory is planned (`memory.rs`), and every operation is lowered to
//! instructions (`lower/`). A run then walks the instructions on a team of threads (`team.rs`): each thread does its part
//! of every instruction, and they meet after it. Nothing is allocated on the way.
//!
//! Invariant **D1**: results depend neither on the number of threads, nor on the instruction set, nor on cache sizes. (Where
//! a result is NaN it is NaN everywhere, but its sign and payload, which hardware chooses, are left open.)

mod aligned;
mod announce;
mod buffers;
mod compile;
mod instruction;
mod kernels;
mod lower;
mod math;
mod memory;
mod simd;
mod table;
mod team;

pub use self::aligned::taken_bytes;
pub use self::kernels::fault::Fault;
pub use self::simd::Isa;

use std::error::Error;
use std::sync::Arc;

use manyhands_program::{DType, Evaluate, Program, Tensor, TensorError, TensorType, optimize};

use self::aligned::AlignedBytes;
use self::announce::{Announced, Announcer, final_buffers};
use self::buffers::Buffers;
use self::compile::Compiled;
use self::instruction::{Account, Context, Halt};
use self::kernels::Part;
use self::table::Table;
use self::team::{Barrier, Team};
use crate::device::{
    BufferGroup, BufferId, Device, DeviceDescription, ExecutableId, GroupId, GroupMemory, Launch,
    Lent, MemoryPlan, Moment, ReadGroups, ShownMemory,
};
use crate::error::DeviceError;

/// Devices with this kernel set give the same bits: AVX-512, AVX2 and portable alike.
pub const KERNEL_SET: &str = "cpu-1";

/// The most threads a device may have.
const MAX_THREADS: usize = 1024;

/// The native CPU: a team of threads, buffers and compiled programs.
pub struct CpuDevice {
    isa: Isa,
    team: Team,
    /// Where all threads meet when they work on one launch.
    barrier: Barrier,
    executables: Table<Compiled>,
    buffers: Buffers,
    /// One per launch that can run side by side.
    lanes: Vec<Lane>,
    /// One per thread.
    desks: Vec<Desk>,
    /// Counts runs, to tell which buffers the present one uses.
    n_runs: u64,
    /// What becomes final in the launch that is announced, in order.
    final_ids: Vec<BufferId>,
}

/// What one launch has for itself while it runs.
struct Lane {
    arena: AlignedBytes,
    /// The base pointers that places refer to.
    bases: Vec<*mut u8>,
    /// Where the lane's threads meet.
    barrier: Barrier,
    halt: Halt,
}

/// What one thread has for itself.
#[derive(Default)]
struct Desk {
    scratch: AlignedBytes,
    account: Account,
}

// SAFETY: the pointers are used only during a run, which borrows the device and so all that they point to; what callers lend is borrowed for as long (`run_lent`).
unsafe impl Send for Lane {}
// SAFETY: threads only read a lane during a run; what its pointers point to is shared out by parts.
unsafe impl Sync for Lane {}

impl CpuDevice {
    /// A device with so many threads, on the fastest instruction set that the machine has.
    pub fn new(n_threads: usize) -> Result<CpuDevice, DeviceError> {
        CpuDevice::with_lanes(1, n_threads, Isa::detect())
    }

    /// A device that can run `n_lanes` launches side by side with `threads_each`, on an instruction set of
    /// [`Isa::available`]; the bits are the same on all. One launch alone gets all threads.
    pub fn with_lanes(
        n_lanes: usize,
        threads_each: usize,
        isa: Isa,
    ) -> Result<CpuDevice, DeviceError> {
        let n_threads = n_lanes.saturating_mul(threads_each);
        if n_threads == 0 || n_threads > MAX_THREADS {
            return Err(DeviceError::Threads { found: n_threads, limit: MAX_THREADS });
        }
        if !Isa::available().contains(&isa) {
            return Err(DeviceError::NoSuchInstructions { name: isa.name() });
        }
        let lane = || Lane {
            arena: AlignedBytes::default(),
            bases: Vec::new(),
            barrier: Barrier::new(threads_each),
            halt: Halt::new(),
        };
        Ok(CpuDevice {
            isa,
            team: Team::new(n_threads)
                .map_err(|error| DeviceError::NoThreads { n_threads, reason: error.to_string() })?,
            barrier: Barrier::new(n_threads),
            executables: Table::new(),
            buffers: Buffers::new(),
            lanes: (0..n_lanes).map(|_| lane()).collect(),
            desks: (0..n_threads).map(|_| Desk::default()).collect(),
            n_runs: 0,
            final_ids: Vec::new(),
        })
    }

    /// Compiles without running passes first.
    fn compile_as_is(&mut self, program: &Program) -> Result<ExecutableId, DeviceError> {
        let n_threads = self.team.n_threads();
        let counts = [n_threads / self.lanes.len(), n_threads];
        let compiled = Compiled::new(program, self.isa, counts)?;
        Ok(ExecutableId(self.executables.insert(compiled)))
    }

    fn check_lent(
        &self,
        buffer: BufferId,
        address: usize,
        n_bytes: usize,
    ) -> Result<(), DeviceError> {
        let ty = &self.buffers.get(buffer)?.ty;
        if !address.is_multiple_of(ty.dtype.size()) || ty.dtype == DType::Bool {
            return Err(DeviceError::LentMemory { ty: ty.clone() });
        }
        check_length(ty, n_bytes)
    }

    fn executable(&self, id: ExecutableId) -> Result<&Compiled, DeviceError> {
        let found = self.executables.get(id.0);
        found.ok_or(DeviceError::NoSuchExecutable { id: id.0 })
    }

    /// Gets a lane ready for a launch: memory, checked buffers, and the addresses of these or of what is lent for them.
    fn bind(
        &mut self,
        lane_idx: usize,
        launch: &Launch,
        lent: &[LentAddress],
    ) -> Result<(), DeviceError> {
        let found = self.executables.get(launch.executable.0);
        let compiled = found.ok_or(DeviceError::NoSuchExecutable { id: launch.executable.0 })?;
        let lane = &mut self.lanes[lane_idx];
        grow(&mut lane.arena, compiled.arena_bytes, "values between operations")?;
        lane.bases.clear();
        lane.bases.extend([lane.arena.as_mut_ptr(), compiled.constants_ptr()]);
        let groups = [
            ("input", &launch.inputs, &compiled.inputs),
            ("parameter", &launch.parameters, &compiled.parameters),
            ("output", &launch.outputs, &compiled.outputs),
        ];
        for (what, ids, types) in groups {
            if ids.len() != types.len() {
                let (program, expected, found) = (compiled.name.clone(), types.len(), ids.len());
                return Err(DeviceError::ArgumentCount { program, what, expected, found });
            }
            for (idx, (id, ty)) in ids.iter().zip(types).enumerate() {
                let writes = what == "output" || (what == "parameter" && compiled.updated[idx]);
                if writes {
                    self.buffers.check_writable(*id)?;
                }
                let (buffer, address) = self.buffers.get_mut(*id)?;
                if buffer.ty != *ty {
                    return Err(DeviceError::ArgumentType {
                        program: compiled.name.clone(),
                        what,
                        idx,
                        expected: ty.clone(),
                        found: buffer.ty.clone(),
                    });
                }
                // Two uses in one run are fine only if both read.
                let (last_run, written) = buffer.used;
                if last_run == self.n_runs && (writes || written) {
                    return Err(DeviceError::SharedBuffer { id: id.0 });
                }
                buffer.used = (self.n_runs, writes);
                let lent = lent.iter().find(|one| one.buffer == *id);
                if writes && lent.is_some_and(|one| !one.is_writable) {
                    return Err(DeviceError::LentToRead { id: id.0 });
                }
                lane.bases.push(lent.map_or(address, |one| one.address));
            }
        }
        Ok(())
    }

    /// Runs launches side by side, one per lane; one alone is shared by all threads. Where somebody listens there is one.
    fn run_lanes(
        &mut self,
        launches: &[Launch],
        lent: &[LentAddress],
        announcer: Option<&Announcer<'_>>,
    ) -> Result<(), DeviceError> {
        for (lane, launch) in launches.iter().enumerate() {
            self.bind(lane, launch, lent)?;
            let scratch = self.executable(launch.executable)?.scratch_bytes;
            self.lanes[lane].halt.reset();
            for desk in &mut self.desks {
                desk.account.reset();
                grow(&mut desk.scratch, scratch, "working space")?;
            }
        }
        self.list_finals(launches.first().filter(|_| announcer.is_some()))?;
        let alone = launches.len() == 1;
        let threads_each =
            if alone { self.team.n_threads() } else { self.team.n_threads() / self.lanes.len() };
        let desks = Desks(self.desks.as_mut_ptr());
        let (isa, lanes, executables) = (self.isa, &self.lanes, &self.executables);
        let all = &self.barrier;
        let (buffers, ids, run) = (&self.buffers, &self.final_ids[..], self.n_runs);
        self.team.run(&|thread_idx| {
            let Some(launch) = launches.get(thread_idx / threads_each) else { return };
            let lane = &lanes[thread_idx / threads_each];
            let compiled = executables.get(launch.executable.0);
            let compiled = compiled.expect("the launch was bound");
            // SAFETY: every thread takes the desk with its own index, which is there.
            let desk = unsafe { desks.take(thread_idx) };
            let context = Context {
                isa,
                bases: &lane.bases,
                scratch: desk.scratch.as_mut_ptr(),
                scratch_bytes: desk.scratch.len(),
                barrier: if alone { all } else { &lane.barrier },
                halt: &lane.halt,
                account: &desk.account,
            };
            let part = Part { idx: thread_idx % threads_each, count: threads_each };
            // Why it stopped, if it did, is in the accounts.
            let _ = match announcer.filter(|_| thread_idx == 0) {
                None => compiled.run_part(&context, part),
                Some(announcer) => {
                    let announced = Announced { compiled, bases: &lane.bases, buffers, ids, run };
                    let look = |after| {
                        // SAFETY: of the team's threads only this one is the first, and all have met after the instruction.
                        unsafe { announcer.look(&announced, after) }
                    };
                    let ran = compiled.run_part_then(&context, part, look);
                    // What no instruction writes is final now.
                    ran.inspect(|()| look(usize::MAX))
                }
            };
        });
        self.first_trouble(launches, threads_each)
    }

    /// Notes what becomes final in a launch that was bound, if there is one that is listened to.
    fn list_finals(&mut self, launch: Option<&Launch>) -> Result<(), DeviceError> {
        let Some(launch) = launch else { return Ok(()) };
        let found = self.executables.get(launch.executable.0);
        let compiled = found.ok_or(DeviceError::NoSuchExecutable { id: launch.executable.0 })?;
        self.final_ids.clear();
        self.final_ids.extend(final_buffers(compiled, launch));
        for id in &self.final_ids {
            self.buffers.note_written(*id, self.n_runs);
        }
        Ok(())
    }

    /// The first launch's first fault, by instruction and then by part: the same for any number of threads.
    fn first_trouble(&self, launches: &[Launch], threads_each: usize) -> Result<(), DeviceError> {
        for (launch, desks) in launches.iter().zip(self.desks.chunks(threads_each)) {
            let troubles = desks.iter().filter_map(|desk| desk.account.trouble.take());
            if let Some(trouble) = troubles.min_by_key(|trouble| trouble.turn) {
                return Err(self.executable(launch.executable)?.data_error(trouble));
            }
        }
        Ok(())
    }
}

/// Makes memory large enough; it only ever grows.
fn grow(own: &mut AlignedBytes, bytes: usize, what: &'static str) -> Result<(), DeviceError> {
    if own.len() < bytes {
        // The old memory goes first, so that the two are never held together.
        *own = AlignedBytes::default();
        *own = AlignedBytes::zeroed(bytes).ok_or(DeviceError::OutOfMemory { what, bytes })?;
    }
    Ok(())
}

/// The desks, each taken by its own thread during a run.
struct Desks(*mut Desk);

// SAFETY: threads reach only their own desk through it.
unsafe impl Sync for Desks {}

impl Desks {
    /// # Safety
    /// `idx` is a desk, and only one thread asks for it during the run.
    #[allow(clippy::mut_from_ref)] // that is the point: each thread its own
    unsafe fn take(&self, idx: usize) -> &mut Desk {
        // SAFETY: the caller's word.
        unsafe { &mut *self.0.add(idx) }
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> DeviceDescription {
        DeviceDescription {
            name: "cpu".to_string(),
            kernel_set: KERNEL_SET.to_string(),
            hardware: self.isa.name().to_string(),
            n_threads: self.team.n_threads(),
        }
    }

    fn compile(&mut self, program: &Program) -> Result<ExecutableId, DeviceError> {
        let program = optimize(program, &Folding { isa: self.isa })?;
        self.compile_as_is(&program)
    }

    fn memory(&self, executable: ExecutableId) -> Result<MemoryPlan, DeviceError> {
        Ok(self.executable(executable)?.memory(self.team.n_threads()))
    }

    fn release(&mut self, executable: ExecutableId) -> Result<(), DeviceError> {
        let removed = self.executables.remove(executable.0);
        removed.map(drop).ok_or(DeviceError::NoSuchExecutable { id: executable.0 })
    }

    fn allocate(&mut self, ty: &TensorType) -> Result<BufferId, DeviceError> {
        self.buffers.allocate(ty)
    }

    fn allocate_group(&mut self, types: &[TensorType]) -> Result<BufferGroup, DeviceError> {
        self.buffers.allocate_group(types, None)
    }

    fn allocate_group_in(
        &mut self,
        types: &[TensorType],
        memory: &Arc<dyn GroupMemory>,
    ) -> Result<BufferGroup, DeviceError> {
        self.buffers.allocate_group(types, Some(memory))
    }

    fn show_group(
        &mut self,
        types: &[TensorType],
        memory: &Arc<dyn ShownMemory>,
    ) -> Result<Option<BufferGroup>, DeviceError> {
        self.buffers.show_group(types, memory)
    }

    fn free(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.buffers.free(buffer)
    }

    fn free_group(&mut self, group: GroupId) -> Result<(), DeviceError> {
        self.buffers.free_group(group)
    }

    fn buffer_type(&self, buffer: BufferId) -> Result<TensorType, DeviceError> {
        Ok(self.buffers.get(buffer)?.ty.clone())
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError> {
        let ty = &self.buffers.get(buffer)?.ty;
        check_length(ty, bytes.len())?;
        if ty.dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(TensorError::NotTruthValues.into());
        }
        self.buffers.bytes_mut(buffer)?.copy_from_slice(bytes);
        Ok(())
    }

    fn write_with(
        &mut self,
        buffer: BufferId,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceError> {
        let ty = &self.buffers.get(buffer)?.ty;
        if ty.dtype == DType::Bool {
            let mut bytes = vec![0; ty.n_bytes()];
            fill(&mut bytes);
            return self.write(buffer, &bytes);
        }
        fill(self.buffers.bytes_mut(buffer)?);
        Ok(())
    }

    fn read(&self, buffer: BufferId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        check_length(&self.buffers.get(buffer)?.ty, bytes.len())?;
        bytes.copy_from_slice(self.buffers.bytes(buffer)?);
        Ok(())
    }

    fn host_bytes(&self, group: GroupId) -> Result<&[u8], DeviceError> {
        self.buffers.group_bytes(group)
    }

    fn with_host_bytes(
        &mut self,
        read: &[GroupId],
        written: GroupId,
        then: &mut dyn FnMut(&dyn ReadGroups, &mut [u8]),
    ) -> Result<(), DeviceError> {
        self.buffers.with_groups(read, written, then)
    }

    fn run(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        self.n_runs += 1;
        let mut together = launches.chunks(self.lanes.len());
        together.try_for_each(|together| self.run_lanes(together, &[], None))
    }

    fn run_lent(&mut self, launch: &Launch, lent: Lent<'_>) -> Result<(), DeviceError> {
        self.n_runs += 1;
        let read = lent.read.iter();
        let read = read.map(|(buffer, memory)| (*buffer, memory.as_ptr().cast_mut(), memory.len()));
        let written = lent.written.into_iter();
        let written = written.map(|(buffer, memory)| (buffer, memory.as_mut_ptr(), memory.len()));
        let all = read.map(|one| (one, false)).chain(written.map(|one| (one, true)));
        let mut addresses: Vec<LentAddress> = Vec::new();
        for ((buffer, address, n_bytes), is_writable) in all {
            self.check_lent(buffer, address.addr(), n_bytes)?;
            if addresses.iter().any(|one| one.buffer == buffer) {
                return Err(DeviceError::SharedBuffer { id: buffer.0 });
            }
            addresses.push(LentAddress { buffer, address, is_writable });
        }
        // What is lent stays borrowed until the run is over; what is lent to be read is bound to no use that writes.
        let ran = self.run_lanes(std::slice::from_ref(launch), &addresses, None);
        self.lanes[0].bases.clear();
        ran
    }

    fn run_announcing(
        &mut self,
        launch: &Launch,
        announce: &mut dyn FnMut(Moment<'_>),
    ) -> Result<(), DeviceError> {
        self.n_runs += 1;
        self.run_lanes(std::slice::from_ref(launch), &[], Some(&Announcer::new(announce)))
    }
}

/// Memory of a caller that takes the place of a buffer, for one run.
struct LentAddress {
    buffer: BufferId,
    address: *mut u8,
    is_writable: bool,
}

fn check_length(ty: &TensorType, found: usize) -> Result<(), DeviceError> {
    let expected = ty.n_bytes();
    if expected == found {
        return Ok(());
    }
    Err(DeviceError::BufferLength { ty: ty.clone(), expected, found })
}

/// Computes constants with the kernels that a run would use, so that folding keeps bits.
struct Folding {
    isa: Isa,
}

impl Evaluate for Folding {
    fn evaluate(&self, program: &Program) -> Result<Vec<Tensor>, Box<dyn Error + Send + Sync>> {
        let mut device = CpuDevice::with_lanes(1, 1, self.isa)?;
        let executable = device.compile_as_is(program)?;
        Ok(device.evaluate_compiled(executable, program, &[], &[])?.outputs)
    }
}

#[cfg(test)]
mod tests;
