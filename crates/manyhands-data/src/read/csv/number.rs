//! Decimal numbers as text, to the nearest `f64`: eight digits at a time for those that are short, `fast-float2` for the others.

/// A number at the start of a cell and where it ends. The end is the start where the text is not short and plain; the general
/// way ([`parse`]) may still understand it then. So it may where digits or an exponent follow, which the caller sees.
///
/// A mantissa below 2^53 and a power of ten up to 10^22 are exact as `f64`, so their quotient is correctly rounded.
/// At least 32 bytes must be readable from `at` on.
#[inline(always)]
pub(super) fn parse_short(bytes: &[u8], at: usize) -> (f64, usize) {
    const NOT_SHORT: f64 = 0.0;
    let is_negative = bytes[at] == b'-';
    let first = at + usize::from(is_negative);
    let (whole, n_whole) = digits(bytes, first);
    let mut end = first + n_whole;
    let mut mantissa = whole;
    let mut n_fraction = 0;
    if bytes[end] == b'.' {
        let (fraction, n_digits) = digits(bytes, end + 1);
        mantissa = whole * POWERS[n_digits] + fraction;
        n_fraction = n_digits;
        end += 1 + n_digits;
        if n_digits == 8 {
            let (more, n_more) = digits(bytes, end);
            if mantissa > LARGEST_BEFORE[n_more] {
                return (NOT_SHORT, at);
            }
            mantissa = mantissa * POWERS[n_more] + more;
            n_fraction += n_more;
            end += n_more;
        }
    }
    if n_whole + n_fraction == 0 || mantissa > 1 << 53 {
        return (NOT_SHORT, at);
    }
    let size = mantissa as f64 / EXACT_POWERS[n_fraction];
    (f64::from_bits(size.to_bits() | (u64::from(is_negative) << 63)), end)
}

const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The largest mantissa that stays below 2^53, or just over it, when so many digits are put behind it.
const LARGEST_BEFORE: [u64; 9] = {
    let mut largest = [0; 9];
    let mut n_digits = 0;
    while n_digits < 9 {
        largest[n_digits] = (1 << 53) / POWERS[n_digits];
        n_digits += 1;
    }
    largest
};

const EXACT_POWERS: [f64; 17] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16];

/// The value of the digits at `at`, up to eight, and how many there are.
#[inline(always)]
fn digits(bytes: &[u8], at: usize) -> (u64, usize) {
    let Some(word) = bytes.get(at..at + 8).and_then(|word| word.try_into().ok()) else {
        return (0, 0);
    };
    // Digits become 0 to 9; every other byte gets its top bit set by the addition, or has it.
    let values = u64::from_le_bytes(word) ^ 0x3030_3030_3030_3030;
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    let n_digits = others.trailing_zeros() as usize / 8;
    // Zeros in front of the digits push out what follows them.
    let values = values.unbounded_shl(64 - 8 * n_digits as u32);
    // Neighbours are joined to pairs, the pairs to the whole, by two multiplications each of which sums two of them.
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8);
    let odd = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let even = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    (odd.wrapping_add(even) >> 32, n_digits)
}

/// A number of any length at the start of a cell and where it ends, as [`parse_short`] has it.
#[inline(never)]
pub(super) fn parse_long(bytes: &[u8], at: usize) -> (f64, usize) {
    // Words that mean numbers (`nan`) may mean empty cells first.
    if !starts_number(&bytes[at..]) {
        return (0.0, at);
    }
    match fast_float2::parse_partial::<f64, _>(&bytes[at..]) {
        Ok((value, n_bytes)) => (value, at + n_bytes),
        Err(_) => (0.0, at),
    }
}

/// Whether a text may be a number by its first byte.
pub(super) fn starts_number(text: &[u8]) -> bool {
    text.first().is_some_and(|byte| byte.is_ascii_digit() || b"+-.".contains(byte))
}

/// Any number, correctly rounded; `None` where the text is not one.
pub(in crate::read) fn parse(text: &[u8]) -> Option<f64> {
    fast_float2::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{parse, parse_short};

    /// The short way where it takes the whole text, else the general one.
    fn value(text: &str) -> Option<f64> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(b',');
        bytes.resize(bytes.len() + 32, 0);
        let (value, end) = parse_short(&bytes, 0);
        if end == text.len() && end > 0 { Some(value) } else { parse(text.as_bytes()) }
    }

    #[track_caller]
    fn check(text: &str) {
        let expected = text.parse::<f64>().ok();
        assert_eq!(value(text).map(f64::to_bits), expected.map(f64::to_bits), "{text}");
    }

    #[test]
    fn texts_of_all_lengths_are_the_numbers_that_they_say() {
        for text in [
            "0",
            "-0",
            "7",
            "-12",
            "1.5",
            ".5",
            "5.",
            "-.25",
            "+3",
            "00012",
            "1e5",
            "1E-7",
            "2.5e+3",
            "0.000001",
            "12345678",
            "123456789",
            "12345678.5",
            "1234567.12345678",
            "0.12345678",
            "0.123456789",
            "0.1234567890123456",
            "0.12345678901234567",
            "9007199254740992",
            "9007199254740993",
            "9.007199254740993",
            "9007199.254740993",
            "0.30000000000000004",
            "179769313486231570000000000000000000",
            "1e400",
            "-1e400",
            "4.9e-324",
            "2e-324",
            "2.2250738585072011e-308",
            "inf",
            "-infinity",
            "99999999.99999999",
            "0.0000000000000001",
        ] {
            check(text);
        }
    }

    #[test]
    fn other_texts_are_no_numbers() {
        for text in
            ["", "-", ".", "-.", "e5", "1e", "1 2", "0x10", "1,5", "--1", "1.2.3", "one", "1_000"]
        {
            check(text);
            assert_eq!(value(text), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_float_is_parsed_to_its_bits(bits: u64) {
            let number = f64::from_bits(bits);
            prop_assume!(!number.is_nan());
            check(&number.to_string());
            check(&format!("{number:e}"));
        }

        #[test]
        fn any_digits_are_rounded_as_the_standard_library_does(
            text in "-?[0-9]{0,12}(\\.[0-9]{0,20})?(e-?[0-9]{1,2})?",
        ) {
            check(&text);
        }
    }
}
