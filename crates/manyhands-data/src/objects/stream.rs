//! An object read from its start to its end.

use std::collections::VecDeque;
use std::io::{self, Read};

use bytes::Bytes;

use super::error::ObjectError;
use super::fault::Fault;
use super::flow::{Flow, Object};
use super::thread::{Ticket, begin};

/// The bytes of an object. While some are parsed, the next come: one block ahead, and no further until somebody reads.
pub(crate) struct ObjectStream {
    url: String,
    n_bytes: u64,
    blocks: VecDeque<Bytes>,
    /// The next block; none when all have come, or after an error.
    under_way: Option<Ticket<NextBlock>>,
}

/// A block, and the flow that it is from.
type NextBlock = (Flow, Result<Vec<Bytes>, ObjectError>);

impl ObjectStream {
    pub(crate) fn open(url: &str) -> Result<ObjectStream, ObjectError> {
        let no_client = |reason| ObjectError::NoClient { url: url.into(), reason };
        let object = Object::new(url)?;
        let opened = begin(Flow::open(object, None, None)).and_then(Ticket::wait);
        let flow = opened.map_err(no_client)?.map_err(|fault| match fault {
            Fault::Final(err) => err,
            Fault::Passing(reason) => ObjectError::Refused { url: url.into(), reason },
            Fault::NoRanges | Fault::NoSuchBytes => ObjectError::Refused {
                url: url.into(),
                reason: "the server does not send it as a whole".into(),
            },
        })?;
        let mut stream = ObjectStream {
            url: url.into(),
            n_bytes: flow.stamp.n_bytes,
            blocks: VecDeque::new(),
            under_way: None,
        };
        stream.go_on(flow)?;
        Ok(stream)
    }

    /// How long the object is.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn go_on(&mut self, mut flow: Flow) -> Result<(), ObjectError> {
        let next = async move {
            let block = flow.next_block().await;
            (flow, block)
        };
        let ticket = begin(next).map_err(|reason| self.no_client(reason))?;
        self.under_way = Some(ticket);
        Ok(())
    }

    fn no_client(&self, reason: String) -> ObjectError {
        ObjectError::NoClient { url: self.url.clone(), reason }
    }

    /// Waits for the next block; whether there is one.
    fn fill(&mut self) -> Result<bool, ObjectError> {
        let Some(ticket) = self.under_way.take() else { return Ok(false) };
        let (flow, block) = ticket.wait().map_err(|reason| self.no_client(reason))?;
        self.blocks.extend(block?);
        if !flow.is_done() {
            self.go_on(flow)?;
        }
        Ok(!self.blocks.is_empty())
    }
}

impl Read for ObjectStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.blocks.is_empty() && !self.fill().map_err(io::Error::other)? {
            return Ok(0);
        }
        let Some(front) = self.blocks.front_mut() else { return Ok(0) };
        let n_bytes = front.len().min(buffer.len());
        buffer[..n_bytes].copy_from_slice(&front.split_to(n_bytes));
        if front.is_empty() {
            self.blocks.pop_front();
        }
        Ok(n_bytes)
    }
}
