//! Rules about payments.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::kinds::{PaymentBackend, Tier};
use super::settings::{PaymentSettings, Settings};
use super::validate::RuleCheck;

/// A rotation needs two; a third is a rotation that begins before the last one has ended.
const WEBHOOK_SECRETS_MAX: usize = 3;

/// Each is a quorum queue.
const DELAY_QUEUES_MAX: usize = 8;

/// A week.
const DELAY_S_MAX: u32 = 604_800;

impl PaymentSettings {
    /// The numbers of `delay_queues_s`.
    pub fn delay_windows_s(&self) -> Vec<u32> {
        self.delay_queues_s.iter().filter_map(|text| text.parse().ok()).collect()
    }
}

/// What becomes of the price of a timed-out order that arrives late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LatePayment {
    /// It buys the units again, if they are still for sale.
    Retake,
    /// It is paid back.
    Refund,
}

pub(super) fn check(settings: &Settings, check: &mut RuleCheck) {
    let (payment, public) = (&settings.payment, settings.http.bind);
    let is_demo = payment.provider == PaymentBackend::Demo;
    check.require(
        !is_demo || public.ip().is_loopback() || payment.demo_public,
        "payment.provider",
        &format!(
            "{public} can be reached from other machines, and with the demo provider every visitor \
             decides that an order is paid"
        ),
        "bind to 127.0.0.1, use \"none\", or set payment.demo_public = true for a demonstration",
    );
    check.require(
        !payment.demo_public || is_demo,
        "payment.demo_public",
        "has no effect without payment.provider = \"demo\"",
        "remove it",
    );
    check.require(
        !payment.queue
            || (settings.tier == Tier::Pipeline && payment.provider != PaymentBackend::None),
        "payment.queue",
        "has no effect without tier = \"pipeline\" and a payment.provider",
        "remove it, or set both",
    );
    let (key, windows) = ("payment.delay_queues_s", payment.delay_windows_s());
    check.require(
        windows.is_empty() || settings.tier == Tier::Pipeline,
        key,
        "has no effect without tier = \"pipeline\"",
        "remove it",
    );
    let is_distinct = windows.iter().collect::<BTreeSet<_>>().len() == windows.len();
    let is_window = |s: &u32| (1..=DELAY_S_MAX).contains(s);
    check.require(
        is_distinct
            && windows.len() == payment.delay_queues_s.len()
            && windows.len() <= DELAY_QUEUES_MAX
            && windows.iter().all(is_window),
        key,
        "is not a list of at most 8 different numbers of seconds from 1 to 604800",
        "list the payment_window_s of most SKUs, for example [\"900\"]",
    );
    let key = "payment.webhook_secrets";
    let secrets = &payment.webhook_keys;
    check.require(
        secrets.is_empty() || payment.provider != PaymentBackend::None,
        key,
        "has no effect with payment.provider = \"none\"",
        "remove it, or set payment.provider",
    );
    check.require(
        secrets.len() <= WEBHOOK_SECRETS_MAX,
        key,
        "has more than 3 secrets",
        "keep the new secret and the one that it replaces",
    );
    check.require(
        secrets.iter().all(|secret| secret.key(payment.webhook_profile).is_some()),
        key,
        "holds a secret that is not `whsec_` and the base64 of 24 to 64 bytes",
        "copy it as the provider shows it, or make one: echo whsec_$(openssl rand -base64 32)",
    );
}

#[cfg(test)]
#[path = "payment_rules_tests.rs"]
mod tests;
