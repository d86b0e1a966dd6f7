//! What a handshake leaves: the keys of a stream of records, one key for each direction.

use snow::TransportState;

use crate::transport::LinkError;

/// Bytes that a record is longer than what it carries.
pub const TAG_LEN: usize = 16;
/// The longest record that Noise allows.
pub const RECORD_MAX: usize = 65535;

/// After so many records a direction takes its next key (4 GiB of the longest records): far below what AES-GCM bears under
/// one key.
const RECORDS_PER_KEY: u64 = 1 << 16;

/// The keys of an encrypted stream. Records must be opened in the order in which they were sealed, each once: a record that is
/// repeated, left out or moved does not open.
pub struct Keys {
    state: TransportState,
    sealed: u64,
    opened: u64,
}

impl Keys {
    pub(super) fn new(state: TransportState) -> Keys {
        let (sealed, opened) = (state.sending_nonce(), state.receiving_nonce());
        Keys { state, sealed, opened }
    }

    /// Seals bytes as the next record, at the front of `record`. How long it is: the bytes and [`TAG_LEN`]. `record` must have
    /// room for that, and it must not be more than [`RECORD_MAX`].
    pub fn seal(&mut self, bytes: &[u8], record: &mut [u8]) -> Result<usize, LinkError> {
        let len = self.state.write_message(bytes, record).map_err(|_| LinkError::Forged)?;
        self.sealed += 1;
        if self.sealed.is_multiple_of(RECORDS_PER_KEY) {
            self.state.rekey_outgoing();
        }
        Ok(len)
    }

    /// Opens the next record into the front of `bytes`. How many came out of it. No memory is taken where `bytes` is as long as
    /// the record; then what follows the opened bytes is overwritten.
    pub fn open(&mut self, record: &[u8], bytes: &mut [u8]) -> Result<usize, LinkError> {
        let len = self.state.read_message(record, bytes).map_err(|_| LinkError::Forged)?;
        self.opened += 1;
        if self.opened.is_multiple_of(RECORDS_PER_KEY) {
            self.state.rekey_incoming();
        }
        Ok(len)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({} sealed, {} opened)", self.sealed, self.opened)
    }
}
