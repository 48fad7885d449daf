//! Folders of servers. A data folder that takes long to create is created once and then copied.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use tempfile::TempDir;

/// A new temporary folder for a server, in `parent`.
pub fn folder(parent: &Path) -> anyhow::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("floodgate-server-").tempdir_in(parent);
    folder.with_context(|| format!("cannot create a folder in {}", parent.display()))
}

/// Copies the empty data folder of a server version to `target`. `create` fills it for the first
/// server of that version; later ones, of any process, find it in `cache`.
pub(crate) fn copy_empty(
    cache: &Path,
    version: &str,
    create: impl FnOnce(&Path) -> anyhow::Result<()>,
    target: &Path,
) -> anyhow::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let name = version.trim().replace(|c: char| !is_plain(c), "-");
    let data = cache.join(format!("data-{}", name.trim_matches('-')));
    let lock = File::create(data.with_extension("lock"))?;
    lock.lock()?;
    if !data.exists() {
        let fresh = data.with_extension("fresh");
        drop(fs::remove_dir_all(&fresh));
        create(&fresh)?;
        fs::rename(&fresh, &data)?;
    }
    drop(lock);
    copy(&data, target)
}

/// Copies a folder with owners and rights.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    run(Command::new("cp").args(["-a", "--reflink=auto"]).args([from, to])).map(drop)
}

/// Runs a command to its end; returns what it printed.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let [out, err] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    ensure!(output.status.success(), "{command:?}: {out}{err}");
    Ok(out)
}
