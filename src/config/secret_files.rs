//! Secrets in files of their own: any key `name` with a sibling `name_file` may have its value
//! there. And which secrets others may read.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret, SecretString};

use super::effective::{Effective, GivenValue, SettingEntry};
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
        let Some(entry) = self.entries().find(|entry| entry.key == key) else { return Ok(None) };
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
        self.set(key, GivenValue::Text(text.expose_secret().to_owned()), None).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use crate::config::load::tests::{set, sources};
    use crate::config::{LoadedSettings, Settings};

    use super::*;

    #[test]
    fn every_secret_and_url_may_stand_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let given = [
            format!("ledger.url_file={}", file("l", "mysql://u:s3cret@127.0.0.1/x\n")),
            format!("redis.url_file={}", file("r", " redis://:s3cret@127.0.0.1\n")),
            format!("amqp.url_file={}", file("a", "amqp://u:s3cret@127.0.0.1/v")),
            format!("admin.token_file={}", file("t", "s3cret")),
        ];
        let loaded = LoadedSettings::read(&set(&given.each_ref().map(String::as_str))).unwrap();
        assert_eq!(loaded.faults, []);
        let Settings { ledger, redis, amqp, admin, .. } = &loaded.settings;
        assert_eq!(ledger.url, "mysql://u:s3cret@127.0.0.1/x");
        assert_eq!(redis.url, "redis://:s3cret@127.0.0.1");
        assert_eq!(amqp.url, "amqp://u:s3cret@127.0.0.1/v");
        assert_eq!(admin.bearer().unwrap().expose_secret(), "s3cret");
        let shown = loaded.effective.to_toml() + &loaded.effective.to_json().to_string();
        assert!(!shown.contains("s3cret") && !shown.contains("***"), "{shown}");
        let (_file, again) = sources(&loaded.effective.to_toml(), &[], &[]);
        assert_eq!(Settings::load(&again).unwrap().redis.url, redis.url);
    }

    #[test]
    fn a_value_and_its_file_together_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "redis://other").unwrap();
        let given = format!("redis.url_file={}", file.path().display());
        let loaded = LoadedSettings::read(&set(&["redis.url=redis://one", &given])).unwrap();
        assert_eq!(loaded.faults[0].key, "redis.url_file");
        assert!(loaded.faults[0].problem.contains("together with redis.url"));
    }

    #[test]
    fn secrets_that_others_may_read_are_reported() {
        let key = "0123456789abcdef0123456789abcdef";
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, key).unwrap();
        let given = format!("auth.signing_key_file={}", file.path().display());
        let exposed = |mode: u32, flags: &[&str]| {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let flags: Vec<&str> = flags.iter().copied().chain([given.as_str()]).collect();
            LoadedSettings::read(&set(&flags)).unwrap().exposed
        };
        for mode in [0o600, 0o400, 0o640] {
            assert_eq!(exposed(mode, &[]), [], "{mode:o}");
        }
        for mode in [0o604, 0o660, 0o777] {
            assert_eq!(exposed(mode, &["redis.url=redis://open"]).len(), 1, "{mode:o}");
        }
        // Public keys are no secret; the secrets of webhooks are.
        let readable = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(&readable, Permissions::from_mode(0o604)).unwrap();
        let path = readable.path().display();
        assert_eq!(exposed(0o600, &[&format!("auth.jwks_file={path}")]), []);
        fs::set_permissions(&readable, Permissions::from_mode(0o646)).unwrap();
        let changed = exposed(0o600, &[&format!("auth.jwks_file={path}")]);
        assert!(changed[0].what.ends_with("other users may change it"), "{changed:?}");
        let webhook = format!("payment.webhook_secrets={path} until 2030-01-01T00:00:00Z");
        assert_eq!(exposed(0o600, &[&webhook]).len(), 1);
        let flags = exposed(0o600, &["admin.token=s3cret", "ledger.url=mysql://u:s3cret@db/x"]);
        assert_eq!(flags.len(), 2);
        assert!(flags.iter().all(|exposed| !exposed.what.contains("s3cret")), "{flags:?}");

        let (configuration, with_secret) = sources("[admin]\ntoken = \"s3cret\"\n", &[], &[]);
        for (mode, count) in [(0o600, 0), (0o644, 1)] {
            fs::set_permissions(&configuration, Permissions::from_mode(mode)).unwrap();
            assert_eq!(LoadedSettings::read(&with_secret).unwrap().exposed.len(), count);
        }
    }
}
