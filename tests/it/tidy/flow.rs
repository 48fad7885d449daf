//! The flow of one purchase: the picture in `src/lib.rs` agrees with the docs of the modules.
//!
//! The picture is the fenced block of `src/lib.rs` with one line per step: its number, its modules
//! (`http/`, `actors/stock_gate`, with or without `.rs`), two spaces, a description. The doc of
//! every module in the picture contains a line `Flow step 3/12: from -> to.`

use super::finding::{Finding, Rule};
use super::tree::{self, File};
use super::{keep, rust};

const PICTURE: &str = "src/lib.rs";
const MARK: &str = "Flow step ";

/// One line of the picture.
struct Step {
    number: usize,
    line: usize,
    modules: Vec<String>,
}

/// One `Flow step` line of a module.
struct Claim<'a> {
    path: &'a str,
    line: usize,
    number: usize,
    total: usize,
}

/// Compares the picture with the modules of `files` (Rust and Lua, including the picture's file).
pub fn flow(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let steps = files.iter().find(|file| file.path == PICTURE).map_or(Vec::new(), picture);
    let claims: Vec<Claim<'_>> =
        files.iter().flat_map(|file| claims(file, &mut findings)).collect();
    for (index, step) in steps.iter().enumerate() {
        if step.number != index + 1 {
            findings.push(Finding::new(PICTURE, step.line, "steps are not numbered from 1"));
        }
        let unmet = step.modules.iter().filter_map(|module| unmet(step, module, files, &claims));
        findings.extend(unmet.map(|what| Finding::new(PICTURE, step.line, what)));
    }
    findings.extend(claims.iter().filter_map(|claim| contradiction(claim, &steps)));
    findings
}

fn picture(file: &File) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut fenced = false;
    for (index, line) in file.text.lines().enumerate() {
        let Some(doc) = line.strip_prefix("//!") else { continue };
        fenced ^= doc.trim_start().starts_with("```");
        let words = doc.trim_start().split_once(char::is_whitespace);
        let step = words.and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
        if let Some((number, rest)) = step.filter(|_| fenced) {
            let names = rest.trim_start().split("  ").next().unwrap_or_default();
            steps.push(Step { number, line: index + 1, modules: modules(names) });
        }
    }
    steps
}

fn modules(names: &str) -> Vec<String> {
    let is_module = |word: &&str| word.contains('/') || extension(word) == Some("rs");
    names.split_whitespace().filter(is_module).map(str::to_owned).collect()
}

fn claims<'a>(file: &'a File, findings: &mut Vec<Finding>) -> Vec<Claim<'a>> {
    let mut claims = Vec::new();
    for (index, line) in rust::comments(&file.text).lines().enumerate() {
        let Some(text) = line.trim_start().strip_prefix("//! ").and_then(|l| l.strip_prefix(MARK))
        else {
            continue;
        };
        let (path, line) = (file.path.as_str(), index + 1);
        match claim(text) {
            Some((number, total)) => claims.push(Claim { path, line, number, total }),
            None => findings.push(Finding::new(path, line, "not `Flow step n/12: from -> to`")),
        }
    }
    claims
}

/// Step and total of a line such as `3/12: stock gate -> bucket.`
fn claim(text: &str) -> Option<(usize, usize)> {
    let (step, route) = text.split_once(": ")?;
    let (number, total) = step.split_once('/')?;
    let (from, to) = route.split_once(" -> ")?;
    let is_complete = !from.trim().is_empty() && !to.trim().is_empty();
    Some((number.parse().ok()?, total.parse().ok()?)).filter(|_| is_complete)
}

/// The reason why `module` does not match this step of the picture; `None` if it matches.
fn unmet(step: &Step, module: &str, files: &[File], claims: &[Claim<'_>]) -> Option<String> {
    let found = files.iter().any(|file| covers(module, &file.path));
    let claimed =
        claims.iter().any(|claim| claim.number == step.number && covers(module, claim.path));
    let number = step.number;
    match (found, claimed) {
        (false, _) => Some(format!("step {number}: there is no {module}")),
        (true, false) if !is_script(module) => {
            Some(format!("step {number}: {module} does not say so"))
        }
        _ => None,
    }
}

fn contradiction(claim: &Claim<'_>, steps: &[Step]) -> Option<Finding> {
    let step = steps.iter().find(|step| step.number == claim.number);
    let pictured =
        step.is_some_and(|step| step.modules.iter().any(|module| covers(module, claim.path)));
    let what = if claim.total != steps.len() {
        format!("says n/{}, the picture in {PICTURE} has {} steps", claim.total, steps.len())
    } else if !pictured {
        format!("the picture in {PICTURE} does not name it on step {}", claim.number)
    } else {
        return None;
    };
    Some(Finding::new(claim.path, claim.line, what))
}

/// Whether `module`, as written in the picture, is or contains the file `path`.
fn covers(module: &str, path: &str) -> bool {
    if is_script(module) {
        return path == module;
    }
    let inside = path.strip_prefix("src/").unwrap_or_default();
    if module.ends_with('/') {
        return inside.starts_with(module);
    }
    let module = module.strip_suffix(".rs").unwrap_or(module);
    inside == format!("{module}.rs") || inside == format!("{module}/mod.rs")
}

/// Scripts (`lua/reserve.lua`) are given by their path and need no `Flow step` line.
fn is_script(module: &str) -> bool {
    extension(module).is_some_and(|extension| extension != "rs")
}

fn extension(path: &str) -> Option<&str> {
    path.rsplit_once('.').map(|(_, extension)| extension)
}

#[test]
fn the_picture_and_the_modules_agree() {
    keep(Rule::Flow, flow(&tree::files(&["src", "lua"], &["rs", "lua"])));
}
