//! Findings of the rule `Flow` when the picture of the flow and the modules disagree.

use super::flow::flow;
use super::tree::File;

const PICTURE: &str = "\
//! Floodgate.
//!
//! ```text
//!  1 http/                       POST /v1/buy/{path_id}: parse
//!  2 actors/gate -> lua/take.lua  one step
//!  3 actors/gate                 RabbitMQ
//! ```
//!
//! 7 actors/nothing  is not in the picture
";

const GATE: &str = "\
//! Flow step 2/3: buy handler -> bucket.
//! Flow step 3/3: queue -> bucket.
";

fn found(changed: &[(&str, &str)]) -> Vec<String> {
    let mut files = vec![
        File::planted("src/lib.rs", PICTURE),
        File::planted("src/http/mod.rs", "//! Folder."),
        File::planted("src/http/buyers/buy.rs", "//! Flow step 1/3: buyer -> gate."),
        File::planted("src/actors/gate.rs", GATE),
        File::planted("lua/take.lua", "-- take"),
    ];
    for (path, text) in changed {
        files.retain(|file| file.path != *path);
        if !text.is_empty() {
            files.push(File::planted(path, text));
        }
    }
    flow(&files).iter().map(ToString::to_string).collect()
}

#[test]
fn agreement_is_no_finding() {
    assert_eq!(found(&[]), [""; 0]);
}

#[test]
fn a_module_that_says_nothing_is_found() {
    let found = found(&[("src/actors/gate.rs", "//! A gate.")]);
    let expected = [(5, 2), (6, 3)];
    let expected = expected
        .map(|(line, n)| format!("src/lib.rs:{line}: step {n}: actors/gate does not say so"));
    assert_eq!(found, expected);
}

#[test]
fn a_folder_in_which_no_module_says_so_is_found() {
    let found = found(&[("src/http/buyers/buy.rs", "//! Buys.")]);
    assert_eq!(found, ["src/lib.rs:4: step 1: http/ does not say so"]);
}

#[test]
fn a_module_that_is_gone_is_found() {
    let found = found(&[("src/actors/gate.rs", ""), ("lua/take.lua", "")]);
    let gone = [(5, 2, "actors/gate"), (5, 2, "lua/take.lua"), (6, 3, "actors/gate")];
    let gone =
        gone.map(|(line, n, module)| format!("src/lib.rs:{line}: step {n}: there is no {module}"));
    assert_eq!(found, gone);
}

#[test]
fn a_step_that_the_picture_does_not_know_is_found() {
    let found = found(&[("src/stock/mod.rs", "//! Flow step 2/3: gate -> bucket.")]);
    let what = "the picture in src/lib.rs does not name it on step 2";
    assert_eq!(found, [format!("src/stock/mod.rs:1: {what}")]);
}

#[test]
fn a_wrong_count_of_steps_is_found() {
    let found = found(&[("src/http/buyers/buy.rs", "//! Flow step 1/12: buyer -> gate.")]);
    assert_eq!(
        found,
        ["src/http/buyers/buy.rs:1: says n/12, the picture in src/lib.rs has 3 steps"]
    );
}

#[test]
fn a_flow_line_of_another_form_is_found() {
    let found = found(&[("src/http/a.rs", "//! Flow step 1/3, from buyer to gate.")]);
    assert_eq!(found, ["src/http/a.rs:1: not `Flow step n/12: from -> to`"]);
}

#[test]
fn steps_out_of_order_are_found() {
    let picture = PICTURE.replace(" 2 actors", " 4 actors");
    let found = found(&[("src/lib.rs", &picture)]);
    assert_eq!(found[0], "src/lib.rs:5: steps are not numbered from 1");
}

#[test]
fn modules_without_a_picture_are_found() {
    let found = found(&[("src/lib.rs", "//! Floodgate.")]);
    assert_eq!(found.len(), 3);
}
