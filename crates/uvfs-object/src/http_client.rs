//! The client of HTTP that all mounts of a process share, and its cryptography.
//!
//! Certificates are checked with the system's roots, or with those of `SSL_CERT_FILE` and `SSL_CERT_DIR`. They are read
//! once a process. A machine without any can still use plain HTTP.

use std::time::Duration;

use opendal::HttpTransporter;
use opendal_http_transport_reqwest::ReqwestTransport;

use crate::answer_bound::Bounded;

/// How long a connection may take to be made; the call is tried again then.
const CONNECT: Duration = Duration::from_secs(10);

fn client() -> reqwest::Result<reqwest::Client> {
    let builder = || reqwest::Client::builder().connect_timeout(CONNECT);
    // The only fault that is known is that there are no roots: then no certificate is valid.
    builder().build().or_else(|error| {
        tracing::warn!("certificates cannot be checked, so https:// does not work: {}", innermost(&error));
        builder().tls_certs_only([]).build()
    })
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Make the client the one that OpenDAL uses, unless there is one.
pub(crate) fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // An error means that the program has installed another.
        let _ = rustls::crypto::ring::default_provider().install_default();
        match client() {
            Ok(client) => HttpTransporter::install_default(Bounded(ReqwestTransport::new(client))),
            Err(error) => tracing::error!("there is no client of HTTP: {}", innermost(&error)),
        }
    });
}
