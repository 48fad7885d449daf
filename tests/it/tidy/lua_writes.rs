//! A script refuses before its first write: Redis keeps what a refusing script has written.

use super::finding::{Finding, Rule};
use super::{keep_each, tree};

/// Commands that change nothing; every other one counts as a write.
const READS: [&str; 19] = [
    "EXISTS",
    "HEXISTS",
    "HGET",
    "HGETALL",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HSCAN",
    "HVALS",
    "LINDEX",
    "LLEN",
    "LPOS",
    "LRANGE",
    "TYPE",
    "XINFO",
    "XLEN",
    "XPENDING",
    "XRANGE",
    "XREVRANGE",
];

/// Functions of the prelude that write.
const WRITERS: [&str; 3] = ["write(", "enqueue(", "hand_over("];

/// Whether a line of a script writes.
fn writes(line: &str) -> bool {
    let commands = line.split("call('").skip(1).filter_map(|rest| rest.split('\'').next());
    let calls_writer = |name: &&str| {
        line.match_indices(*name).any(|(at, _)| {
            !line[..at].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '_')
        })
    };
    commands.into_iter().any(|command| !READS.contains(&command))
        || WRITERS.iter().any(calls_writer)
}

/// Whether a line ends the script with something else than its result.
fn refuses(line: &str) -> bool {
    let ends = line.split("return {").skip(1).any(|rest| !rest.starts_with("OK"));
    ends || line.contains("return bad") || line.contains("error(")
}

fn refusals_after_writes(path: &str, text: &str) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().map(|line| line.split("--").next().unwrap()).collect();
    let Some(first) = lines.iter().position(|line| writes(line)) else { return Vec::new() };
    let late = lines.iter().enumerate().skip(first).filter(|(_, line)| refuses(line));
    let what = format!("refuses after the write in line {}", first + 1);
    late.map(|(at, _)| Finding::new(path, at + 1, what.clone())).collect()
}

#[test]
fn scripts_refuse_before_they_write() {
    let mut scripts = tree::files(&["lua"], &["lua"]);
    // Its functions write; it is no script.
    scripts.retain(|file| file.path != "lua/prelude.lua");
    keep_each(Rule::LuaWrites, &scripts, refusals_after_writes);
}

#[test]
fn planted_refusals_after_a_write_are_found() {
    let good = "if bad then return bad end\nlocal n = call('HLEN', KEYS[1])\n\
                if n > 5 then return {TOO_MANY} end\ncall('HSET', KEYS[1], 'n', n)\nreturn {OK}\n";
    assert!(refusals_after_writes("lua/a.lua", good).is_empty());
    let refusals = [
        "if not x then return {CORRUPT, 'x'} end",
        "if bad then return bad end",
        "error('damaged')",
    ];
    let writes_of = ["call('HDEL', KEYS[1], 'n')", "write(a, b, 1, c, 2)", "call('NEW', KEYS[1])"];
    for (late, write) in refusals.iter().flat_map(|late| writes_of.map(|write| (late, write))) {
        for text in [format!("{write}\n{late}\n"), format!("for i = 1, n do {late} {write} end\n")]
        {
            assert_eq!(refusals_after_writes("lua/a.lua", &text).len(), 1, "{text}");
        }
    }
    assert!(refusals_after_writes("lua/a.lua", "-- call('SET')\nreturn {FOREIGN}\n").is_empty());
    assert!(!writes("overwrite(a)"));
}
