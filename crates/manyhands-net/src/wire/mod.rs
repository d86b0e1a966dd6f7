//! What is said over connections, and who may say it: the door, the call, and the frames of control messages.

mod dial;
mod doorman;
mod framed;
mod frames;
mod refusals;
mod socket;
mod visitor;

pub use dial::{DialError, dial, dial_unless};
pub use doorman::{Admitted, Doorman, DoormanError, DoormanSettings};
pub use framed::{Bounds, Framed, FramedError};
pub use frames::{FrameError, FrameReader, write_frame, write_frame_with};
pub use refusals::Refusals;
pub use socket::Socket;
