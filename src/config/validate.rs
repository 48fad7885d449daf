//! Rules between keys. Every broken rule is reported with its remedy.

use std::net::SocketAddr;
use std::ops::{RangeBounds, RangeInclusive};

use secrecy::ExposeSecret;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::access::{AuthMode, TOKEN_CHARS_MIN};
use super::error::ConfigFault;
use super::kinds::{PaymentBackend, Role, Tier};
use super::settings::{Settings, check_numbers};
use super::{access, payment_rules, store_rules};

/// Keeps names of keys and queues readable and within the broker's limit of 255 bytes.
const NAMESPACE_CHARS_MAX: usize = 32;

/// Kinds of supervised actor that fault injection can make panic.
const ACTOR_KINDS: [&str; 23] = [
    "stock_gate",
    "ledger_writer",
    "stock_refresher",
    "stock_returner",
    "sale_loader",
    "series_sampler",
    "status_watcher",
    "result_listener",
    "outbox_relay",
    "orphan_rescuer",
    "order_consumer",
    "dead_letter_collector",
    "dead_letter_counter",
    "reconciler",
    "event_publisher",
    "clock_watcher",
    "payment_timer",
    "payment_inquirer",
    "refund_worker",
    "retaker",
    "payment_consumer",
    "hint_publisher",
    "hint_consumer",
];

/// Collects the faults of broken rules.
#[derive(Default)]
pub(super) struct RuleCheck {
    faults: Vec<ConfigFault>,
}

impl RuleCheck {
    pub fn require(&mut self, holds: bool, key: &str, problem: &str, remedy: &str) {
        if !holds {
            self.faults.push(ConfigFault::new(key, problem, remedy));
        }
    }

    pub fn positive(&mut self, key: &str, value: u64) {
        self.require(value >= 1, key, "is 0", "set 1 or more");
    }

    pub fn up_to(&mut self, key: &str, value: u64, other_key: &str, most: u64) {
        let problem = format!("{value} is larger than {other_key} = {most}");
        self.require(value <= most, key, &problem, &format!("lower it, or raise {other_key}"));
    }

    pub fn between(&mut self, key: &str, value: u64, range: RangeInclusive<u64>, remedy: &str) {
        let problem = format!("is not between {} and {}", range.start(), range.end());
        self.range(key, value, range, &problem, remedy);
    }

    pub fn range(
        &mut self,
        key: &str,
        value: u64,
        range: impl RangeBounds<u64>,
        problem: &str,
        remedy: &str,
    ) {
        self.require(range.contains(&value), key, problem, remedy);
    }
}

/// The number of a setting.
pub(super) fn wide(value: impl TryInto<u64>) -> u64 {
    value.try_into().unwrap_or(u64::MAX)
}

/// The faults of these settings; empty if they may be used.
pub(super) fn validate(settings: &Settings) -> Vec<ConfigFault> {
    let mut check = RuleCheck::default();
    tier_and_names(settings, &mut check);
    listeners(settings, &mut check);
    access::check(settings, &mut check);
    store_rules::check(settings, &mut check);
    check_numbers(settings, &mut check);
    payment_rules::check(settings, &mut check);
    log(settings, &mut check);
    faults(settings, &mut check);
    check.faults
}

fn tier_and_names(settings: &Settings, check: &mut RuleCheck) {
    let (tier, role) = (settings.tier.name(), settings.role.name());
    let is_pipeline = settings.tier == Tier::Pipeline;
    check.require(
        settings.role == Role::All || is_pipeline,
        "role",
        &format!("role `{role}` needs tier `pipeline`; in tier `{tier}` one process does it all"),
        "use `all`",
    );
    check.require(
        !settings.events.exchange || is_pipeline,
        "events.exchange",
        &format!("tier `{tier}` has no broker"),
        "remove it and read GET /admin/v1/order-events, or use tier `pipeline`",
    );
    let name = &settings.namespace;
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    check.require(
        !name.is_empty()
            && name.chars().count() <= NAMESPACE_CHARS_MAX
            && name.chars().all(is_allowed),
        "namespace",
        &format!("{name:?} cannot prefix the names of keys and queues"),
        "use 1 to 32 of a-z, 0-9, `-` and `_`",
    );
}

fn listeners(settings: &Settings, check: &mut RuleCheck) {
    let (public, internal) = (settings.http.bind, settings.internal.bind);
    check.require(
        public != internal || public.port() == 0,
        "internal.bind",
        &format!("{internal} is the public listener's address too"),
        "give each listener its own port",
    );
    check.require(
        settings.auth.mode != AuthMode::Header || public.ip().is_loopback(),
        "http.bind",
        &format!(
            "{public} can be reached from other machines, and auth.mode = \"header\" does not \
             verify buyer ids"
        ),
        "set auth.mode = \"jwt\" with auth.jwt_secret_file, or bind to 127.0.0.1",
    );
    check.require(
        settings.auth.mode != AuthMode::Header || settings.http.trusted_proxies.is_empty(),
        "http.trusted_proxies",
        "names proxies, and auth.mode = \"header\" verifies no buyer behind them",
        "set auth.mode = \"jwt\" with auth.jwt_secret_file, or leave it empty",
    );
    check.require(
        settings.payment.provider != PaymentBackend::Demo || settings.http.tls.is_none(),
        "http.tls_cert_file",
        "is set, and payment.provider = \"demo\" sends its webhooks in plain HTTP",
        "remove it, or let a proxy speak TLS",
    );
    if internal.ip().is_loopback() {
        return;
    }
    let lengths = settings.admin.bearers().into_iter();
    match lengths.map(|token| token.expose_secret().chars().count()).min() {
        None => check.require(
            settings.admin.token_file != *"" || settings.admin.tokens_file != *"",
            "internal.bind",
            &format!("{internal} can be reached from other machines, and there is no admin token"),
            "set admin.token_file (a file with 16 or more characters) or admin.tokens_file, or \
             bind to 127.0.0.1",
        ),
        Some(shortest) => check.require(
            shortest >= TOKEN_CHARS_MIN,
            "admin.token",
            &format!("is short enough to guess, and {internal} can be reached from other machines"),
            "use 16 characters or more, such as from `openssl rand -hex 16`",
        ),
    }
}

fn log(settings: &Settings, check: &mut RuleCheck) {
    let filter = &settings.log.filter;
    // A bare word that is no level would be a module, and nothing else would be logged.
    let is_wrong = |part: &&str| {
        !part.contains(['=', '[', ']']) && (part.is_empty() || part.parse::<LevelFilter>().is_err())
    };
    let fault = EnvFilter::try_new(filter).err().map(|error| error.to_string());
    let wrong = || filter.split(',').map(str::trim).find(is_wrong);
    if let Some(fault) = fault.or_else(|| wrong().map(|part| format!("{part:?} is no level"))) {
        check.require(
            false,
            "log.filter",
            &format!("{filter:?} is not a filter: {fault}"),
            "use a level (error, warn, info, debug, trace) or \"info,floodgate::actors=debug\"",
        );
    }
}

fn faults(settings: &Settings, check: &mut RuleCheck) {
    let faults = &settings.faults;
    check.require(
        (0.0..=100.0).contains(&faults.panic_percent),
        "faults.panic_percent",
        "is not between 0 and 100",
        "use percent: 0.5 means one step in 200",
    );
    let percent_set = faults.panic_percent > 0.0;
    check.require(
        !percent_set || !faults.panic_in.is_empty(),
        "faults.panic_in",
        "is empty, so faults.panic_percent would do nothing",
        "name kinds of actor, such as [\"order_consumer\"], or set faults.panic_percent = 0",
    );
    for kind in faults.panic_in.iter().filter(|kind| !ACTOR_KINDS.contains(&kind.as_str())) {
        check.require(
            false,
            "faults.panic_in",
            &format!("{kind:?} is not a kind of actor"),
            &format!("use some of {}", ACTOR_KINDS.join(", ")),
        );
    }
    let injects_faults = percent_set || !faults.panic_in.is_empty();
    let is_local = |bind: SocketAddr| bind.ip().is_loopback();
    check.require(
        !injects_faults || (is_local(settings.http.bind) && is_local(settings.internal.bind)),
        "faults.panic_in",
        "fault injection is refused while a listener can be reached from other machines",
        "bind both listeners to 127.0.0.1, or remove the faults section",
    );
}

#[cfg(test)]
#[path = "validate_tests.rs"]
pub(super) mod tests;
