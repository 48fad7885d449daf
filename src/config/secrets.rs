//! Secrets in files of their own.

use std::path::Path;

use secrecy::SecretString;

use super::error::ConfigFault;
use super::settings::Settings;

/// Reads the files named by the `*_file` keys into the settings; one fault per unusable file.
pub(super) fn read_secrets(settings: &mut Settings) -> Vec<ConfigFault> {
    let mut faults = Vec::new();
    let mut read = |key: &str, path: &Path| {
        if path.as_os_str().is_empty() {
            return None;
        }
        match read_secret(path) {
            Ok(secret) => Some(secret),
            Err(problem) => {
                let remedy = "create it, or let the user that runs floodgate read it";
                faults.push(ConfigFault::new(key, problem, remedy));
                None
            }
        }
    };
    let token = read("admin.token_file", &settings.admin.token_file);
    settings.auth.jwt_secret = read("auth.jwt_secret_file", &settings.auth.jwt_secret_file);
    settings.auth.signing_key = read("auth.signing_key_file", &settings.auth.signing_key_file);
    if let Some(token) = token {
        if settings.admin.bearer().is_some() {
            faults.push(ConfigFault::new(
                "admin.token_file",
                "is set together with admin.token",
                "keep one of the two; the file is the safer one",
            ));
        } else {
            settings.admin.token = token;
        }
    }
    faults
}

fn read_secret(path: &Path) -> Result<SecretString, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    match text.trim() {
        "" => Err(format!("{} is empty", path.display())),
        secret => Ok(SecretString::from(secret)),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;
    use crate::config::AuthMode;
    use crate::config::load::tests::{faults_of, set, temp};

    #[test]
    fn secret_files_are_read_and_trimmed() {
        let token = temp("  tok-en\n");
        let secret = temp("0123456789abcdef0123456789abcdef\n");
        let settings = Settings::load(&set(&[
            &format!("admin.token_file={}", token.path().display()),
            "auth.mode=jwt",
            &format!("auth.jwt_secret_file={}", secret.path().display()),
        ]))
        .unwrap();
        assert_eq!(settings.admin.bearer().unwrap().expose_secret(), "tok-en");
        assert_eq!(settings.auth.mode, AuthMode::Jwt);
        assert_eq!(settings.auth.jwt_secret.unwrap().expose_secret().len(), 32);
        assert!(settings.auth.signing_key.is_none());
    }

    #[test]
    fn unreadable_and_empty_secret_files_are_named_together() {
        let empty = temp("\n");
        let faults = faults_of(&set(&[
            "admin.token_file=/nowhere/token",
            &format!("auth.signing_key_file={}", empty.path().display()),
        ]));
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].problem.contains("/nowhere/token"), "{}", faults[0]);
        assert!(faults[1].problem.ends_with("is empty"), "{}", faults[1]);
    }

    #[test]
    fn token_and_token_file_together_are_refused() {
        let token = temp("a");
        let file = format!("admin.token_file={}", token.path().display());
        let faults = faults_of(&set(&["admin.token=b", &file]));
        assert_eq!(faults[0].key, "admin.token_file");
    }
}
