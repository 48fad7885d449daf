//! Settings that are allowed and not safe. A server logs them at its start.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::Check;
use crate::config::{
    AuthMode, ExposedSecret, MysqlUrl, PaymentBackend, Role, Settings, Tier, broker_urls, host_of,
};
use crate::net;
use crate::redis::transport::RedisUrl;
use crate::runtime::clock;

/// A certificate should be valid for as long as this.
const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(14 * 86_400);

pub(super) fn examine(settings: &Settings, exposed: &[ExposedSecret]) -> Vec<Check> {
    let mut checks = secrets(exposed);
    checks.extend([encryption(settings), exposure(settings), certificates(settings)]);
    if settings.role.sells() {
        checks.extend([buyers(settings), payments(settings)]);
    }
    checks.extend([operators(settings), demo_payments(settings), faults(settings)]);
    checks
}

/// A listener: its name, its address, and the file of its certificates, which is empty for plain
/// text.
type Listener<'a> = (&'static str, SocketAddr, &'a Path);

/// The listeners that a process of this role opens.
fn listeners(settings: &Settings) -> Vec<Listener<'_>> {
    let Settings { http, internal, .. } = settings;
    let public = ("public", http.bind, http.tls_cert_file.as_path());
    let internal = ("internal", internal.bind, internal.tls_cert_file.as_path());
    settings.role.sells().then_some(public).into_iter().chain([internal]).collect()
}

/// A link to a server: the key of its URL, its names or addresses without ports, whether it is
/// encrypted, and how to encrypt it.
type Link = (&'static str, Vec<String>, bool, &'static str);

/// The links to the servers that this tier uses.
fn links(settings: &Settings) -> Vec<Link> {
    let [to_ledger, to_redis, to_broker] = settings.encrypted_links();
    let mut links = Vec::new();
    if let Ok(Some(url)) = MysqlUrl::parse(&settings.ledger.url) {
        let remedy = "add ?ssl-mode=verify-full to ledger.url";
        links.push(("ledger.url", vec![host_of(&url.client_url)], to_ledger, remedy));
    }
    let on_redis = matches!(settings.tier, Tier::Gate | Tier::Pipeline);
    if let (true, Ok(url)) = (on_redis, settings.redis.url.parse::<RedisUrl>()) {
        let hosts = url.addresses().iter().map(|address| address.host.clone()).collect();
        let remedy = "begin redis.url with rediss://, rediss+cluster:// or rediss+sentinel://";
        links.push(("redis.url", hosts, to_redis, remedy));
    }
    if settings.tier == Tier::Pipeline {
        let hosts = broker_urls(&settings.amqp.url).iter().map(|url| host_of(url)).collect();
        links.push(("amqp.url", hosts, to_broker, "begin amqp.url with amqps://"));
    }
    links
}

/// Whether others may read passwords, orders and keys on the way.
fn is_readable((_, hosts, is_encrypted, _): &Link) -> bool {
    !is_encrypted && !hosts.iter().all(|host| net::is_loopback(host))
}

/// Secrets that others may read.
fn secrets(exposed: &[ExposedSecret]) -> Vec<Check> {
    if exposed.is_empty() {
        return vec![check! { "secrets"; Ok "no other user can read them" }];
    }
    let warn = |ExposedSecret { what, remedy }: &ExposedSecret| {
        check! { "secrets"; Warn "{what}" -> "{remedy}" }
    };
    exposed.iter().map(warn).collect()
}

/// Servers beyond this machine without TLS.
fn encryption(settings: &Settings) -> Check {
    let links = links(settings);
    let readable: Vec<_> = links.iter().filter(|link| is_readable(link)).collect();
    let shown = readable.iter().map(|(key, hosts, ..)| format!("{key} ({})", hosts.join(", ")));
    let shown = shown.collect::<Vec<_>>().join("; ");
    let remedies = readable.iter().map(|(.., remedy)| *remedy).collect::<Vec<_>>().join("; ");
    let num_encrypted = links.iter().filter(|(_, _, is_encrypted, _)| *is_encrypted).count();
    let num_links = links.len();
    check! { "encryption";
        !readable.is_empty() =>
            Warn "passwords and orders travel in plain text: {shown}" -> "{remedies}";
        else => Ok "{num_encrypted} of {num_links} servers with TLS, the others on loopback"
    }
}

/// Whether buyers are who they say.
fn buyers(settings: &Settings) -> Check {
    check! { "buyers";
        settings.auth.mode == AuthMode::Header =>
            Warn "auth.mode is \"header\": X-Buyer-Id is not verified"
            -> "for real buyers set auth.mode = \"jwt\" and auth.jwks_file or \
                auth.jwt_secret_file";
        settings.auth.trusts_for_ever() =>
            Warn "a bearer token without exp is valid for ever, also a stolen one"
            -> "set auth.jwt_require_exp or auth.jwt_lifetime_max_s";
        else => Ok "buyers are verified by their tokens"
    }
}

/// Whether operators are who they say.
fn operators(settings: &Settings) -> Check {
    let admin = &settings.admin;
    check! { "operators";
        admin.bearers().is_empty() && admin.tokens.is_empty() =>
            Warn "no admin token: whoever reaches internal.bind operates, also through a tunnel"
            -> "set admin.token_file or admin.tokens_file";
        else => Ok "operators are verified by their tokens"
    }
}

/// Whether buyers can pay their orders.
fn payments(settings: &Settings) -> Check {
    check! { "payments";
        settings.payment.provider == PaymentBackend::None =>
            Warn "no payment provider: orders of SKUs with a payment window end unpaid"
            -> "set payment.provider, or payment_window_s 0 in the sale";
        settings.payment.provider == PaymentBackend::Demo =>
            Warn "visitors of the demo provider's pages decide what is paid, and no money moves"
            -> "for a real sale set another payment.provider";
        else => Ok "orders can be paid"
    }
}

/// Payments that other processes cannot refund.
fn demo_payments(settings: &Settings) -> Check {
    check! { "demo payments";
        settings.payment.provider == PaymentBackend::Demo && settings.role != Role::All =>
            Warn "the demo has its payments in one process: those of other roles refund and stop \
                  none"
            -> "set role = \"all\", or another payment.provider";
    }
}

/// Panics on purpose.
fn faults(settings: &Settings) -> Check {
    let (percent, steps) = (settings.faults.panic_percent, &settings.faults.panic_in);
    check! { "fault injection";
        percent > 0.0 => Warn "{percent} % of the steps of {steps:?} panic"
            -> "leave out the section faults";
        else => Ok "off"
    }
}

/// Warns of exposure that is allowed; forbidden exposure is a fault of the configuration.
fn exposure(settings: &Settings) -> Check {
    let listeners = listeners(settings);
    let open: Vec<_> = listeners
        .iter()
        .filter(|(_, bind, chain)| !bind.ip().is_loopback() && chain.as_os_str().is_empty())
        .map(|(name, bind, _)| format!("{name} {bind}"))
        .collect();
    let is_loopback = listeners.iter().all(|(_, bind, _)| bind.ip().is_loopback());
    let open = open.join(", ");
    check! { "exposure";
        !open.is_empty() => Warn "reachable from other machines without TLS: {open}"
            -> "let only a proxy that speaks TLS, and the operators' network, reach them, or set \
                tls_cert_file and tls_key_file";
        is_loopback => Ok "loopback only";
        else => Ok "loopback or TLS only"
    }
}

/// The dates of the listeners' certificates, now and in the near future.
fn certificates(settings: &Settings) -> Check {
    let now = Duration::from_millis(clock::wall_ms().cast_unsigned());
    let listeners = listeners(settings);
    let wrong_at = |time| {
        let wrong = listeners.iter().filter_map(|(name, _, chain)| {
            let what = net::wrong_dates(chain, time)?;
            Some(format!("a certificate in {} of the {name} listener {what}", chain.display()))
        });
        wrong.collect::<Vec<_>>().join("; ")
    };
    let (wrong, soon) = (wrong_at(now), wrong_at(now + CERTIFICATE_LEFT_MIN));
    let remedy = "renew it, or set this machine's clock, and restart the server";
    check! { "certificates";
        !wrong.is_empty() => Fail "{wrong}" -> "{remedy}";
        !soon.is_empty() => Warn "in two weeks {soon}" -> "{remedy}";
        else => Ok "no listener has one that is out of date"
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status::Warn;
    use super::super::tests::{assert_problem, problems};
    use super::*;

    #[test]
    fn exposure_depends_on_the_address_and_buyers_on_the_mode() {
        let mut settings = Settings::with_ledger("sqlite://./x.db");
        let both = |settings: &Settings| vec![exposure(settings), buyers(settings)];
        assert_problem(both(&settings), "buyers", Warn, "X-Buyer-Id is not verified");
        settings.auth.mode = AuthMode::Jwt;
        assert_problem(both(&settings), "buyers", Warn, "valid for ever");
        settings.auth.jwt_require_exp = true;
        assert_eq!(problems(both(&settings)), []);
        settings.http.bind = "0.0.0.0:80".parse().unwrap();
        assert_problem(both(&settings), "exposure", Warn, "public 0.0.0.0:80");
        (settings.tier, settings.role) = (Tier::Pipeline, Role::Relay);
        assert_eq!(problems(vec![exposure(&settings)]), [], "a relay has no public listener");
    }

    #[test]
    fn a_link_beyond_loopback_is_readable_unless_it_is_encrypted() {
        let mut settings = Settings::with_ledger("mysql://u:p@db.example:3306/x");
        settings.tier = Tier::Pipeline;
        settings.redis.url = "redis+sentinel://127.0.0.1,cache:1/m".to_owned();
        settings.amqp.url = "amqp://u:p@[::1]:5672/%2f".to_owned();
        let readable = |settings: &Settings| {
            let links = links(settings).into_iter().filter(is_readable);
            links.map(|(key, ..)| key).collect::<Vec<_>>()
        };
        assert_eq!(readable(&settings), ["ledger.url", "redis.url"]);
        settings.ledger.url.push_str("?ssl-mode=verify-full");
        settings.redis.url.insert("redis".len(), 's');
        settings.amqp.url = "amqp://u:p@127.0.0.1:1,10.0.0.1/%2f".to_owned();
        assert_eq!(readable(&settings), ["amqp.url"]);
        settings.tier = Tier::Ledger;
        assert_eq!(readable(&settings), [""; 0]);
    }
}
