//! Secrets in files of their own: any key `name` with a sibling `name_file` may have its value
//! there. And which secrets others may read.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value as Json;

use super::effective::{Effective, SettingEntry};
use super::error::ConfigFault;
use super::load::{FILE, FLAG};
use super::settings::Settings;

pub(super) const UNREADABLE: &str =
    "write the value into it as text, and let the user that runs floodgate read it";

/// Files of these names hold nothing secret.
const PUBLIC: [&str; 3] = ["ca_file", "jwks_file", "tls_cert_file"];

/// Bits of a mode by which others than owner and group read, and others than the owner write.
const TOO_OPEN: u32 = 0o027;
const WRITABLE: u32 = 0o022;

/// A file with a secret.
pub(super) struct SecretFile {
    /// Such as `redis.url_file`.
    pub key: String,
    pub path: PathBuf,
}

/// A secret that others may read, or a file of trust that they may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedSecret {
    /// The key or the file, and who reads it.
    pub what: String,
    pub remedy: &'static str,
}

/// The text of a secret's file without white space around it.
pub(super) fn read_secret(path: &Path) -> Result<SecretString, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    match text.trim() {
        "" => Err(format!("{} is empty", path.display())),
        secret => Ok(SecretString::from(secret)),
    }
}

/// The secrets that others may read: files with open modes, the configuration file if it holds
/// secrets, and flags, which the list of processes shows. Before secrets are hidden.
pub(super) fn exposed_secrets<'p>(
    effective: &Effective,
    files: impl Iterator<Item = &'p Path>,
    configuration: Option<&'p Path>,
) -> Vec<ExposedSecret> {
    let secrets = || effective.entries().filter(|entry| entry.holds_secret());
    let of_flags = secrets().filter(|entry| entry.origin.as_deref() == Some(FLAG));
    let of_flags = of_flags.map(|entry| ExposedSecret {
        what: format!("{} stands in a flag, which the list of processes shows", entry.key),
        remedy: "put it into a file, and name that in the key with _file",
    });
    let is_in_file =
        |entry: &SettingEntry| entry.origin.as_ref().is_some_and(|origin| origin.starts_with(FILE));
    let configuration = configuration.filter(|_| secrets().any(is_in_file));
    let paths = files.chain(configuration).filter(|path| has_mode(path, TOO_OPEN));
    let paths: BTreeSet<&Path> = paths.collect();
    let of_files = paths.into_iter().map(|path| ExposedSecret {
        what: format!("{} holds a secret, and other users may read or change it", path.display()),
        remedy: "chmod 600, or 640 with a group of its own",
    });
    let public = effective.entries().filter(|entry| PUBLIC.contains(&entry.path().1));
    let public = public.filter_map(|entry| entry.value.as_str().map(Path::new));
    let of_public = public.filter(|path| has_mode(path, WRITABLE)).map(|path| ExposedSecret {
        what: format!("{} decides who is trusted, and other users may change it", path.display()),
        remedy: "chmod 644",
    });
    of_flags.chain(of_files).chain(of_public).collect()
}

/// Whether the file has any of these bits in its mode.
fn has_mode(path: &Path, bits: u32) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & bits != 0)
}

impl Effective {
    /// The files with secrets that the settings name.
    pub(super) fn secret_files(&self) -> Vec<SecretFile> {
        let file = |entry: &SettingEntry| {
            let (_, name) = entry.path();
            let path = entry.value.as_str().filter(|path| !path.is_empty())?;
            let is_secret = name.ends_with("_file") && !PUBLIC.contains(&name);
            is_secret.then(|| SecretFile { key: entry.key.clone(), path: path.into() })
        };
        self.entries().filter_map(file).collect()
    }

    /// Sets `name` to the content of the file in `name_file`. Returns the settings with it; `None`
    /// if there is no such key: such a file is a setting of its own.
    ///
    /// # Errors
    /// The file cannot be read, or the key has a value of its own.
    pub(super) fn read_value(
        &mut self,
        file: &SecretFile,
    ) -> Result<Option<Settings>, ConfigFault> {
        let Some(key) = file.key.strip_suffix("_file") else { return Ok(None) };
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let is_url = entry.path().1 == "url";
        let fault = |problem: String, remedy| ConfigFault::new(&file.key, problem, remedy);
        if entry.is_given() {
            let remedy = "keep one of the two; the file is the safer one";
            return Err(fault(format!("is set together with {key}"), remedy));
        }
        let text = read_secret(&file.path).map_err(|problem| fault(problem, UNREADABLE))?;
        if is_url && text.expose_secret().contains('\n') {
            let problem = format!("{} has more than one line", file.path.display());
            return Err(fault(problem, "keep the one with the value"));
        }
        self.set(key, Json::from(text.expose_secret()), None).map(Some)
    }
}

#[cfg(test)]
#[path = "secret_files_tests.rs"]
mod tests;
