//! A script refuses only before its first write: Redis does not roll back a script's writes.

use super::finding::{Finding, Rule};
use super::{keep_each, tree};

/// Read-only commands; every other command counts as a write.
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

/// Functions of the Lua prelude that write.
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

/// Whether a line ends the script with a refusal or an error.
fn refuses(line: &str) -> bool {
    let ends = line.split("return {").skip(1).any(|rest| !rest.starts_with("OK"));
    ends || line.contains("return bad") || line.contains("error(")
}

fn refusals_after_writes(path: &str, text: &str) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().map(|line| line.split("--").next().unwrap()).collect();
    let Some(first) = lines.iter().position(|line| writes(line)) else { return Vec::new() };
    let refusals = lines.iter().enumerate().skip(first).filter(|(_, line)| refuses(line));
    let what = format!("refuses after the write in line {}", first + 1);
    refusals.map(|(at, _)| Finding::new(path, at + 1, what.clone())).collect()
}

#[test]
fn scripts_refuse_before_they_write() {
    let mut scripts = tree::files(&["lua"], &["lua"]);
    // The prelude defines the writers and is no script of its own.
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
    let writers = ["call('HDEL', KEYS[1], 'n')", "write(a, b, 1, c, 2)", "call('NEW', KEYS[1])"];
    for (refusal, write) in
        refusals.iter().flat_map(|refusal| writers.map(|write| (refusal, write)))
    {
        let in_loop = format!("for i = 1, n do {refusal} {write} end\n");
        for text in [format!("{write}\n{refusal}\n"), in_loop] {
            assert_eq!(refusals_after_writes("lua/a.lua", &text).len(), 1, "{text}");
        }
    }
    assert!(refusals_after_writes("lua/a.lua", "-- call('SET')\nreturn {FOREIGN}\n").is_empty());
    assert!(!writes("overwrite(a)"));
}
