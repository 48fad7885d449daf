//! The Redis users with the rights of the security guide: a right that the guide omits fails tests.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// The password in the guide.
const PASSWORD: &str = "change-me";

/// The user of a tier.
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

    /// The URL of a server for this user.
    pub fn url(self, addr: SocketAddr) -> String {
        format!("redis://{}:{PASSWORD}@{addr}", self.name())
    }

    /// The line of `redis.conf` that creates the user with the rights of the guide: the block for
    /// all tiers, and for tier `pipeline` the block of additional rights.
    pub fn line(self) -> String {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/security.md");
        let guide = fs::read_to_string(guide).unwrap();
        let (_, section) = guide.split_once("ACL SETUSER floodgate ").expect("the least rights");
        let mut blocks = section.split("```");
        let for_all = blocks.next().unwrap();
        let more = blocks.find_map(|block| block.strip_prefix("text\n")).expect("two blocks");
        let rights = match self {
            Self::Gate => for_all.to_owned(),
            Self::Pipeline => [for_all, more].join(" "),
        };
        let rules: Vec<_> = rights.split_whitespace().collect();
        format!("user {} {}", self.name(), rules.join(" "))
    }
}
