//! The repository as text files.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// One file: its path from the root of the repository, with `/`, and its text.
#[derive(Debug, Clone)]
pub struct File {
    pub path: String,
    pub text: String,
}

impl File {
    /// A file that exists only in a test.
    pub fn planted(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of one file; `None` if the file does not exist.
pub fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

/// Whether this path exists, as a file or folder.
pub fn exists(path: &str) -> bool {
    root().join(path).exists()
}

/// The files below `folders` with one of these extensions, sorted by path.
pub fn files(folders: &[&str], extensions: &[&str]) -> Vec<File> {
    let mut paths = Vec::new();
    for folder in folders {
        walk(&root().join(folder), &mut paths);
    }
    paths.retain(|path| {
        let extension = Path::new(path).extension().and_then(OsStr::to_str).unwrap_or_default();
        extensions.contains(&extension)
    });
    paths.sort();
    paths.iter().map(|path| File { path: path.clone(), text: read(path).unwrap() }).collect()
}

/// All Rust files: sources and tests.
pub fn rust() -> Vec<File> {
    files(&["src", "crates", "bench", "tests"], &["rs"])
}

/// The Rust files of the server.
pub fn server() -> Vec<File> {
    files(&["src"], &["rs"])
}

/// The Rust files of the server, the load generator and the bench.
pub fn sources() -> Vec<File> {
    files(&["src", "crates", "bench/src"], &["rs"])
}

fn walk(folder: &Path, paths: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, paths);
        } else {
            let relative = path.strip_prefix(root()).unwrap();
            paths.push(relative.to_str().unwrap().replace('\\', "/"));
        }
    }
}

#[test]
fn the_walk_finds_this_very_file() {
    let found = files(&["tests"], &["rs"]);
    assert!(found.iter().any(|file| file.path == "tests/it/tidy/tree.rs"));
    assert!(!files(&["tests"], &["toml"]).iter().any(|file| file.path.contains("tree")));
}

#[test]
fn a_missing_folder_is_an_empty_one() {
    assert!(files(&["no-such-folder"], &["rs"]).is_empty());
    assert!(read("no-such-file").is_none());
}
