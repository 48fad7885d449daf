//! TLS to real servers and of our own listeners: the right authority and name pass; another
//! authority, another name and a server without TLS are refused with what to do.

mod broker;
mod listeners;
mod mysql;
mod redis;
mod warnings;

/// Requires that a message has each of these parts.
#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

const UNKNOWN_AUTHORITY: &str = "UnknownIssuer";
const OTHER_NAME: &str = "not valid for name";
