//! Amounts of memory as people write them: `2GiB`, `800 MB`, `4096`.

/// The units, with how many bytes each is.
const UNITS: [(&str, f64); 9] = [
    ("b", 1.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
];

/// The bytes of an amount: a number, and a unit (`B`, `kB`, `MB`, `GB`, `TB`, `KiB`, `MiB`, `GiB`, `TiB`; bytes unless said).
pub fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (text[..end].parse::<f64>().ok()?, text[end..].trim().to_lowercase());
    let unit = if unit.is_empty() { "b" } else { unit.as_str() };
    let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = number * size;
    (bytes >= 1.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// An amount of memory for people, in the unit that leaves the fewest digits.
pub fn bytes_in_words(bytes: u64) -> String {
    match bytes as f64 {
        n if n >= 1_073_741_824.0 => format!("{:.2} GiB", n / 1_073_741_824.0),
        n if n >= 1_048_576.0 => format!("{:.1} MiB", n / 1_048_576.0),
        n if n >= 1024.0 => format!("{:.1} KiB", n / 1024.0),
        n => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        assert_eq!(bytes_of("2GiB"), Some(2 << 30));
        assert_eq!(bytes_of(" 1.5 MiB "), Some(3 << 19));
        assert_eq!(bytes_of("800 MB"), Some(800_000_000));
        assert_eq!(bytes_of("4096"), Some(4096));
        assert_eq!(bytes_of("16b"), Some(16));
    }

    #[test]
    fn what_is_no_amount_is_none() {
        for text in ["", "GiB", "2 gigs", "-1GB", "0", "1.2.3MB", "nan", "9e99", "99999999999TiB"] {
            assert_eq!(bytes_of(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_are_told_in_the_unit_that_fits() {
        assert_eq!(bytes_in_words(2 << 30), "2.00 GiB");
        assert_eq!(bytes_in_words(3 << 19), "1.5 MiB");
        assert_eq!(bytes_in_words(100), "100 B");
    }
}
