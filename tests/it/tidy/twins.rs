//! Lists in documents agree with their counterparts in the code: metrics, problem codes, rules.

use std::collections::BTreeMap;

use super::finding::{Finding, Rule};
use super::{keep, rust, tree};

/// Names with their lines.
type Names = BTreeMap<String, usize>;

/// One of two lists: its file and its names; `None` if the file does not exist.
struct Side {
    path: &'static str,
    names: Option<Names>,
}

impl Side {
    fn of(path: &'static str, names: impl Fn(&str) -> Names) -> Self {
        Self { path, names: tree::read(path).map(|text| names(&text)) }
    }
}

/// Names of one side that the other side lacks. A missing file counts as an empty list, but is not
/// itself a finding.
fn twins(one: &Side, other: &Side) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (side, twin) in [(one, other), (other, one)] {
        let Some(names) = &side.names else { continue };
        let known = twin.names.clone().unwrap_or_default();
        let missing = names.iter().filter(|(name, _)| !known.contains_key(*name));
        findings.extend(missing.map(|(name, line)| {
            Finding::new(side.path, *line, format!("`{name}` is not in {}", twin.path))
        }));
        if names.is_empty() {
            findings.push(Finding::new(side.path, 1, "no names were found here"));
        }
    }
    findings
}

/// `"floodgate_..."` literals without the suffixes of the exposition format. The code spells names
/// in full, so that a search for an alert's metric finds them.
fn metric_literals(source: &str) -> Names {
    let literals = rust::literals(source).into_iter();
    let metrics = literals
        .filter(|(_, text)| text.starts_with("floodgate_") && text.chars().all(rust::is_word));
    metrics.map(|(line, name)| (base(&name).to_owned(), line)).collect()
}

/// Every `floodgate_...` word of a document, without patterns such as `floodgate_gate_*`.
fn metric_mentions(document: &str) -> Names {
    let mut mentions = Names::new();
    for (index, line) in document.lines().enumerate() {
        for at in line.match_indices("floodgate_").map(|(at, _)| at) {
            let name: String = line[at..].chars().take_while(|&c| rust::is_word(c)).collect();
            if !name.ends_with('_') {
                mentions.entry(base(&name).to_owned()).or_insert(index + 1);
            }
        }
    }
    mentions
}

/// Metrics of a document that are not registered.
fn unregistered(path: &str, document: &str, known: &Names) -> Vec<Finding> {
    let mentions = metric_mentions(document).into_iter();
    let unknown = mentions.filter(|(name, _)| !known.contains_key(name));
    unknown
        .map(|(name, line)| Finding::new(path, line, format!("`{name}` is not registered")))
        .collect()
}

fn base(metric: &str) -> &str {
    let endings = ["_total", "_bucket", "_count", "_sum", "_created", "_info"];
    endings.iter().find_map(|ending| metric.strip_suffix(ending)).unwrap_or(metric)
}

/// The kebab-case literals in the table `CODES` or in the call `codes!`.
fn problem_literals(source: &str) -> Names {
    let code = rust::code(source);
    let tables = rust::words(&code, "CODES").chain(rust::words(&code, "codes!"));
    let tables = tables.map(|name| {
        let body = code[name..].find(['=', '{']).map_or(code.len(), |at| name + at);
        let open = code[body..].find(['[', '{', '(']).map_or(code.len(), |at| body + at);
        let close = rust::closing(&code, open);
        let first_line = code[..open].matches('\n').count();
        let literals = rust::literals(&source[open..close]).into_iter();
        let codes = literals.filter(|(_, text)| is_kebab(text));
        codes.map(|(line, text)| (text, first_line + line)).collect()
    });
    tables.max_by_key(Names::len).unwrap_or_default()
}

/// The backticked words in table columns headed `code`.
fn problem_rows(document: &str) -> Names {
    let mut names = Names::new();
    let mut column = None;
    for (index, line) in document.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if cells.len() < 3 {
            column = None;
        } else if column.is_none() {
            column = Some(cells.iter().position(|cell| cell.eq_ignore_ascii_case("code")));
        } else if let Some(Some(column)) = column {
            let words = cells.get(column).into_iter().flat_map(|cell| cell.split('`'));
            names.extend(words.filter(|word| is_kebab(word)).map(|w| (w.to_owned(), index + 1)));
        }
    }
    names
}

fn is_kebab(word: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase());
    word.split('-').all(is_part)
}

/// The variants of `Rule`; an unused variant does not compile.
fn rules(source: &str) -> Names {
    let code = rust::code(source);
    let Some(start) = code.find("enum Rule {") else { return Names::new() };
    let line = code[..start].matches('\n').count();
    let body = &code[start..rust::closing(&code, start + "enum Rule ".len())];
    let variants = body.lines().enumerate().skip(1);
    let variants = variants.map(|(index, name)| (name.trim_matches([' ', ',']), line + index + 1));
    variants.filter(|(name, _)| !name.is_empty()).map(|(name, l)| (name.to_owned(), l)).collect()
}

/// The rules that the style guide names as: tidy `Name`.
fn rules_in_the_guide(guide: &str) -> Names {
    let mut rules = Names::new();
    for (index, line) in guide.lines().enumerate() {
        for rest in line.split("tidy `").skip(1) {
            rules.insert(rest.chars().take_while(|&c| rust::is_word(c)).collect(), index + 1);
        }
    }
    rules
}

#[test]
fn metrics_and_their_documentation_agree() {
    let documented = Side::of("docs/operate/metrics.md", metric_mentions);
    let registered = Side::of("src/observe/metrics.rs", metric_literals);
    let mut findings = twins(&documented, &registered);
    let known = registered.names.unwrap_or_default();
    let files = tree::files(&["deploy", "docs/operate", "docs/runbooks"], &["md", "yml"]);
    let others = files.iter().filter(|file| file.path != documented.path);
    findings.extend(others.flat_map(|file| unregistered(&file.path, &file.text, &known)));
    keep(Rule::Metrics, findings);
}

#[test]
fn problem_codes_and_their_documentation_agree() {
    let documented = Side::of("docs/api.md", problem_rows);
    keep(
        Rule::ProblemCodes,
        twins(&documented, &Side::of("src/http/middleware/problem_code.rs", problem_literals)),
    );
}

#[test]
fn the_style_guide_and_the_checks_agree() {
    let guide = Side::of("docs/style.md", rules_in_the_guide);
    keep(Rule::StyleGuide, twins(&guide, &Side::of("tests/it/tidy/finding.rs", rules)));
}

fn names(names: &[(&str, usize)]) -> Names {
    names.iter().map(|(name, line)| ((*name).to_owned(), *line)).collect()
}

fn found(one: Option<&[(&str, usize)]>, other: Option<&[(&str, usize)]>) -> Vec<String> {
    let one = Side { path: "docs/a.md", names: one.map(names) };
    let other = Side { path: "src/a.rs", names: other.map(names) };
    twins(&one, &other).iter().map(ToString::to_string).collect()
}

#[test]
fn a_planted_name_on_one_side_is_found() {
    assert_eq!(found(Some(&[("a", 1)]), Some(&[("a", 7)])), [""; 0]);
    assert_eq!(
        found(Some(&[("a", 1), ("b", 2)]), Some(&[("a", 7), ("c", 8)])),
        ["docs/a.md:2: `b` is not in src/a.rs", "src/a.rs:8: `c` is not in docs/a.md"]
    );
}

#[test]
fn a_twin_alone_and_an_empty_twin_are_found() {
    assert_eq!(found(None, None), [""; 0]);
    assert_eq!(found(Some(&[("a", 1)]), None), ["docs/a.md:1: `a` is not in src/a.rs"]);
    assert_eq!(found(Some(&[]), None), ["docs/a.md:1: no names were found here"]);
}

#[test]
fn metrics_are_read_from_source_and_document() {
    let expected = names(&[("floodgate_orders", 2), ("floodgate_wait_seconds", 4)]);
    let source = r#"
const A: &str = "floodgate_orders";
// "floodgate_no"
f("floodgate_wait_seconds", "floodgate_ is a prefix");
"#;
    assert_eq!(metric_literals(source), expected);
    let document = "
| `floodgate_orders_total{sale}` | sold |
All begin with `floodgate_`; see `floodgate_gate_*`.
rate(floodgate_wait_seconds_bucket[1m])
";
    assert_eq!(metric_mentions(document), expected);
}

#[test]
fn a_planted_metric_that_is_not_registered_is_found() {
    let known = names(&[("floodgate_orders", 1)]);
    let document = "`floodgate_orders_total` grows\n`floodgate_order_total` does not\n";
    let found = unregistered("docs/runbooks/a.md", document, &known);
    let expected = "`floodgate_order` is not registered";
    assert_eq!(found, [Finding::new("docs/runbooks/a.md", 2, expected)]);
}

#[test]
fn problem_codes_are_read_from_source_and_document() {
    let expected = names(&[("busy", 4), ("sold-out", 3)]);
    let array = r#"
const CODES: [(&str, u16, &str); 2] = [
    ("sold-out", 409, "Sold out"),
    ("busy", 503, ""),
];
const FIELD: &str = "type";
"#;
    assert_eq!(problem_literals(array), expected);
    let call = r#"
macro_rules! codes { () => { mod x {} } } codes! {
    SoldOut => "sold-out",
    Busy => "busy",
}
static ALL: [Code; 2] = CODES;
const FIELD: &str = "type";
"#;
    assert_eq!(problem_literals(call), expected);
    let document = "| code | status |
|---|---|
| `sold-out` | `no-code` |
| `busy` | |

| field | meaning |
|---|---|
| `type` | |
";
    assert_eq!(problem_rows(document), expected);
}

#[test]
fn rules_are_read_from_source_and_guide() {
    let source = "/// Rules.\npub enum Rule {\n    Allow, // no\n    Tasks,\n}\nenum Other { A }\n";
    assert_eq!(rules(source), names(&[("Allow", 3), ("Tasks", 4)]));
    let guide = "| rule | check |\n| no spawn | clippy, tidy `Tasks` |\n| x | `tidy` |\n";
    assert_eq!(rules_in_the_guide(guide), names(&[("Tasks", 2)]));
}
