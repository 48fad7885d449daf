use super::*;
use crate::config::validate::tests::{Case, broken_by, check_alone};
use crate::config::{AuthMode, JwtKeys, WebhookSecret};

fn secret(len: usize) -> WebhookSecret {
    WebhookSecret::of_key(&vec![1; len])
}

const SINGLE: &[Case] = &[
    ("payment.demo_public", |s| s.payment.demo_public = true),
    ("payment.webhook_secrets", |s| s.payment.webhook_keys = vec![secret(32)]),
    ("payment.webhook_secrets", |s| {
        s.payment.provider = PaymentBackend::Demo;
        s.payment.webhook_keys = vec![secret(32); 4];
    }),
    ("payment.webhook_secrets", |s| {
        s.payment.provider = PaymentBackend::Demo;
        s.payment.webhook_keys = vec![secret(32), secret(23)];
    }),
    ("payment.queue", |s| {
        s.payment.provider = PaymentBackend::Demo;
        s.payment.queue = true;
    }),
    ("payment.delay_queues_s", |s| s.payment.delay_queues_s = vec!["900".to_owned()]),
    ("payment.calls_max", |s| s.payment.calls_max = 0),
    ("payment.timeout_ms", |s| s.payment.timeout_ms = 0),
    ("payment.webhook_tolerance_s", |s| s.payment.webhook_tolerance_s = 0),
    ("payment.timeout_ms", |s| s.payment.timeout_ms = 15_001),
    ("payment.every_ms", |s| s.payment.every_ms = 0),
    ("payment.batch", |s| s.payment.batch = 0),
    ("payment.clock_skew_max_ms", |s| s.payment.clock_skew_max_ms = 999),
    ("payment.refund_attempts_max", |s| s.payment.refund_attempts_max = 0),
    ("payment.retake_within_s", |s| s.payment.retake_within_s = 0),
    ("payment.paying_window_s", |s| s.payment.paying_window_s = 0),
    ("payment.extension_max_s", |s| s.payment.extension_max_s = 0),
];

#[test]
fn each_rule_is_broken_alone_and_named() {
    check_alone(SINGLE);
}

#[test]
fn the_demo_provider_is_reachable_from_other_machines_only_if_asked_for() {
    let reachable = |demo_public| {
        broken_by(|s| {
            s.http.bind = "0.0.0.0:8080".parse().unwrap();
            s.auth.mode = AuthMode::Jwt;
            s.auth.jwt_keys = JwtKeys::of_secret("0123456789abcdef0123456789abcdef");
            (s.payment.provider, s.payment.demo_public) = (PaymentBackend::Demo, demo_public);
        })
    };
    assert_eq!(reachable(false), ["payment.provider"]);
    assert_eq!(reachable(true), [""; 0]);
    assert_eq!(broken_by(|s| s.payment.provider = PaymentBackend::Demo), [""; 0]);
}

#[test]
fn delay_queues_are_few_different_windows() {
    let faults = |windows: &[&str]| {
        let broken = broken_by(|s| {
            s.tier = Tier::Pipeline;
            s.payment.delay_queues_s = windows.iter().map(|it| (*it).to_owned()).collect();
        });
        broken.iter().filter(|key| *key == "payment.delay_queues_s").count()
    };
    assert_eq!((faults(&[]), faults(&["900", "60"])), (0, 0));
    for wrong in [&["900", "900"][..], &["0"], &["604801"], &["soon"], &["-1"]] {
        assert_eq!(faults(wrong), 1, "{wrong:?}");
    }
    assert_eq!(faults(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]), 1);
}
