//! Connections that may be encrypted: which certificates are trusted, one stream for plain text and
//! TLS, and single HTTP calls over it.
//!
//! Every client and both listeners use TLS of this module, or are given its authorities. The
//! cryptography is ring. Names are always checked; nothing turns that off.

mod http_call;
mod stream;
mod trust;

pub use http_call::{HttpCallError, HttpCaller};
pub use stream::{MaybeTls, accept};
pub use trust::{Trust, explain, is_loopback, private_key, server_config, wrong_dates};
