//! Reads the secrets of buyers, operators and webhooks from their files again, at SIGHUP.
//!
//! All or nothing: while one file cannot be used, every old secret stays in use.

use std::sync::Arc;

use tokio::signal::unix::Signal;

use super::buyers::auth::BuyerAuth;
use super::operators::auth::AdminAuth;
use super::state::{HttpState, State};
use crate::config::Settings;
use crate::observe::metrics::OutcomeLabel;

/// Reads the secrets again at each signal.
pub async fn at_each(mut hangup: Signal, state: State) {
    while hangup.recv().await.is_some() {
        let outcome = match state.settings.reread_secrets() {
            Ok(settings) => {
                replace(&state, &settings);
                "replaced"
            }
            Err(error) => {
                for fault in error.0 {
                    tracing::error!(
                        key = fault.key,
                        problem = fault.problem,
                        remedy = fault.remedy,
                        "secrets: not replaced, the old ones stay in use; correct it and send \
                         SIGHUP again"
                    );
                }
                "kept"
            }
        };
        state.deps.metrics.secret_reloads.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}

fn replace(state: &HttpState, settings: &Settings) {
    let (auth, admin) = (&settings.auth, &settings.admin);
    state.buyer_auth.store(Arc::new(BuyerAuth::new(auth)));
    state.admin_auth.store(Arc::new(AdminAuth::new(admin, &settings.internal)));
    if let Some(payments) = &state.deps.payments {
        payments.webhooks.verifier.replace_secrets(&settings.payment);
    }
    let kids: Vec<&str> = auth.jwt_keys.public.iter().map(|key| key.kid.as_str()).collect();
    tracing::info!(
        jwt_secrets = auth.jwt_keys.secrets.len(),
        jwt_kids = ?kids,
        admin_tokens = admin.tokens.len() + admin.bearers().len(),
        webhook_secrets = settings.payment.webhook_keys.len(),
        "secrets: replaced"
    );
}
