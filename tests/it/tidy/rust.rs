//! A minimal Rust lexer: which bytes are code, comment or literal, where functions end, and which
//! items are tests.

use std::ops::Range;

use super::finding::line_of;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// A function, from the line of its `fn` to the line of its closing brace.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub first_line: usize,
    pub last_line: usize,
}

/// The text with comments and literals blanked; lines and offsets stay.
pub fn code(text: &str) -> String {
    only(Kind::Code, text)
}

/// The text with everything but comments blanked; lines and offsets stay.
pub fn comments(text: &str) -> String {
    only(Kind::Comment, text)
}

/// [`code`] without tests.
pub fn production(path: &str, text: &str) -> String {
    let mut code = code(text);
    if is_test_file(path) || code.contains("#![cfg(test)]") {
        return String::new();
    }
    while let Some(start) = code.find("#[cfg(test)]") {
        let end = item_end(&code, start);
        blank(&mut code, start..end);
    }
    code
}

/// The string literals with the lines they start in, without quotes and prefixes.
pub fn literals(text: &str) -> Vec<(usize, String)> {
    let mut literals = Vec::new();
    for (kind, range) in tokens(text) {
        let (start, source) = (range.start, &text[range]);
        let quotes = source.find('"').zip(source.rfind('"'));
        if let (Kind::Literal, Some((open, close))) = (kind, quotes)
            && !source.starts_with('\'')
        {
            literals.push((line_of(text, start), source[open + 1..close].to_owned()));
        }
    }
    literals
}

/// The functions with a body in `code` (as [`code`] returns it), outer ones before inner ones.
pub fn functions(code: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    for start in words(code, "fn") {
        let name = code[start + "fn".len()..].trim_start();
        let name: String = name.chars().take_while(|&c| is_word(c)).collect();
        let body = body_or_end(code, start);
        if !name.is_empty() && code[body..].starts_with('{') {
            functions.push(Function {
                name,
                first_line: line_of(code, start),
                last_line: line_of(code, closing(code, body)),
            });
        }
    }
    functions
}

/// The offsets of `word` in `code`, not counting parts of longer names.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        let starts = !word.starts_with(is_word) || !before.is_some_and(is_word);
        let ends = !word.ends_with(is_word) || !after.is_some_and(is_word);
        starts && ends
    })
}

/// The offset of the bracket that closes the one at `open`, or the end of the code.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code[open..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return open + at;
        }
    }
    code.len()
}

/// Whether `c` may be part of a name.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_test_file(path: &str) -> bool {
    let of_crate = || Some(path.strip_prefix("crates/")?.split_once('/')?.1);
    let in_package = path.strip_prefix("bench/").or_else(of_crate).unwrap_or(path);
    in_package.starts_with("tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// The offset of the brace that opens the body of the item at `start`, or of the item's semicolon.
fn body_or_end(code: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(found) = code.get(at..).and_then(|rest| rest.find(['(', '[', '{', ';'])) {
        at += found;
        match code.as_bytes()[at] {
            b'{' | b';' => return at,
            _ => at = closing(code, at) + 1,
        }
    }
    code.len()
}

/// The end of the item whose first attribute is at `start`.
fn item_end(code: &str, start: usize) -> usize {
    let body = body_or_end(code, start);
    let end = if code[body..].starts_with('{') { closing(code, body) } else { body };
    code.len().min(end + 1)
}

fn only(wanted: Kind, text: &str) -> String {
    let mut masked = text.to_owned();
    for (kind, range) in tokens(text) {
        if kind != wanted {
            blank(&mut masked, range);
        }
    }
    masked
}

/// Overwrites everything but line ends with spaces, byte for byte.
fn blank(text: &mut String, range: Range<usize>) {
    let spaces: String =
        text[range.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect();
    text.replace_range(range, &spaces);
}

fn tokens(text: &str) -> Vec<(Kind, Range<usize>)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (kind, length) = token(&text[at..]);
        tokens.push((kind, at..at + length));
        at += length;
    }
    tokens
}

/// Kind and length of the token at the start of `rest`.
fn token(rest: &str) -> (Kind, usize) {
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if let Some(length) = string(rest).or_else(|| character(rest)) {
        return (Kind::Literal, length);
    }
    let name = rest.chars().take_while(|&c| is_word(c)).map(char::len_utf8).sum();
    let first = rest.chars().next().map_or(0, char::len_utf8);
    (Kind::Code, first.max(name))
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(next) = rest.get(at..).filter(|next| !next.is_empty()) {
        if next.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if next.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += next.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a string literal of any kind: `"`, `b"`, `c"`, `r"`, `r#"`, `br#"`, `cr#"`.
fn string(rest: &str) -> Option<usize> {
    let after_kind = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    let raw = after_kind.strip_prefix('r');
    let (hashes, body) = match raw {
        Some(raw) => {
            let body = raw.trim_start_matches('#');
            (raw.len() - body.len(), body.strip_prefix('"')?)
        }
        None => (0, after_kind.strip_prefix('"')?),
    };
    let start = rest.len() - body.len();
    if raw.is_some() {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(body.find(&end).map_or(rest.len(), |at| start + at + end.len()));
    }
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(start + at + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// The length of a character literal; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    let mut chars = body.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        let (escaped, _) = chars.next()?;
        let end = body.get(escaped + 1..)?.find('\'')?;
        return Some(1 + escaped + 1 + end + 1);
    }
    let (after, quote) = chars.next()?;
    (quote == '\'').then_some(1 + after + 1)
}

#[test]
fn comments_literals_and_code_are_separated() {
    let text =
        "let a = \"/* no */ \\\" //\"; // yes \"\nlet b = 1; /* a /* b */ c */ let d = r#\"\"{\"#;";
    assert_eq!(code(text).split_whitespace().collect::<String>(), "leta=;letb=1;letd=;");
    let comments = comments(text);
    assert_eq!(comments.split_whitespace().collect::<String>(), "//yes\"/*a/*b*/c*/");
    assert_eq!(comments.len(), text.len());
    assert_eq!(literals(text), [(1, "/* no */ \\\" //".to_owned()), (2, "\"{".to_owned())]);
}

#[test]
fn lifetimes_are_code_and_characters_are_not() {
    let text =
        r"fn f<'a>(x: &'a str) { let y = ['\'', '{', '\u{1F600}', 'é', b'\\']; g('a', 'b') }";
    assert_eq!(
        code(text).split_whitespace().collect::<Vec<_>>().join(" "),
        "fn f<'a>(x: &'a str) { let y = [ , , , , b ]; g( , ) }"
    );
}

#[test]
fn tests_are_not_production() {
    let text = "
fn a() {}
#[cfg(test)]
const N: [u8; 2] = [1, 2];
fn b() {}
#[cfg(test)]
mod tests {
    fn c() {}
}
fn d() {}
";
    let names = |code: &str| functions(code).into_iter().map(|f| f.name).collect::<String>();
    assert_eq!(names(&production("src/x.rs", text)), "abd");
    assert!(!production("src/x.rs", text).contains("u8"));
    assert_eq!(names(&code(text)), "abcd");
    for path in ["src/x_tests.rs", "tests/it/x.rs", "bench/tests/x.rs", "crates/y/tests/x.rs"] {
        assert_eq!(production(path, text), "", "{path}");
    }
    for path in ["bench/src/x.rs", "crates/y/src/x.rs"] {
        assert_eq!(names(&production(path, text)), "abd", "{path}");
    }
}

#[test]
fn functions_end_at_their_own_brace() {
    let text = r#"
trait T { fn none(&self); }
fn one(f: fn(u8) -> u8)
-> [u8; 2] {
    let s = "}";
    { }
}
fn two() {}
"#;
    let spans = functions(&code(text));
    let spans: Vec<_> =
        spans.iter().map(|f| (f.name.as_str(), f.first_line, f.last_line)).collect();
    assert_eq!(spans, [("one", 3, 7), ("two", 8, 8)]);
}

#[test]
fn a_word_is_not_found_inside_a_longer_one() {
    let code = "my_tokio::spawn tokio::spawn_local tokio::spawn(x)";
    assert_eq!(words(code, "tokio::spawn").collect::<Vec<_>>(), [35]);
}
