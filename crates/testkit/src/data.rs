//! Folders of servers. A data folder that takes long to create is created once and then copied.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

const PREFIX: &str = "floodgate-private-";

/// A temporary folder, removed on drop. Its lock ends with this process, however that ends.
#[derive(Debug)]
pub struct Folder {
    // Dropped first: the folder is removed while it is locked.
    folder: TempDir,
    _lock: File,
}

impl Folder {
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A new temporary folder for a server, in `parent`. First removes those that killed processes have
/// left there.
pub fn folder(parent: &Path) -> Result<Folder> {
    let create = || {
        // Locked, so that no folder is removed between its creation and its own lock.
        let siblings = File::open(parent)?;
        siblings.lock()?;
        remove_abandoned(parent)?;
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let lock = File::open(folder.path())?;
        lock.lock()?;
        std::io::Result::Ok(Folder { folder, _lock: lock })
    };
    create().with_context(|| format!("cannot create a folder in {}", parent.display()))
}

/// Removes the folders that no process has locked.
fn remove_abandoned(parent: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let is_private = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        let is_free = || File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok());
        if is_private && is_free() {
            // Another user's folder stays.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
    Ok(())
}

/// The path of what servers of one version share, below `cache`. `create` makes it at that path for
/// the first server of that version; later ones, of any process, find it.
pub(crate) fn cached(
    cache: &Path,
    kind: &str,
    version: &str,
    create: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let name = version.trim().replace(|c: char| !is_plain(c), "-");
    let path = cache.join(format!("{kind}-{}", name.trim_matches('-')));
    let lock = File::create(path.with_extension("lock"))?;
    lock.lock()?;
    if !path.exists() {
        let fresh = path.with_extension("fresh");
        drop(fs::remove_dir_all(&fresh));
        create(&fresh)?;
        fs::rename(&fresh, &path)?;
    }
    Ok(path)
}

/// Copies a folder with owners and rights.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").args(["-a", "--reflink=auto"]).args([from, to])).map(drop)
}

/// Runs a command to its end; returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let [out, err] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    ensure!(output.status.success(), "{command:?}: {out}{err}");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_ended_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let [other, abandoned] =
            ["other".to_owned(), format!("{PREFIX}abandoned")].map(|name| parent.path().join(name));
        fs::create_dir(&other).unwrap();
        fs::create_dir(&abandoned).unwrap();
        let folders = [(); 2].map(|()| folder(parent.path()).unwrap());
        assert!(!abandoned.exists());
        assert!(other.exists() && folders.iter().all(|folder| folder.path().exists()));
        drop(folders);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
