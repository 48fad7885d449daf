//! The texts of the scripts.

use floodgate::redis::scripts::Script;

#[test]
fn every_file_of_the_folder_is_a_script_or_the_prelude() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/lua");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let scripts = Script::ALL.iter().map(|script| format!("{}.lua", script.name()));
    let mut expected: Vec<String> = scripts.chain(["prelude.lua".to_owned()]).collect();
    expected.sort();
    assert_eq!(files, expected);
}

#[test]
fn scripts_that_finish_what_was_promised_run_on_a_full_redis() {
    let allows_oom = |script: &Script| script.text().starts_with("#!lua flags=allow-oom\n");
    let allowed: Vec<_> = Script::ALL.iter().copied().filter(allows_oom).collect();
    let expected = [
        Script::Settle,
        Script::Release,
        Script::SetPhase,
        Script::Borrow,
        Script::ClearLoan,
        Script::ListClaim,
        Script::ListTakeOver,
        Script::ListAcknowledge,
        Script::ListReclaim,
        Script::StreamClaim,
        Script::StreamTakeOver,
        Script::StreamAcknowledge,
        Script::StreamReclaim,
    ];
    assert_eq!(allowed, expected);
}
