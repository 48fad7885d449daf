//! Flow step 3/12: stock -> Redis.
//!
//! The scripts of the Redis gate, and one typed door to each.
//!
//! A script is one atomic step on one bucket; its text is in `lua/`. A door makes the
//! [`ScriptCall`] and
//! reads the answer; it does no I/O, so that any connection can send it. Nobody else knows the
//! names of keys, the order of arguments or the layout of values.
//!
//! Limits: at most [`codes::ITEMS_MAX`] items in a call. On error: whatever a script answers but
//! "done", it has written nothing. May repeat: every call, by request id, loan number or loader
//! token.

use std::collections::HashSet;
use std::sync::Arc;

mod call;
pub mod codes;
mod column;
pub mod find;
pub mod intent;
pub mod keys;
pub mod load;
pub mod moves;
pub mod outbox;
pub mod queued;
pub mod record;
mod reply;
pub mod reserve;
pub mod set_phase;
pub mod settle;
pub mod snapshot;

pub use call::ScriptCall;
pub use find::Find;
pub use keys::{BucketKeys, Installation, OutboxKeys};
pub use load::{ClearBucket, HoldBucket, LoadRows, OpenBucket};
pub use moves::{Borrow, ClearLoan, Lend};
pub use queued::ReadQueued;
pub use reserve::{EntryLimits, OutboxArgs, ReserveBatch};
pub use set_phase::SetPhase;
pub use settle::{Release, Settle};
pub use snapshot::Snapshot;

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)*) => {
        /// One script.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Script {
            $($(#[$doc])* $name),*
        }

        impl Script {
            /// Every script; a connection loads them before its first call.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name, as logs and metrics have it.
            #[must_use]
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
    /// Decides a batch of reservations.
    Reserve = "reserve";
    /// Records orders.
    Settle = "settle";
    /// Records refusals and gives units back.
    Release = "release";
    /// Opens, pauses or closes the bucket.
    SetPhase = "set_phase";
    /// Takes units out for another bucket.
    Lend = "lend";
    /// Adds units of another bucket.
    Borrow = "borrow";
    /// Forgets a loan that has arrived.
    ClearLoan = "clear_loan";
    /// Holds the bucket for a loader.
    Hold = "hold";
    /// Empties pages for a loader.
    Clear = "clear";
    /// Enters rows of a loader.
    LoadRows = "load_rows";
    /// Publishes what a loader entered.
    Open = "open";
    /// Counts.
    Snapshot = "snapshot";
    /// Looks up requests.
    Find = "find";
    /// Reads what is queued.
    Queued = "queued";
    /// Moves entries of an outbox list to a worker.
    ListClaim = "list_claim";
    /// Moves what predecessors hold to a worker.
    ListTakeOver = "list_take_over";
    /// Removes entries that ended.
    ListAcknowledge = "list_acknowledge";
    /// Returns what workers hold to the outbox.
    ListReclaim = "list_reclaim";
    /// Counts an outbox list and the private lists.
    ListStanding = "list_standing";
    /// Reads a part of a list.
    ListRead = "list_read";
    /// Gives entries of an outbox stream to a worker.
    StreamClaim = "stream_claim";
    /// Gives what predecessors hold to a worker.
    StreamTakeOver = "stream_take_over";
    /// Removes entries that ended.
    StreamAcknowledge = "stream_acknowledge";
    /// Returns what workers hold to the outbox.
    StreamReclaim = "stream_reclaim";
    /// Counts an outbox stream and what its consumers hold.
    StreamStanding = "stream_standing";
    /// Reads a part of a stream.
    StreamRead = "stream_read";
    /// Removes dead letters.
    Collect = "collect";
}

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");

impl Script {
    /// The whole text: the script's first line, which must stay the first, then what it uses of the
    /// codes and of what scripts share, and the rest. Each call makes anew all that the text has.
    #[must_use]
    pub fn text(self) -> String {
        let (first, rest) = self.body().split_once('\n').unwrap_or_default();
        let codes = codes::prelude();
        let shared: Vec<&str> = codes.lines().chain(PRELUDE.split("\n\n")).collect();
        let (mut used, mut parts) = (words(rest), vec![rest]);
        // A part uses what stands before it only.
        for part in shared.into_iter().rev() {
            if defined(part).any(|name| used.contains(name)) {
                used.extend(words(part));
                parts.push(part);
            }
        }
        parts.push(first);
        parts.reverse();
        parts.join("\n")
    }
}

/// The words of a text, without its comments.
fn words(text: &str) -> HashSet<&str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).collect()
}

/// The names that a part of the prelude defines.
fn defined(part: &str) -> impl Iterator<Item = &str> {
    part.lines().filter_map(|line| line.strip_prefix("local ")).flat_map(|line| {
        let names = line.strip_prefix("function ").unwrap_or(line);
        names.split(['(', '=']).next().unwrap_or_default().split(',').map(str::trim)
    })
}

/// Whose buckets a call may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketFence {
    /// The ledger's installation.
    pub installation: Installation,
    /// The name of the server that the connection reached.
    pub server: Arc<str>,
}

/// Why there is no answer to what was asked. Unless said otherwise, nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Missing, or being loaded.
    #[error("the bucket is not loaded")]
    NotReady,
    /// A failover or a restart came between: writes may be lost.
    #[error("the bucket was opened on another server")]
    Fenced,
    /// Another ledger uses the same names on the same server.
    #[error("the bucket belongs to another installation")]
    Foreign,
    /// Somebody else wrote here.
    #[error("the bucket is damaged: {what}")]
    Corrupt {
        /// Which value.
        what: String,
    },
    /// More items than one call may have, or more loans than there are numbers.
    #[error("more than {} items in one call", codes::ITEMS_MAX)]
    TooMany,
    /// Another loader came after this one, or this one has finished.
    #[error("another loader came after this one")]
    OldLoader,
    /// A defect, or values that nobody wrote. Other items of the batch may have been written: ask
    /// again with the same ids.
    #[error("script {script} answered {reply}")]
    Unexpected {
        /// Which script.
        script: &'static str,
        /// What came.
        reply: String,
    },
}

/// What a bucket has after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketLevel {
    /// Free units.
    pub stock: u32,
    /// Units lent out and not yet confirmed.
    pub lent: u32,
    /// How often it has changed which requests were accepted, counted on from the loader's token:
    /// who has read the same number twice has missed nothing.
    pub changes: u64,
}

impl BucketLevel {
    /// Whether nothing was ever accepted since the first load.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.changes.is_multiple_of(codes::NUMBERS_PER_LOAD.cast_unsigned())
    }

    fn read(reply: &mut reply::Reply) -> Result<Self, Error> {
        Ok(Self { stock: reply.count()?, lent: reply.count()?, changes: reply.count()? })
    }
}

/// Begins a call with the keys and arguments that nearly all have.
fn begin(script: Script, keys: &[String], fence: &BucketFence) -> ScriptCall {
    let call = keys.iter().fold(ScriptCall::new(script), |call, key| call.key(key));
    call.arg(&fence.server).arg(fence.installation)
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
    fn a_script_has_what_it_uses_of_the_prelude_and_no_more() {
        for part in PRELUDE.split("\n\n").skip(1) {
            let is_comment = part.lines().all(|line| line.starts_with("--"));
            assert!(is_comment || defined(part).next().is_some(), "defines nothing: {part}");
        }
        let has = |script: Script, name: &str| {
            script.text().contains(&format!("\nlocal function {name}("))
        };
        assert!(has(Script::Reserve, "bucket") && has(Script::Reserve, "tagged"));
        assert!(has(Script::SetPhase, "pair") && !has(Script::SetPhase, "bucket"));
        assert!(!has(Script::Reserve, "loading") && !has(Script::Find, "write"));
        assert!(!Script::Find.text().contains("local PHASE_OPEN"));
    }

    #[test]
    fn a_full_redis_refuses_what_grows_and_finishes_what_was_promised() {
        let full = |script: &Script| script.text().starts_with("#!lua flags=allow-oom\n");
        let finishes: Vec<_> = Script::ALL.iter().copied().filter(full).collect();
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
        assert_eq!(finishes, expected);
    }
}
