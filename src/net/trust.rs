//! Which certificates are trusted, the own ones, and what to do when a server's is not.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::MaybeTls;

/// The authorities whose certificates servers must have.
#[derive(Clone)]
pub struct Trust {
    config: Arc<ClientConfig>,
    pem: Arc<[u8]>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").finish_non_exhaustive()
    }
}

impl Trust {
    /// Reads the authorities of a PEM file, or those of the system if the path is empty.
    pub fn read(ca_file: &Path) -> Result<Self, String> {
        let is_set = !ca_file.as_os_str().is_empty();
        let found = if is_set { certificates(ca_file)? } else { of_system()? };
        let (mut roots, mut pem) = (RootCertStore::empty(), String::new());
        for certificate in found {
            let text = STANDARD.encode(&certificate);
            match roots.add(certificate) {
                Ok(()) => {
                    let (begin, end) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
                    pem.extend([begin, "\n", &text, "\n", end, "\n"]);
                }
                Err(error) if is_set => {
                    return Err(format!("{} holds no authority: {error}", ca_file.display()));
                }
                // Systems have odd ones.
                Err(_) => {}
            }
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config), pem: pem.into_bytes().into() })
    }

    /// The authorities as PEM, for clients with TLS of their own.
    pub fn pem(&self) -> &[u8] {
        &self.pem
    }

    /// Encrypts a connection to the server of this name or address.
    ///
    /// # Errors
    /// The server speaks no TLS, or has no certificate of a trusted authority with this name.
    pub async fn secure<T>(&self, host: &str, connection: T) -> io::Result<MaybeTls<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let secured =
            TlsConnector::from(Arc::clone(&self.config)).connect(name, connection).await?;
        Ok(MaybeTls::Right(Box::new(secured.into())))
    }
}

/// The private key in a PEM file.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(file)
        .map_err(|error| format!("{} holds no private key: {error}", file.display()))
}

/// The TLS of a listener with this certificate chain and its key.
pub fn server_config(
    chain: &Path,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, String> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates(chain)?, key)
        .map_err(|error| format!("the key does not fit {}: {error}", chain.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// What clients find wrong with the dates of a listener's certificates `after_epoch`, in words.
pub fn wrong_dates(chain: &Path, after_epoch: Duration) -> Option<&'static str> {
    let time = UnixTime::since_unix_epoch(after_epoch);
    certificates(chain).ok()?.into_iter().find_map(|certificate| {
        // The dates are checked first: it does not matter who signed the certificate.
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).ok()?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let name = ServerName::try_from("localhost").ok()?;
        let checked =
            verifier.build().ok()?.verify_server_cert(&certificate, &[], &name, &[], time);
        match checked.err()? {
            rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            ) => Some("has expired"),
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            ) => Some("is not valid yet"),
            _ => None,
        }
    })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = file.display();
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| format!("cannot read {shown}: {error}"))?;
    if found.is_empty() { Err(format!("{shown} holds no certificate (PEM)")) } else { Ok(found) }
}

fn of_system() -> Result<Vec<CertificateDer<'static>>, String> {
    let found = rustls_native_certs::load_native_certs();
    match found.errors.first() {
        _ if !found.certs.is_empty() => Ok(found.certs),
        Some(error) => Err(format!("the authorities of this system cannot be read: {error}")),
        None => Err("this system has no certificate authorities".to_owned()),
    }
}

fn provider() -> Arc<CryptoProvider> {
    // The clients of Redis and MySQL use the process's default.
    let _is_set = ring::default_provider().install_default();
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}

/// Parts of messages about TLS, and what to do; `CA` and `URL` stand for the keys of a server.
const REMEDIES: [(&str, &str); 6] = [
    ("UnknownIssuer", "name the file of the authority that signed it in CA"),
    ("CaUsedAsEndEntity", "give the server a certificate that an authority signed"),
    ("not valid for name", "write a name that the certificate has into URL"),
    ("certificate expired", "renew the server's certificate, or set this machine's clock"),
    ("InvalidContentType", "the server speaks no TLS at this port: write its TLS port into URL"),
    ("does not have this capability", "the server speaks no TLS: give it a certificate"),
];

/// Adds to a message about TLS what to do about it; leaves other messages as they are. `ca` and
/// `url` are the keys of the server's authority and address.
pub fn explain(message: String, ca: &str, url: &str) -> String {
    match REMEDIES.iter().find(|(part, _)| message.contains(part)) {
        Some((_, remedy)) => {
            let remedy = remedy.replace("CA", ca).replace("URL", url);
            format!("{message}; {remedy}")
        }
        None => message,
    }
}

/// Whether a host name or an address is this machine's.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_tls_name_the_keys_to_change() {
        let unknown = "invalid peer certificate: UnknownIssuer".to_owned();
        let text = explain(unknown, "redis.ca_file", "redis.url");
        assert!(text.ends_with("; name the file of the authority that signed it in redis.ca_file"));
        let other = "connection refused".to_owned();
        assert_eq!(explain(other.clone(), "redis.ca_file", "redis.url"), other);
    }

    #[test]
    fn files_without_certificates_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        assert!(Trust::read(&file).err().unwrap().contains("ca.pem"));
        std::fs::write(&file, "nothing").unwrap();
        assert!(Trust::read(&file).err().unwrap().contains("holds no certificate"));
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&file, garbage).unwrap();
        assert!(Trust::read(&file).err().unwrap().contains("holds no authority"));
        assert!(private_key(&file).err().unwrap().contains("holds no private key"));
    }

    #[test]
    fn loopback_is_known_by_name_and_address() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.3.2.1", "[::1]", "::1"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["10.0.0.1", "redis", "localhost.example", "[fd00::1]"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
