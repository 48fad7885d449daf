use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

/// A fresh directory, removed with all it holds when dropped.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Inside `parent`, or in the system's directory for temporary files.
    pub(super) fn new(parent: Option<&Path>) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("floodgate-bench-{}-{number}", std::process::id()));
        // Not `create_dir_all`: a directory that exists already belongs to somebody else.
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever is left is in a directory for temporary files.
        drop(fs::remove_dir_all(&self.0));
    }
}
