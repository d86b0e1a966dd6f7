//! Runs of zero bytes become their length, whatever the bytes stand for: f32, f16 or 8-bit values.
//!
//! Bytes are a form, then pairs of a run of zeros and a run of other bytes, each with its length in a variable number of bytes (seven bits each, lowest first). What
//! would become longer goes as it is. -0.0 is not zero here: every bit comes back.

use super::{Saved, TrafficError};

/// As it is.
const PLAIN: u8 = 0;
/// In runs.
const RUNS: u8 = 1;
/// Fewer zeros than this stay among the others: their length would take as much.
const SHORTEST: usize = 4;

/// Adds the bytes to `out`, without the zeros. At most one byte more than there are.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) -> Saved {
    let start = out.len();
    out.push(RUNS);
    let mut at = 0;
    while at < bytes.len() && out.len() - start <= bytes.len() {
        let n_zeros = zeros(&bytes[at..]);
        let others = &bytes[at + n_zeros..];
        let n_others = until_zeros(others);
        length(n_zeros, out);
        length(n_others, out);
        out.extend_from_slice(&others[..n_others]);
        at += n_zeros + n_others;
    }
    if at < bytes.len() || out.len() - start > bytes.len() {
        out.truncate(start);
        out.push(PLAIN);
        out.extend_from_slice(bytes);
    }
    Saved { before: bytes.len() as u64, after: (out.len() - start) as u64 }
}

/// Fills `out`, whose length was announced, with what was encoded.
pub fn decode(bytes: &[u8], out: &mut [u8]) -> Result<(), TrafficError> {
    let expected = out.len();
    let wrong = |found| TrafficError::WrongRuns { expected, found };
    match bytes.split_first() {
        Some((&PLAIN, bytes)) if bytes.len() == expected => {
            out.copy_from_slice(bytes);
            Ok(())
        }
        Some((&PLAIN, bytes)) => Err(wrong(bytes.len())),
        Some((&RUNS, mut rest)) => {
            let mut at = 0usize;
            while !rest.is_empty() {
                let n_zeros = take_length(&mut rest).ok_or(wrong(at))?;
                let n_others = take_length(&mut rest).ok_or(wrong(at))?;
                let zeros_end = at.saturating_add(n_zeros);
                let end = zeros_end.saturating_add(n_others);
                if end > expected || n_others > rest.len() {
                    return Err(wrong(end));
                }
                out[at..zeros_end].fill(0);
                out[zeros_end..end].copy_from_slice(&rest[..n_others]);
                rest = &rest[n_others..];
                at = end;
            }
            if at == expected { Ok(()) } else { Err(wrong(at)) }
        }
        _ => Err(wrong(0)),
    }
}

/// How many zeros these begin with.
fn zeros(bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks::<8>();
    let n_words = words.iter().take_while(|word| **word == [0; 8]).count();
    let rest = &bytes[8 * n_words..];
    8 * n_words + rest.iter().take_while(|byte| **byte == 0).count()
}

/// How many bytes there are before a run of zeros that is worth its length. No bytes after it: it would be worth it there, too.
fn until_zeros(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        // Whole words without a zero byte: nothing begins in them.
        let word = bytes[at..].first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
        if let Some(word) = word
            && !has_zero_byte(word)
        {
            at += 8;
            continue;
        }
        let n_zeros = zeros(&bytes[at..]);
        if n_zeros >= SHORTEST {
            return at;
        }
        at += n_zeros.max(1);
    }
    bytes.len()
}

fn has_zero_byte(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    word.wrapping_sub(ONES) & !word & (ONES << 7) != 0
}

fn length(mut n: usize, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn take_length(bytes: &mut &[u8]) -> Option<usize> {
    let mut n = 0u64;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return usize::try_from(n).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests;
