//! The crypto provider of `jsonwebtoken`, which verifies and never signs: HS256 with `hmac` and
//! `sha2`, which are dependencies already; RS256, ES256 and Ed25519 with `ring`.

use hmac::Mac;
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

use crate::runtime::mac::{HmacSha256, keyed};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: new_signer,
    verifier_factory: new_verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes this the provider of the process.
pub fn install() {
    // Fails if a provider is installed already: this one, by an earlier call.
    let _ = PROVIDER.install_default();
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by jsonwebtoken")]
fn new_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

/// The verifier of a key, if the algorithm is of the key's family.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by jsonwebtoken")]
fn new_verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let raw = |verification: &'static dyn VerificationAlgorithm| -> Result<VerifierKind> {
        let key = key.try_get_as_bytes()?.to_vec();
        Ok(VerifierKind::Point(UnparsedPublicKey::new(verification, key)))
    };
    let kind = match algorithm {
        Algorithm::HS256 => VerifierKind::Hmac(keyed(key.try_get_as_bytes()?)),
        Algorithm::RS256 => match key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                VerifierKind::Rsa(RsaPublicKeyComponents { n: n.clone(), e: e.clone() })
            }
            DecodingKeyKind::SecretOrDer(_) => return Err(ErrorKind::InvalidKeyFormat.into()),
        },
        Algorithm::ES256 => raw(&ECDSA_P256_SHA256_FIXED)?,
        Algorithm::EdDSA => raw(&ED25519)?,
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    Ok(Box::new(SignatureVerifier { algorithm: *algorithm, kind }))
}

enum VerifierKind {
    Hmac(HmacSha256),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    Point(UnparsedPublicKey<Vec<u8>>),
}

struct SignatureVerifier {
    algorithm: Algorithm,
    kind: VerifierKind,
}

impl Verifier<Vec<u8>> for SignatureVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let is_valid = match &self.kind {
            // Compares in constant time.
            VerifierKind::Hmac(keyed) => {
                keyed.clone().chain_update(message).verify_slice(signature).is_ok()
            }
            VerifierKind::Rsa(key) => {
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok()
            }
            VerifierKind::Point(key) => key.verify(message, signature).is_ok(),
        };
        if is_valid { Ok(()) } else { Err(Error::new()) }
    }
}

impl JwtVerifier for SignatureVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
