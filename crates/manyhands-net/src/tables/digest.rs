//! A digest of 128 bits: whether bytes are whole, and whether two lists are the same. It guards against chance, not against malice: links have their own proof.

/// Two odd numbers with bits everywhere.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

/// The digest of words.
pub(super) fn of_words(words: impl ExactSizeIterator<Item = u64>) -> u128 {
    let n = words.len() as u64;
    let start = FACTORS.map(|factor| (n ^ factor).wrapping_mul(factor));
    let [high, low] = words.fold(start, mixed);
    let [high, low] = mixed([high, low], n);
    u128::from(high) << 64 | u128::from(low)
}

/// The digest of bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> u128 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let of_whole = of_words(words.iter().map(|word| u64::from_le_bytes(*word)));
    let end = [u64::from_le_bytes(last), rest.len() as u64];
    let halves = [(of_whole >> 64) as u64, of_whole as u64];
    let [high, low] = end.into_iter().fold(halves, mixed);
    u128::from(high) << 64 | u128::from(low)
}

/// Each half is a bijection of the word and of what was before.
#[inline(always)]
fn mixed(halves: [u64; 2], word: u64) -> [u64; 2] {
    let [high, low] = halves;
    let high = (high ^ word).wrapping_mul(FACTORS[0]);
    let low = (low ^ word.rotate_left(32)).wrapping_mul(FACTORS[1]);
    [high ^ (high >> 32), low ^ (low >> 29)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_of_a_bit_or_of_the_length_shows() {
        let bytes: Vec<u8> = (0..61).collect();
        let mut seen = std::collections::HashSet::from([of_bytes(&bytes)]);
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(of_bytes(&changed)), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(seen.insert(of_bytes(&bytes[..len])), "the first {len}");
        }
        assert!(seen.insert(of_bytes(&[&bytes[..], &[0]].concat())));
    }
}
