//! What the files of `deploy/` name exists: configuration keys, their ports, and copied files.

use std::collections::BTreeSet;

use super::finding::{Finding, Rule};
use super::{keep, tree};

const DEFAULTS: &str = "config/default.toml";

/// Files that name settings or ports.
const FILES: &[&str] = &[
    "deploy/Containerfile",
    "deploy/compose.yaml",
    "deploy/floodgate.service",
    "deploy/kubernetes.yaml",
    "deploy/nginx.conf",
    "docs/operate/install.md",
];

/// The prefix of environment variables that are settings.
const PREFIX: &str = "FLOODGATE__";

/// What precedes a port of this program.
const BEFORE_PORTS: &[&str] =
    &["127.0.0.1:", "0.0.0.0:", "EXPOSE ", "EXPOSE 8080 ", "containerPort: "];

/// The keys, as `section.key`, and the ports of the listeners.
struct Configuration {
    keys: BTreeSet<String>,
    ports: BTreeSet<String>,
}

impl Configuration {
    fn read(text: &str) -> Self {
        let table: toml::Table = text.parse().expect("a configuration");
        let (mut keys, mut ports) = (BTreeSet::new(), BTreeSet::new());
        for (section, value) in &table {
            let Some(members) = value.as_table() else {
                keys.insert(section.clone());
                continue;
            };
            for (key, value) in members {
                keys.insert(format!("{section}.{key}"));
                if let (true, Some(bind)) = (key == "bind", value.as_str()) {
                    ports.extend(bind.rsplit(':').next().map(str::to_owned));
                }
            }
        }
        Self { keys, ports }
    }
}

fn deploy(path: &str, text: &str, known: &Configuration) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut find = |what: String| findings.push(Finding::new(path, index + 1, what));
        for name in line.split(PREFIX).skip(1) {
            let is_name = |c: char| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit();
            let name = name.split(|c| !is_name(c)).next().unwrap_or_default();
            let key = name.to_lowercase().replacen("__", ".", 1);
            if !known.keys.contains(&key) {
                find(format!("{PREFIX}{name} is no key of {DEFAULTS}"));
            }
        }
        for before in BEFORE_PORTS {
            for rest in line.split(before).skip(1) {
                let port = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
                if !port.is_empty() && !known.ports.contains(port) {
                    find(format!("{port} is no port of {DEFAULTS}"));
                }
            }
        }
        let copied = line.strip_prefix("COPY ").filter(|rest| !rest.starts_with("--from"));
        let sources = copied.and_then(|rest| rest.rsplit_once(' ')).map(|(sources, _)| sources);
        for source in sources.into_iter().flat_map(str::split_whitespace) {
            if !tree::exists(source) {
                find(format!("{source} does not exist"));
            }
        }
    }
    findings
}

#[test]
fn names_in_deploy_exist() {
    let known = Configuration::read(&tree::read(DEFAULTS).unwrap());
    let of_file = |path: &&str| deploy(path, &tree::read(path).unwrap(), &known);
    keep(Rule::Deploy, FILES.iter().flat_map(of_file).collect());
}

#[test]
fn planted_names_that_do_not_exist_are_found() {
    let known = Configuration::read("tier = 'x'\n[http]\nbind = '127.0.0.1:8080'\n");
    let sound = "FLOODGATE__TIER: x\nEXPOSE 8080\nFLOODGATE__HTTP__BIND=0.0.0.0:8080\nCOPY . .\n";
    assert_eq!(deploy("deploy/x", sound, &known), []);
    for (line, what) in [
        ("Environment=FLOODGATE__HTTP__PORT=1", "FLOODGATE__HTTP__PORT is no key"),
        ("server 127.0.0.1:8081;", "8081 is no port"),
        ("EXPOSE 9090", "9090 is no port"),
        ("COPY no-such-file /x", "no-such-file does not exist"),
    ] {
        let found = deploy("deploy/x", line, &known);
        assert!(found.len() == 1 && found[0].to_string().contains(what), "{line}: {found:?}");
    }
}
