//! Changes of valid bytes by chance: what the tests use in place of a fuzzer. The same seed gives the same changes.

/// Numbers that are written in place of those that are found.
const NUMBERS: [&str; 9] = [
    "0",
    "1",
    "-1",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e308",
];
/// Bytes that lengths and signs turn at.
const BYTES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// A source of numbers, the same for the same seed.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`; 0 where there is none.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

/// One of the seeds, changed in one to four places.
pub(crate) fn mutated(seeds: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = seeds[chance.below(seeds.len())].clone();
    for _ in 0..=chance.below(4) {
        change(&mut bytes, seeds, chance);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], chance: &mut Chance) {
    let at = chance.below(bytes.len());
    let end = (at + 1 + chance.below(16)).min(bytes.len());
    match chance.below(8) {
        0 if at < bytes.len() => bytes[at] ^= 1 << chance.below(8),
        1 if at < bytes.len() => bytes[at] = BYTES[chance.below(BYTES.len())],
        2 => drop(bytes.drain(at..end)),
        3 => {
            let copied = bytes[at..end].to_vec();
            let to = chance.below(bytes.len());
            bytes.splice(to..to, copied);
        }
        4 => bytes.truncate(at),
        5 => {
            let other = &seeds[chance.below(seeds.len())];
            let from = chance.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => another_number(bytes, at, chance),
    }
}

/// Writes another number in place of the next one in decimal digits.
fn another_number(bytes: &mut Vec<u8>, at: usize, chance: &mut Chance) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|n| at + n) else {
        return;
    };
    let n_digits = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = NUMBERS[chance.below(NUMBERS.len())];
    bytes.splice(start..start + n_digits, number.bytes());
}
