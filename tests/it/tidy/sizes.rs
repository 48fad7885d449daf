//! Length limits of files, functions and lines.

use super::finding::{Finding, Rule};
use super::{keep_each, rust, tree};

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_CHARS_MAX: usize = 100;

fn sized_files() -> Vec<tree::File> {
    let folders = ["src", "crates", "bench", "tests", "lua", "scripts", "web"];
    let mut files = tree::files(&folders, &["rs", "lua", "sh", "js"]);
    // As published; `web/ops/vendored.md` lists them.
    files.retain(|file| !file.path.ends_with(".min.js"));
    files
}

fn file_length(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![Finding::new(path, lines, format!("{lines} lines, at most {FILE_LINES_MAX}"))]
}

fn function_length(path: &str, text: &str) -> Vec<Finding> {
    let functions = rust::functions(&rust::code(text)).into_iter();
    functions
        .map(|function| (1 + function.last_line - function.first_line, function))
        .filter(|(lines, _)| *lines > FUNCTION_LINES_MAX)
        .map(|(lines, function)| {
            let what = format!("{}: {lines} lines, at most {FUNCTION_LINES_MAX}", function.name);
            Finding::new(path, function.first_line, what)
        })
        .collect()
}

fn line_length(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.chars().count()));
    lines
        .filter(|(_, chars)| *chars > LINE_CHARS_MAX)
        .map(|(line, chars)| {
            Finding::new(path, line, format!("{chars} characters, at most {LINE_CHARS_MAX}"))
        })
        .collect()
}

#[test]
fn files_are_short() {
    keep_each(Rule::FileLength, &sized_files(), file_length);
}

#[test]
fn a_planted_long_file_is_found() {
    assert!(file_length("src/a.rs", &"\n".repeat(400)).is_empty());
    assert_eq!(file_length("src/a.rs", &"\n".repeat(401)).len(), 1);
}

#[test]
fn functions_are_short() {
    keep_each(Rule::FunctionLength, &tree::rust(), function_length);
}

#[test]
fn a_planted_long_function_is_found() {
    let function =
        |body: usize| format!("fn short() {{}}\nfn long() {{\n{}}}\n", "\n".repeat(body));
    assert!(function_length("src/a.rs", &function(68)).is_empty());
    let found = function_length("src/a.rs", &function(69));
    assert_eq!(found, [Finding::new("src/a.rs", 2, "long: 71 lines, at most 70")]);
}

#[test]
fn lines_are_short() {
    keep_each(Rule::LineLength, &sized_files(), line_length);
}

#[test]
fn a_planted_long_line_is_found() {
    let line = |chars| format!("-- 秒杀\n{}\n", "秒".repeat(chars));
    assert!(line_length("lua/a.lua", &line(100)).is_empty());
    assert_eq!(
        line_length("lua/a.lua", &line(101)),
        [Finding::new("lua/a.lua", 2, "101 characters, at most 100")]
    );
}
