//! Parameter tables: values that live on servers, which workers pull and push. `ARCHITECTURE.md` (Parameter tables) has the picture.
//!
//! [`server::Server`], [`client::Client`] and [`director::Director`] are functions of time, state and event. [`serving`], [`directing`] and
//! [`client::Tables`] run them on links.

pub mod identity;
pub mod spec;

pub mod error;
pub mod message;
pub mod network;

pub mod clocks;
pub mod placement;

pub mod client;
pub mod director;
pub mod server;

pub mod directing;
pub mod serving;

pub mod history;
pub mod measure;

pub mod rules;
pub mod store;
pub mod traffic;

mod body;
mod calls;
mod digest;
mod key_lists;
mod landing;
mod lendable;
mod line;
mod packing;
mod reaching;
