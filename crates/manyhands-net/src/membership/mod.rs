//! Who takes part, and who does what when that changes.
//!
//! Everything here is a function of `(now, state, event)` that returns actions: no socket, thread, clock or chance inside. `now` is the
//! time since some start that the event loop chose. The event loop carries actions out in the order given; an
//! [`coordinator::Action::Log`] must be on disk before what follows it is done.
//!
//! - [`message`]: what coordinator, workers and drivers say to each other;
//! - [`coordinator`]: decides on views; [`worker`] and [`driver`]: the sides that follow them;
//! - [`assign`]: who does which grain; [`arrivals`]: when silence is suspicious; [`log`]: what a restart needs, and
//!   [`remembered`]: what that comes to.
//!
//! The labels M1 to M4 are those of `ARCHITECTURE.md` (Many machines).

pub mod arrivals;
pub mod assign;
mod bounds;
pub mod coordinator;
pub mod driver;
pub mod following;
pub mod identity;
pub mod log;
pub mod message;
pub mod remembered;
pub mod status;
pub mod worker;
