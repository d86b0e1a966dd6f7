//! TFRecord framing: length, its checksum, content, its checksum.

/// Appends one record.
pub(super) fn append(out: &mut Vec<u8>, content: &[u8]) {
    let length = (content.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_checksum(&length).to_le_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(&masked_checksum(content).to_le_bytes());
}

/// CRC-32C, rotated and shifted: the checksum of a string that holds checksums would be weak otherwise.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
