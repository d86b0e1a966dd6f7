//! Numbers as people read them.

use std::time::Duration;

/// A count with its thousands apart: `24,100`.
pub(crate) fn count(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with what is counted: `1 step`, `2 steps`.
pub(crate) fn counted(n: usize, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(n))
}

/// How many a second: whole numbers from 100 on.
pub(crate) fn rate(per_second: f64) -> String {
    if !per_second.is_finite() {
        "-".to_string()
    } else if per_second >= 100.0 {
        count(per_second.round() as usize)
    } else {
        format!("{per_second:.1}")
    }
}

/// A loss or metric: four places, or powers of ten where these would say nothing.
pub(crate) fn value(x: f64) -> String {
    if x == 0.0 || !x.is_finite() || (1e-3..1e6).contains(&x.abs()) {
        format!("{x:.4}")
    } else {
        format!("{x:.3e}")
    }
}

/// A time that has passed: `7 ms`, `0.42 s`, `12.3 s`, `4 min 05 s`, `2 h 07 min`.
pub(crate) fn seconds(s: f64) -> String {
    if s < 0.0995 {
        format!("{:.0} ms", s * 1e3)
    } else if s < 1.0 {
        format!("{s:.2} s")
    } else if s < 59.95 {
        format!("{s:.1} s")
    } else {
        let whole = s.round() as u64;
        let (hours, minutes) = (whole / 3600, whole / 60 % 60);
        if hours > 0 {
            format!("{hours} h {minutes:02} min")
        } else {
            format!("{minutes} min {:02} s", whole % 60)
        }
    }
}

/// A time to come, as a clock shows it: `0:07`, `12:40`, `2:07:00`.
pub(crate) fn clock(time: Duration) -> String {
    let s = time.as_secs();
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

/// An amount of memory or disk.
pub(crate) fn bytes(n: u64) -> String {
    let n = n as f64;
    match [("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .map(|(unit, shift)| (unit, n / f64::from(1u32 << shift)))
        .find(|(_, amount)| *amount >= 1.0)
    {
        Some((unit, amount)) if amount >= 100.0 => format!("{amount:.0} {unit}"),
        Some((unit, amount)) => format!("{amount:.1} {unit}"),
        None => format!("{n:.0} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        let all = [0, 999, 1000, 24_100, 1_234_567].map(count);
        assert_eq!(all, ["0", "999", "1,000", "24,100", "1,234,567"]);
        assert_eq!((counted(1, "step"), counted(2, "step")), ("1 step".into(), "2 steps".into()));
    }

    #[test]
    fn values_keep_four_places_that_say_something() {
        let all = [0.35123, 0.0, 12345.678, 2.5e-5, 3.2e9, f64::NAN].map(value);
        assert_eq!(all, ["0.3512", "0.0000", "12345.6780", "2.500e-5", "3.200e9", "NaN"]);
        assert_eq!([12.34, 24_100.4, f64::INFINITY].map(rate), ["12.3", "24,100", "-"]);
    }

    #[test]
    fn times_use_the_unit_that_fits() {
        let all = [0.0072, 0.421, 12.34, 59.96, 245.0, 7620.0].map(seconds);
        assert_eq!(all, ["7 ms", "0.42 s", "12.3 s", "1 min 00 s", "4 min 05 s", "2 h 07 min"]);
        let clocks = [7, 760, 7620].map(|s| clock(Duration::from_secs(s)));
        assert_eq!(clocks, ["0:07", "12:40", "2:07:00"]);
    }

    #[test]
    fn bytes_use_the_unit_that_fits() {
        let all = [12, 2048, 3 << 20, 200 << 30].map(bytes);
        assert_eq!(all, ["12 bytes", "2.0 KiB", "3.0 MiB", "200 GiB"]);
    }
}
