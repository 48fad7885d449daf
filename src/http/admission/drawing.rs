//! Draws an exercise as an SVG of one path: lines only, with moved ends, in random order and
//! direction, among decoys. Drawn anew each time.

use std::fmt::Write;

/// A glyph is drawn on a grid of 4 by 6 units.
const GRID: (f32, f32) = (4.0, 6.0);
/// Pixels of one unit.
const SCALE: f32 = 7.0;
/// From one glyph to the next, in units.
const ADVANCE: f32 = 6.2;
/// Around the text, in units.
const MARGIN: f32 = 2.0;
/// How far an end of a line may move, in units.
const SHAKE: f32 = 0.35;
/// Short lines that belong to no glyph.
const DECOYS: usize = 6;

type Point = (f32, f32);
type Line = (Point, Point);

/// The corners of a glyph's strokes; a stroke ends where the pen is lifted.
fn strokes(glyph: char) -> &'static [&'static [(u8, u8)]] {
    match glyph {
        '0' => &[&[(0, 0), (4, 0), (4, 6), (0, 6), (0, 0)]],
        '1' => &[&[(1, 1), (2, 0), (2, 6)], &[(1, 6), (3, 6)]],
        '2' => &[&[(0, 1), (1, 0), (4, 0), (4, 3), (0, 6), (4, 6)]],
        '3' => &[&[(0, 0), (4, 0), (2, 3), (4, 4), (3, 6), (0, 6)]],
        '4' => &[&[(3, 6), (3, 0), (0, 4), (4, 4)]],
        '5' => &[&[(4, 0), (0, 0), (0, 3), (4, 3), (4, 6), (0, 6)]],
        '6' => &[&[(3, 0), (0, 3), (0, 6), (4, 6), (4, 3), (0, 3)]],
        '7' => &[&[(0, 0), (4, 0), (1, 6)], &[(1, 3), (4, 3)]],
        '8' => &[&[(0, 0), (4, 0), (4, 6), (0, 6), (0, 0)], &[(0, 3), (4, 3)]],
        '9' => &[&[(4, 3), (0, 3), (0, 0), (4, 0), (4, 3), (1, 6)]],
        '+' => &[&[(0, 3), (4, 3)], &[(2, 1), (2, 5)]],
        '-' => &[&[(0, 3), (4, 3)]],
        'x' => &[&[(0, 1), (4, 5)], &[(4, 1), (0, 5)]],
        _ => &[],
    }
}

/// The picture of a text of digits, `+`, `-` and `x`.
pub fn draw(text: &str) -> String {
    let mut lines = Vec::new();
    let mut left = MARGIN;
    for glyph in text.chars() {
        place(glyph, left, &mut lines);
        left += ADVANCE + random(0.6);
    }
    let (width, height) = (left, GRID.1 + 2.0 * MARGIN);
    for _ in 0..DECOYS {
        let from = (fastrand::f32() * width, fastrand::f32() * height);
        lines.push((from, (from.0 + random(1.2), from.1 + random(1.2))));
    }
    fastrand::shuffle(&mut lines);
    let mut path = String::with_capacity(lines.len() * 24);
    for (from, to) in lines {
        let (from, to) = if fastrand::bool() { (from, to) } else { (to, from) };
        let [x0, y0, x1, y1] = [from.0, from.1, to.0, to.1].map(|unit| unit * SCALE);
        // Writing into a string does not fail.
        let _ = write!(path, "M{x0:.1} {y0:.1}L{x1:.1} {y1:.1}");
    }
    let (width, height) = (width * SCALE, height * SCALE);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\"><rect width=\"100%\" height=\"100%\" \
         fill=\"#fff\"/><path d=\"{path}\" fill=\"none\" stroke=\"#222\" stroke-width=\"3\" \
         stroke-linecap=\"round\"/></svg>"
    )
}

/// Adds the lines of a glyph, slanted, each cut at a random point.
fn place(glyph: char, left: f32, lines: &mut Vec<Line>) {
    let (slant, top) = (random(0.12), MARGIN + random(0.8));
    for stroke in strokes(glyph) {
        let corners = stroke.iter().map(|(x, y)| {
            let (x, y) = (f32::from(*x), f32::from(*y));
            (left + x + slant * (GRID.1 - y) + random(SHAKE), top + y + random(SHAKE))
        });
        let corners: Vec<Point> = corners.collect();
        for (from, to) in corners.iter().zip(corners.iter().skip(1)) {
            let at = 0.3 + 0.4 * fastrand::f32();
            let cut = (from.0 + (to.0 - from.0) * at, from.1 + (to.1 - from.1) * at);
            lines.extend([(*from, cut), (cut, *to)]);
        }
    }
}

/// Between minus and plus `most`.
fn random(most: f32) -> f32 {
    (fastrand::f32() * 2.0 - 1.0) * most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_glyph_has_strokes_of_its_own() {
        let all: Vec<_> = "0123456789+-x".chars().map(strokes).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(one.iter().all(|stroke| stroke.len() >= 2), "{at}");
            assert!(!one.is_empty() && all[at + 1..].iter().all(|other| other != one), "{at}");
        }
    }

    #[test]
    fn a_picture_has_lines_only_and_differs_each_time() {
        let picture = draw("40-15");
        assert!(!picture.contains("<text"));
        assert_ne!(picture, draw("40-15"));
        let path = picture.split(" d=\"").nth(1).unwrap().split('"').next().unwrap();
        let allowed = |c: char| c.is_ascii_digit() || "ML .-".contains(c);
        assert!(path.chars().all(allowed), "{path}");
        // Strokes of 4, 0, -, 1, 5: 3 + 4 + 1 + 3 + 5 lines, each cut in two.
        assert_eq!(path.matches('M').count(), 2 * 16 + DECOYS);
    }
}
