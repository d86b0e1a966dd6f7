//! Damaged texts: thousands of seeded mutations of programs. None may panic, and what still parses
//! must print to a fixed point. The same as the fuzz target `program_text`, but repeatable and
//! without a nightly compiler.

use super::generate;
use crate::{Builder, DType, Init, Program};

/// A small generator (xorshift64*), so that a failure names a seed and nothing else.
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64) -> Draws {
        Draws(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

const N_MUTATIONS: u64 = 6000;

#[test]
fn damaged_texts_never_panic_and_what_parses_prints_to_a_fixed_point() {
    let texts = originals();
    let mut n_parsed = 0;
    for seed in 0..N_MUTATIONS {
        let mut draws = Draws::new(seed);
        let mut text = texts[draws.below(texts.len())].clone();
        for _ in 0..=draws.below(2) {
            text = damaged(text, &texts, &mut draws);
        }
        if let Ok(program) = text.parse::<Program>() {
            n_parsed += 1;
            let printed = program.to_string();
            let again: Program =
                printed.parse().unwrap_or_else(|error| panic!("seed {seed}: {error}\n{printed}"));
            assert_eq!(again, program, "seed {seed}");
            assert_eq!(again.to_string(), printed, "seed {seed}");
        }
    }
    // Otherwise the damage is so heavy that only the first line is ever tested.
    assert!(n_parsed > N_MUTATIONS / 20, "only {n_parsed} parsed");
    assert!(n_parsed < N_MUTATIONS, "nothing was damaged");
}

fn originals() -> Vec<String> {
    let g = Builder::new("mlp");
    let x = g.input("x", DType::F32, [8, 4]).unwrap();
    let w = g.weight("w", [4, 3], Init::Normal(0.5)).unwrap();
    let h = x.matmul(&w).unwrap().gelu().unwrap().dropout(0.1).unwrap();
    g.output("h", &h).unwrap();
    g.update(&w, &(&w * 0.5).unwrap()).unwrap();
    let mut texts = vec![g.finish().to_string(), generate::every_operation().to_string()];
    let mut draws = Draws::new(1);
    for length in [60, 120, 180, 240] {
        let numbers = (0..length).map(|_| draws.below(1 << 31) as u32).collect();
        texts.push(generate::random_program(numbers).to_string());
    }
    texts
}

fn damaged(text: String, texts: &[String], draws: &mut Draws) -> String {
    match draws.below(12) {
        0 => flipped(text, draws),
        1 => with_lines(&text, |lines| {
            lines.remove(draws.below(lines.len()));
        }),
        2 => with_lines(&text, |lines| {
            let copy = lines[draws.below(lines.len())];
            lines.insert(draws.below(lines.len()), copy);
        }),
        3 => with_lines(&text, |lines| {
            let (a, b) = (draws.below(lines.len()), draws.below(lines.len()));
            lines.swap(a, b);
        }),
        4 => {
            let other = &texts[draws.below(texts.len())];
            let token = token(other, draws).to_string();
            replaced(&text, &token, draws)
        }
        5 => {
            let odd = [
                "0",
                "1",
                "2",
                "-1",
                "18446744073709551615",
                "4294967296",
                "1e308",
                "-0",
                "0.5",
                "{",
                "}",
                "[",
                "]",
                "(",
                ")",
                ",",
                ":",
                "=",
                "@",
                "%",
                "\"",
                "\\",
                "//",
                "\n",
                "%0",
                "%99",
                "[]",
                "{}",
                "null",
                "true",
                "f32",
                "bool",
                "output",
                "body",
                "\u{1f980}",
                "",
            ];
            let odd = draws.one_of(&odd);
            replaced(&text, odd, draws)
        }
        6 | 7 => with_lines(&text, |lines| {
            // A line of another program in place of one: both are well formed.
            let other: Vec<&str> = texts[draws.below(texts.len())].lines().collect();
            let (from, to) = (draws.below(other.len()), draws.below(lines.len()));
            lines[to] = other[from];
        }),
        8 | 9 => {
            let digit = draws.one_of(&["0", "1", "2", "3", "7"]);
            let place =
                tokens(&text).into_iter().filter(|t| text[t.clone()].parse::<f64>().is_ok());
            let places: Vec<_> = place.collect();
            match places.len() {
                0 => text,
                n => with_token(&text, places[draws.below(n)].clone(), digit),
            }
        }
        10 => text.chars().take(draws.below(text.len().max(1))).collect(),
        _ => with_lines(&text, |lines| {
            let (a, b) = (draws.below(lines.len()), draws.below(lines.len()));
            lines.drain(a.min(b)..a.max(b).min(a.min(b) + 4));
        }),
    }
}

fn flipped(text: String, draws: &mut Draws) -> String {
    let mut bytes = text.into_bytes();
    if !bytes.is_empty() {
        let idx = draws.below(bytes.len());
        bytes[idx] ^= 1 << draws.below(8);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn with_lines<'a>(text: &'a str, change: impl FnOnce(&mut Vec<&'a str>)) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    if !lines.is_empty() {
        change(&mut lines);
    }
    lines.join("\n")
}

/// Where the words, numbers and marks of a text are.
fn tokens(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (idx, c) in text.char_indices() {
        let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '-';
        match found.last_mut() {
            Some(last)
                if last.end == idx && in_word(c) && text[last.clone()].ends_with(in_word) =>
            {
                last.end = idx + 1;
            }
            _ if !c.is_whitespace() => found.push(idx..idx + c.len_utf8()),
            _ => {}
        }
    }
    found
}

fn token<'a>(text: &'a str, draws: &mut Draws) -> &'a str {
    let tokens = tokens(text);
    if tokens.is_empty() { "" } else { &text[tokens[draws.below(tokens.len())].clone()] }
}

/// The text with one token replaced.
fn replaced(text: &str, by: &str, draws: &mut Draws) -> String {
    let tokens = tokens(text);
    if tokens.is_empty() {
        return by.to_string();
    }
    with_token(text, tokens[draws.below(tokens.len())].clone(), by)
}

fn with_token(text: &str, place: std::ops::Range<usize>, by: &str) -> String {
    format!("{}{by}{}", &text[..place.start], &text[place.end..])
}
