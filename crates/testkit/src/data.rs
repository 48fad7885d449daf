//! Folders of servers. A data folder that takes long to create is created once and then copied.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// A new temporary folder for a server, in `parent`.
pub fn folder(parent: &Path) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("floodgate-server-").tempdir_in(parent);
    folder.with_context(|| format!("cannot create a folder in {}", parent.display()))
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
