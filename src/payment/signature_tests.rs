use super::*;
use crate::config::{ConfigSources, Settings};

/// The example of the Standard Webhooks libraries.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const EVENT: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const SIGNED_S: i64 = 1_614_265_330;
const BODY: &[u8] = b"{\"test\": 2432232314}";
const SIGNED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
const OTHER_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A verifier with these entries of `payment.webhook_secrets`.
fn verifier(profile: &str, secrets: &[&str]) -> WebhookVerifier {
    let set = vec![
        "payment.provider=demo".to_owned(),
        format!("payment.webhook_profile={profile}"),
        format!("payment.webhook_secrets={}", secrets.join(",")),
    ];
    let settings = Settings::load(&ConfigSources { set, ..ConfigSources::default() }).unwrap();
    WebhookVerifier::new(&settings.payment, &[0; 32])
}

/// A webhook as it arrives.
#[derive(Clone)]
struct Sent {
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Sent {
    fn by(signer: &WebhookVerifier, at_s: i64) -> Self {
        Self { headers: signer.sign(EVENT, BODY, at_s * 1000), body: BODY.to_vec() }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(header, _)| *header != name);
        self.headers.push((name, value.to_owned()));
        self
    }

    fn at(&self, verifier: &WebhookVerifier, now_s: i64) -> Result<Option<String>, WebhookError> {
        self.verified(verifier, now_s, false)
    }

    fn verified(
        &self,
        verifier: &WebhookVerifier,
        now_s: i64,
        may_be_old: bool,
    ) -> Result<Option<String>, WebhookError> {
        let header = |name: &str| {
            let found = self.headers.iter().find(|(header, _)| *header == name);
            found.map(|(_, value)| value.as_str())
        };
        let id = verifier.verify(header, &self.body, now_s * 1000 + 999, may_be_old)?;
        Ok(id.map(str::to_owned))
    }
}

fn example() -> Sent {
    let headers = vec![
        (ID, EVENT.to_owned()),
        (TIMESTAMP, SIGNED_S.to_string()),
        (SIGNATURE, SIGNED.to_owned()),
    ];
    Sent { headers, body: BODY.to_vec() }
}

const ACCEPTED: Result<Option<&str>, WebhookError> = Ok(Some(EVENT));

#[test]
fn the_published_example_is_verified_and_signed_alike() {
    let verifier = verifier("standard", &[SECRET]);
    assert_eq!(example().at(&verifier, SIGNED_S), ACCEPTED.map(|id| id.map(str::to_owned)));
    assert_eq!(verifier.sign(EVENT, BODY, SIGNED_S * 1000), example().headers);
}

#[test]
fn one_of_several_signatures_and_secrets_suffices() {
    let (old, new) = (verifier("standard", &[SECRET]), verifier("standard", &[OTHER_SECRET]));
    let both = verifier("standard", &[SECRET, OTHER_SECRET]);
    let signed_by = |signer| Sent::by(signer, SIGNED_S);
    for (sent, verifier, is_valid) in [
        (signed_by(&old), &both, true),
        (signed_by(&new), &both, true),
        (signed_by(&both), &old, true),
        (signed_by(&both), &new, true),
        (signed_by(&old), &new, false),
        (signed_by(&new), &old, false),
        (example().with(SIGNATURE, &format!("v1a,x v2,AAAA v1,AAAA {SIGNED}")), &old, true),
        (example().with(SIGNATURE, &SIGNED.replace("v1,", "v2,")), &old, false),
        (example().with(SIGNATURE, "v1,"), &old, false),
        (example().with(SIGNATURE, &SIGNED["v1,".len()..]), &old, false),
        (example().with(SIGNATURE, &SIGNED.replace('=', "")), &old, false),
    ] {
        let expected = if is_valid { Ok(()) } else { Err(WebhookError::Signature) };
        assert_eq!(sent.at(verifier, SIGNED_S).map(drop), expected, "{:?}", sent.headers);
    }
    let many = "v1,AAAA ".repeat(SIGNATURES_MAX) + SIGNED;
    let beyond = example().with(SIGNATURE, &many).at(&old, SIGNED_S);
    assert_eq!(beyond, Err(WebhookError::Signature));
}

#[test]
fn a_secret_ends_at_its_time() {
    let ending = format!("{SECRET} until 2021-02-25T15:02:20Z");
    let verifier = verifier("standard", &[OTHER_SECRET, &ending]);
    let until_s = 1_614_265_340;
    assert!(example().at(&verifier, until_s - 1).is_ok());
    assert_eq!(example().at(&verifier, until_s), Err(WebhookError::Signature));
    assert_eq!(verifier.sign(EVENT, BODY, until_s * 1000).len(), 3);
}

#[test]
fn the_time_may_differ_by_300_seconds() {
    for profile in ["standard", "stripe"] {
        let verifier = verifier(profile, &[SECRET]);
        let sent = Sent::by(&verifier, SIGNED_S);
        for (now_s, is_valid) in [
            (SIGNED_S - 301, false),
            (SIGNED_S - 300, true),
            (SIGNED_S + 300, true),
            (SIGNED_S + 301, false),
        ] {
            let expected = if is_valid { Ok(()) } else { Err(WebhookError::Time) };
            assert_eq!(sent.at(&verifier, now_s).map(drop), expected, "{profile} {now_s}");
        }
    }
}

#[test]
fn a_body_of_64_kib_is_the_largest_whatever_its_headers() {
    let verifier = verifier("standard", &[SECRET]);
    let signed = |len| {
        let body = vec![b' '; len];
        Sent { headers: verifier.sign(EVENT, &body, SIGNED_S * 1000), body }.at(&verifier, SIGNED_S)
    };
    assert!(signed(65_536).is_ok());
    assert_eq!(signed(65_537), Err(WebhookError::TooLarge));
    let unsigned = Sent { headers: Vec::new(), body: vec![b' '; BODY_BYTES_MAX + 1] };
    assert_eq!(unsigned.at(&verifier, 0), Err(WebhookError::TooLarge));
}

#[test]
fn the_stripe_profile_signs_time_and_body_in_hex() {
    let verifier = verifier("stripe", &[SECRET]);
    // Computed with Python's hmac, the key being the whole text of the secret.
    let signed = "2e37df5d4a028c51a7f3133d64ae1e300d2c2c900f1b1d49d4369ad2530f8964";
    let sent = |value: &str| Sent {
        headers: vec![(STRIPE_SIGNATURE, value.to_owned())],
        body: BODY.to_vec(),
    };
    let valid = format!("t={SIGNED_S},v1={signed}");
    assert_eq!(Sent::by(&verifier, SIGNED_S).headers, sent(&valid).headers);
    for value in [valid.clone(), format!("t={SIGNED_S},v1=00,v0=ab,v1={signed}")] {
        assert_eq!(sent(&value).at(&verifier, SIGNED_S), Ok(None), "{value}");
    }
    for (value, error) in [
        (format!("t={SIGNED_S},v0={signed}"), WebhookError::Signature),
        (format!("t={SIGNED_S},v1={}", &signed[1..]), WebhookError::Signature),
        (format!("t={SIGNED_S},v1=é{}", &signed[2..]), WebhookError::Signature),
        (format!("v1={signed}"), WebhookError::Header(STRIPE_SIGNATURE)),
        (format!("t=,v1={signed}"), WebhookError::Header(STRIPE_SIGNATURE)),
        (format!("t={},v1={signed}", SIGNED_S + 1), WebhookError::Signature),
    ] {
        assert_eq!(sent(&value).at(&verifier, SIGNED_S), Err(error), "{value}");
    }
}

#[test]
fn without_configured_secrets_the_fallback_signs() {
    let sent = Sent::by(&verifier("standard", &[]), SIGNED_S);
    assert!(sent.at(&verifier("standard", &[]), SIGNED_S).is_ok());
    let configured = sent.at(&verifier("standard", &[SECRET]), SIGNED_S);
    assert_eq!(configured, Err(WebhookError::Signature));
}

#[test]
fn an_event_that_waited_in_a_queue_may_be_old_and_not_from_the_future() {
    let verifier = verifier("standard", &[SECRET]);
    for (age_s, in_queue) in
        [(400 * 86_400, true), (301, true), (0, true), (-300, true), (-301, false)]
    {
        let verified = example().verified(&verifier, SIGNED_S + age_s, true);
        assert_eq!(verified.is_ok(), in_queue, "{age_s}");
        let as_webhook = example().at(&verifier, SIGNED_S + age_s);
        assert_eq!(as_webhook.is_ok(), age_s.abs() <= 300, "{age_s}");
    }
    let forged = example().with(SIGNATURE, "v1,AAAA").verified(&verifier, SIGNED_S + 301, true);
    assert_eq!(forged, Err(WebhookError::Signature));
}

#[test]
fn a_reload_without_secrets_keeps_the_key_that_is_used() {
    let set = vec!["payment.provider=demo".to_owned()];
    let settings = Settings::load(&ConfigSources { set, ..ConfigSources::default() }).unwrap();
    let verifier = WebhookVerifier::new(&settings.payment, &[7; 32]);
    let sent = Sent::by(&verifier, SIGNED_S);
    verifier.replace_secrets(&settings.payment);
    assert_eq!(sent.at(&verifier, SIGNED_S), Ok(Some(EVENT.to_owned())));
}
