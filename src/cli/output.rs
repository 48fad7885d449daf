//! Data to stdout, messages to stderr. Nothing else in the command line writes to either.

use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value as Json;

use super::exit::{CommandFailure, Exit};

/// Longest wait for a reader of stderr before the last message.
const READER_MAX: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A command's output format, and the flags with which its next steps reach the same server.
#[derive(Debug, Clone)]
pub struct Output {
    pub(super) json: bool,
    /// In front of the name of each command.
    pub(super) flags: String,
    /// Behind the names of those that call the server.
    pub(super) server: String,
}

impl Output {
    /// With `json`, data is one JSON value on one line; else text.
    pub const fn new(json: bool) -> Self {
        Self { json, flags: String::new(), server: String::new() }
    }

    /// The text, with the flags of this command in each one that the text names.
    pub(super) fn with_flags(&self, text: &str) -> String {
        let mut parts = text.split("floodgate ");
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let name = part.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
            let (flags, server) = match name {
                "audit" | "dlq" | "events" | "payments" | "rebuild" | "sale" | "trace" => {
                    (self.flags.as_str(), self.server.as_str())
                }
                "doctor" | "migrate" | "serve" => (self.flags.as_str(), ""),
                _ => ("", ""),
            };
            let rest = part.strip_prefix(name).unwrap_or(part);
            shown.push_str(&format!("floodgate {flags}{name}{server}{rest}"));
        }
        shown
    }

    /// Prints the command's result to stdout. False: its reader has gone (`| head`), which is no
    /// failure. The text is shown as it is: it may have texts of others that name commands.
    ///
    /// # Errors
    /// The result is not written, or only a part of it.
    pub fn data(
        &self,
        data: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<bool> {
        let shown = if self.json { serde_json::to_string(data)? } else { text() };
        match write(&mut std::io::stdout().lock(), &shown) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => {
                let problem = format!("the result cannot be written: {error}");
                let remedy = "make room for it, or name another target, and repeat the command";
                Err(CommandFailure::unclear(problem, remedy).into())
            }
        }
    }

    /// Prints a message about progress or next steps to stderr, if it can be written.
    pub fn note(&self, message: &str) {
        drop(write(&mut std::io::stderr().lock(), &self.with_flags(message)));
    }

    /// Asks on a terminal before the effect, unless `yes` is given; a script is not asked.
    pub(super) fn confirm(&self, yes: bool, effect: &str) -> Result<(), CommandFailure> {
        let (stdin, mut answer) = (std::io::stdin(), "yes".to_owned());
        if !yes && stdin.is_terminal() {
            self.note(&format!("{effect}; type yes to go on"));
            answer.clear();
            drop(stdin.read_line(&mut answer));
        }
        let remedy = "type yes, or give --yes; nothing was changed";
        let failed = || CommandFailure::new(Exit::Negative, "not confirmed", remedy);
        (answer.trim() == "yes").then_some(()).ok_or_else(failed)
    }

    /// Prints the error with its chain of causes to stderr.
    pub fn failed(&self, error: &anyhow::Error) {
        let mut message = format!("error: {error}");
        for cause in error.chain().skip(1).map(ToString::to_string) {
            // Many errors repeat their cause in their own text.
            if !message.contains(&cause) {
                let _ = write!(message, "\n  because: {cause}");
            }
        }
        // The server's text may contain untrusted input.
        let lines: Vec<String> = message.split('\n').map(sanitized).collect();
        // A reader that takes nothing does not keep the process from its end.
        let stderr = std::io::stderr();
        let ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&READER_MAX));
        if ready.is_ok_and(|num| num > 0) {
            self.note(&lines.join("\n"));
        }
    }
}

/// Writes the text, with one line break at its end.
fn write(to: &mut dyn Write, text: &str) -> std::io::Result<()> {
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    to.write_all(text.as_bytes())?;
    to.write_all(newline.as_bytes())?;
    to.flush()
}

/// A number, rounded to an integer, with commas between groups of three digits.
pub fn grouped(number: impl std::fmt::Display) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Untrusted text on one line of at most `max` characters, `..` appended if cut; control and
/// bidirectional formatting characters are replaced by dots.
pub fn on_one_line(text: &str, max: usize) -> String {
    let mut chars = text.chars();
    let shown: String = chars.by_ref().take(max).collect();
    let end = if chars.next().is_some() { ".." } else { "" };
    sanitized(&shown) + end
}

fn sanitized(text: &str) -> String {
    let is_bidi = |c| {
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if c.is_control() || is_bidi(c) { '.' } else { c }).collect()
}

/// A field as text; a dash where it is missing or null.
pub fn field(of: &Json, name: &str) -> String {
    match of.get(name) {
        None | Some(Json::Null) => "-".to_owned(),
        Some(Json::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// The elements of the array `name`; empty where there is none.
pub fn list<'a>(of: &'a Json, name: &str) -> &'a [Json] {
    of.get(name).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// The cursor of the next page, if there is one.
pub fn next_cursor(page: &Json) -> Option<&str> {
    page.get("next_cursor").and_then(Json::as_str)
}

/// A whole number that is not negative.
pub fn number(of: &Json, name: &str) -> Option<u64> {
    of.get(name).and_then(Json::as_u64)
}

/// The fields `names` as the cells of a table's row.
pub fn cells(of: &Json, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| field(of, name)).collect()
}

/// As [`cells`]; untrusted text of at most `max` characters each.
pub fn short_cells(of: &Json, names: &[&str], max: usize) -> Vec<String> {
    names.iter().map(|name| on_one_line(&field(of, name), max)).collect()
}

/// A table with left-aligned columns under a heading. Cells may be untrusted text.
pub fn table(heading: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let headings = heading.iter().map(|&cell| cell.to_owned()).collect();
    let sanitized_line = |cells: Vec<String>| cells.iter().map(|cell| sanitized(cell)).collect();
    let lines = std::iter::once(headings).chain(rows).map(sanitized_line);
    let lines: Vec<Vec<String>> = lines.collect();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let padded = |cells: &Vec<String>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    lines.iter().map(padded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(grouped(1_233_567.5), "1,233,568");
    }

    #[test]
    fn table_columns_are_aligned_and_have_no_trailing_blanks() {
        let rows =
            [vec!["s1".to_owned(), "open".to_owned()], vec!["秒杀".to_owned(), String::new()]];
        assert_eq!(table(&["ID", "PHASE"], rows), "ID  PHASE\ns1  open\n秒杀\n");
    }

    #[test]
    fn untrusted_text_neither_moves_the_cursor_nor_reverses_the_line() {
        assert_eq!(on_one_line("a\u{1b}[2J\r\nb\u{9b}1m\u{202e}c", 99), "a.[2J..b.1m.c");
        assert_eq!(on_one_line("秒杀!", 2), "秒杀..");
        assert_eq!(on_one_line("秒杀", 2), "秒杀");
        let rows = [vec!["x\u{7}\n".to_owned(), "y".to_owned()]];
        assert_eq!(table(&["ID", "SAYS"], rows), "ID   SAYS\nx..  y\n");
    }

    #[test]
    fn text_ends_with_one_newline() {
        for (text, written) in [("a", "a\n"), ("a\n", "a\n"), ("", "")] {
            let mut bytes = Vec::new();
            write(&mut bytes, text).unwrap();
            assert_eq!(bytes, written.as_bytes());
        }
    }
}
