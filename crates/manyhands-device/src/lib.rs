//! Executes programs.
//!
//! A [`Device`] compiles a program once and runs it many times; [`CpuDevice`] is the native CPU.

mod cpu;
mod device;
mod error;
mod paper;
mod step;

pub use cpu::{CpuDevice, Fault, Isa, KERNEL_SET, taken_bytes};
pub use device::{
    BufferGroup, BufferId, Device, DeviceDescription, Evaluated, ExecutableId, GROUP_ALIGNMENT,
    GroupId, GroupMemory, Launch, Lent, MemoryPlan, Moment, ReadBuffers, ReadGroups, ShownMemory,
    group_offsets,
};
pub use error::DeviceError;
pub use paper::PaperDevice;
pub use step::{FollowSums, HeldSums, PlanId, StepExecutor, Sum, SumLayout};
