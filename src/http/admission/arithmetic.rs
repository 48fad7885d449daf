//! A sum, a difference or a product, drawn as strokes. The picture has no text; a program that
//! reads it must recognize the figures, which is no obstacle to a program made for it.

use super::challenge::ChallengeTask;
use super::drawing::draw;

/// The picture of a seed's exercise.
pub fn task(seed: u64) -> ChallengeTask {
    let (text, _) = exercise(seed);
    ChallengeTask { svg: Some(draw(&text)), work: None }
}

/// Whether the answer is the value of the seed's exercise.
pub fn accepts(seed: u64, answer: &str) -> bool {
    let (_, value) = exercise(seed);
    answer == value.to_string()
}

/// The exercise of a seed, and its value: never negative.
fn exercise(seed: u64) -> (String, u64) {
    let (a, b) = (10 + seed % 90, 10 + seed / 90 % 90);
    match seed / 8100 % 3 {
        0 => (format!("{a}+{b}"), a + b),
        1 => (format!("{}-{}", a.max(b), a.min(b)), a.abs_diff(b)),
        _ => {
            let b = 2 + b % 8;
            (format!("{a}x{b}"), a * b)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_value_solves_the_exercise_and_nothing_else_does() {
        assert_eq!(exercise(5 + 90 * 3), ("15+13".to_owned(), 28));
        assert_eq!(exercise(5 + 90 * 30 + 8100), ("40-15".to_owned(), 25));
        assert_eq!(exercise(5 + 90 * 3 + 8100 * 2), ("15x7".to_owned(), 105));
        let seed = 5 + 90 * 3;
        assert!(accepts(seed, "28"));
        for wrong in ["", "27", "028", "+28", "28 ", "28.0"] {
            assert!(!accepts(seed, wrong), "{wrong}");
        }
    }

    #[test]
    fn no_answer_is_right_for_more_than_one_seed_in_twenty() {
        let mut counts: HashMap<u64, u32> = HashMap::new();
        for seed in 0..8100 * 3 {
            *counts.entry(exercise(seed).1).or_default() += 1;
        }
        let most = counts.values().max().unwrap();
        assert!(*most * 20 < 8100 * 3, "{most}");
    }
}
