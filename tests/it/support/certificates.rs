//! Certificates for one test, made by openssl.

use std::path::PathBuf;
use std::process::Command;

use floodgate::net::Trust;
use tempfile::TempDir;

/// An authority, another one, and two certificates of the first: `server` for this machine, and
/// `elsewhere` for another name.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = "set -e
            new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
            openssl req -x509 $new -days 2 -keyout ca.key -out ca.crt -subj /CN=ca
            openssl req -x509 $new -days 2 -keyout other.key -out other.crt -subj /CN=other
            signed() {
                openssl req $new -keyout $1.key -out $1.csr -subj /CN=$1
                echo subjectAltName=$2 > $1.names
                openssl x509 -req -in $1.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
                    -extfile $1.names -out $1.crt
            }
            signed server DNS:localhost,IP:127.0.0.1
            signed elsewhere DNS:elsewhere.example
            chmod 644 *.key && chmod 755 .";
        let output = Command::new("sh").args(["-c", script]).current_dir(folder.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// [`Self::path`] as text.
    pub fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Trusts the authority that signed both certificates.
    pub fn trust(&self) -> Trust {
        Trust::read(&self.path("ca.crt")).unwrap()
    }

    /// Trusts the other authority.
    pub fn other_trust(&self) -> Trust {
        Trust::read(&self.path("other.crt")).unwrap()
    }
}
