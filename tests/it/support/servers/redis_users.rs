//! The users that operators are told to create: what the guide forgets, tests miss.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// In the guide.
const PASSWORD: &str = "change-me";

/// Whose rights suffice for a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    Gate,
    Pipeline,
}

impl User {
    fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Pipeline => "pipeline",
        }
    }

    /// The address of a server, for this user.
    pub fn url(self, addr: SocketAddr) -> String {
        format!("redis://{}:{PASSWORD}@{addr}", self.name())
    }

    /// The line of `redis.conf` that creates the user with the rights of the guide, which has one
    /// block for all tiers, and one for what tier `pipeline` needs besides.
    pub fn line(self) -> String {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
        let guide = fs::read_to_string(guide).unwrap();
        let (_, section) = guide.split_once("ACL SETUSER floodgate ").expect("the least rights");
        let mut blocks = section.split("```");
        let for_all = blocks.next().unwrap();
        let more = blocks.find_map(|block| block.strip_prefix("text\n")).expect("two blocks");
        let rights = match self {
            Self::Gate => for_all.to_owned(),
            Self::Pipeline => [for_all, more].join(" "),
        };
        let words: Vec<_> = rights.split_whitespace().collect();
        format!("user {} {}", self.name(), words.join(" "))
    }
}
