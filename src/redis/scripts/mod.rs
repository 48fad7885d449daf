//! Flow step 3/12: stock -> Redis.
//!
//! The Lua scripts of the Redis stock and outbox, with one typed call for each.
//!
//! A script is one atomic step on one bucket; its text is in `lua/`. Its typed call is a
//! [`ScriptCall`], which also parses the answer; it does no I/O, so that any connection can send
//! it. Key names, argument order and value layouts are defined here. The call of `reserve.lua`,
//! which writes the outbox, is in `decisions`; those of the other outbox scripts are in
//! `outbox/scripts`.
//!
//! Limits: at most [`codes::ITEMS_MAX`] items in a call. On error: unless a script answers `OK`, it
//! has written nothing. May repeat: every call, by request id, loan number or loader token.

use std::collections::HashSet;
use std::sync::Arc;

pub(crate) mod call;
pub mod codes;
mod column;
pub mod decisions;
pub mod intent;
mod keys;
pub mod load;
pub mod lookup;
pub mod moves;
pub mod record;
pub mod snapshot;

use call::Reply;

pub use call::ScriptCall;
pub use decisions::{EntryLimits, OutboxArgs};
pub use keys::{BucketKeys, Installation, Pages};
pub use load::OpenBucket;

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        /// A Lua script of the folder `lua/`, whose head describes it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Script {
            $($name),*
        }

        impl Script {
            /// Every script; a connection loads them before its first call.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name in logs and metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $file),*
                }
            }

            fn body(self) -> &'static str {
                match self {
                    $(Self::$name => include_str!(concat!("../../../lua/", $file, ".lua"))),*
                }
            }
        }
    };
}

scripts! {
    Reserve = "reserve";
    Settle = "settle";
    Release = "release";
    SetPhase = "set_phase";
    Lend = "lend";
    Borrow = "borrow";
    ClearLoan = "clear_loan";
    ChangeStock = "change_stock";
    Hold = "hold";
    Clear = "clear";
    LoadRows = "load_rows";
    Open = "open";
    Snapshot = "snapshot";
    Find = "find";
    Queued = "queued";
    ListClaim = "list_claim";
    ListTakeOver = "list_take_over";
    ListAcknowledge = "list_acknowledge";
    ListReclaim = "list_reclaim";
    ListStatus = "list_status";
    ListRead = "list_read";
    StreamClaim = "stream_claim";
    StreamTakeOver = "stream_take_over";
    StreamAcknowledge = "stream_acknowledge";
    StreamReclaim = "stream_reclaim";
    StreamStatus = "stream_status";
    StreamRead = "stream_read";
    Collect = "collect";
}

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");

impl Script {
    /// The whole text: the script's first line (the `#!lua` line must be the first), then the codes
    /// and the parts of the prelude that the script uses, then the rest. Unused parts are left out
    /// because each call executes the whole text.
    pub fn text(self) -> String {
        let (first, rest) = self.body().split_once('\n').unwrap_or_default();
        let codes = codes::prelude();
        let shared: Vec<&str> = codes.lines().chain(PRELUDE.split("\n\n")).collect();
        let (mut used, mut parts) = (identifiers(rest), vec![rest]);
        // A part uses only earlier parts.
        for part in shared.into_iter().rev() {
            if defined_names(part).any(|name| used.contains(name)) {
                used.extend(identifiers(part));
                parts.push(part);
            }
        }
        parts.push(first);
        parts.reverse();
        parts.join("\n")
    }
}

/// The identifiers of a script, without its comment lines.
fn identifiers(text: &str) -> HashSet<&str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).collect()
}

/// The names that a part of the prelude defines.
fn defined_names(part: &str) -> impl Iterator<Item = &str> {
    part.lines().filter_map(|line| line.strip_prefix("local ")).flat_map(|line| {
        let names = line.strip_prefix("function ").unwrap_or(line);
        names.split(['(', '=']).next().unwrap_or_default().split(',').map(str::trim)
    })
}

/// The owner that a bucket must have; a script rejects any other bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketFence {
    pub installation: Installation,
    /// The identity of the connected server.
    pub server: Arc<str>,
}

/// Why a script call failed. Unless the variant says otherwise, nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bucket is missing or being loaded.
    #[error("the bucket is not loaded")]
    NotReady,
    /// The bucket was opened before a failover or restart: writes may be lost.
    #[error("the bucket was opened on another server")]
    Fenced,
    /// Another ledger uses the same key names on the same server, or another program has written
    /// to the bucket.
    #[error(
        "the bucket is of another installation or its epoch is unreadable: `redis buckets` of \
         `floodgate doctor` tells which; each installation needs a `namespace` of its own"
    )]
    Foreign,
    /// A value was not written by any script.
    #[error("the bucket is damaged: {what}")]
    Corrupt { what: String },
    /// The call has too many items, or the bucket has used all loan numbers.
    #[error("more than {} items in one call", codes::ITEMS_MAX)]
    TooMany,
    /// A loader with a larger token has begun, or this loader has finished.
    #[error("another loader came after this one")]
    OldLoader,
    /// A bug, or corrupt values. Other items of the batch may have been written: repeat the call
    /// with the same ids.
    #[error("script {script} answered {reply}")]
    Unexpected { script: &'static str, reply: String },
}

/// A bucket's units and change count after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketLevel {
    pub stock: u32,
    /// Units lent out and not yet confirmed.
    pub lent: u32,
    /// Number of changes to the accepted requests, starting at a base from the loader's token.
    /// Equal numbers mean that the accepted requests have not changed.
    pub changes: u64,
}

impl BucketLevel {
    /// Whether the bucket has never accepted a request.
    pub fn is_new(&self) -> bool {
        self.changes.is_multiple_of(codes::NUMBERS_PER_LOAD.cast_unsigned())
    }

    fn read(reply: &mut Reply) -> Result<Self, Error> {
        Ok(Self { stock: reply.count()?, lent: reply.count()?, changes: reply.count()? })
    }
}

/// An answer with the bucket's level after the call.
pub type Leveled<T> = (T, BucketLevel);

/// Reads the bucket's level and then the rest of the answer.
fn leveled<T>(
    read: impl Fn(&mut Reply) -> Result<T, Error>,
) -> impl Fn(&mut Reply) -> Result<Leveled<T>, Error> {
    move |reply| {
        let level = BucketLevel::read(reply)?;
        Ok((read(reply)?, level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_script_begins_with_its_own_first_line_and_the_codes() {
        for script in Script::ALL {
            let text = script.text();
            let mut lines = text.lines();
            assert!(lines.next().unwrap().starts_with("#!lua"), "{}", script.name());
            assert_eq!(lines.next(), Some("local OK = 0"));
        }
    }

    #[test]
    fn a_script_has_only_the_parts_of_the_prelude_that_it_uses() {
        for part in PRELUDE.split("\n\n").skip(1) {
            let is_comment = part.lines().all(|line| line.starts_with("--"));
            assert!(is_comment || defined_names(part).next().is_some(), "defines nothing: {part}");
        }
        let has = |script: Script, name: &str| {
            script.text().contains(&format!("\nlocal function {name}("))
        };
        assert!(has(Script::Reserve, "read_bucket") && has(Script::Reserve, "tag_number"));
        assert!(has(Script::SetPhase, "epoch_and_phase"));
        assert!(!has(Script::SetPhase, "read_bucket"));
        assert!(!has(Script::Reserve, "check_loader") && !has(Script::Find, "write"));
        assert!(!Script::Find.text().contains("local PHASE_OPEN"));
    }

    #[test]
    fn a_full_redis_refuses_what_grows_and_finishes_what_was_promised() {
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
            Script::Collect,
        ];
        assert_eq!(allowed, expected);
    }
}
