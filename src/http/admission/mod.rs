//! Rate limits of buyers and addresses, the bound on purchases in flight, challenges and tickets.
//!
//! On the way of a purchase nothing here waits, takes a lock or allocates, unless it refuses, or
//! the limits are shared and there is something left to buy.

mod address;
mod arithmetic;
pub mod challenge;
mod drawing;
mod rate_table;
pub mod tickets;
mod work;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actix_web::HttpRequest;
use actix_web::http::header::{HeaderName, RETRY_AFTER};

use crate::config::Settings;
use crate::domain::BuyerId;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::limits::{Counted, Rate, SharedLimits};
use crate::observe::metrics::{Metrics, ReasonLabel};
use rate_table::RateTable;

/// Fields of draft-ietf-httpapi-ratelimit-headers-10.
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Longest wait for the shared limits: a call that Redis does not count by then passes.
const SHARED_WAIT_MAX: Duration = Duration::from_millis(250);

/// A call that is limited. Each has counts of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitedCall {
    Buy,
    RequestId,
    Challenge,
    Ticket,
    Mine,
    Orders,
    OrderChange,
}

impl LimitedCall {
    /// Its name in the keys of the shared limits.
    fn key(self) -> &'static str {
        match self {
            Self::Buy => "buy",
            Self::RequestId => "request-id",
            Self::Challenge => "challenge",
            Self::Ticket => "ticket",
            Self::Mine => "mine",
            Self::Orders => "orders",
            Self::OrderChange => "order-change",
        }
    }
}

/// A limit, by the name that answers give it.
#[derive(Debug)]
struct Policy {
    name: &'static str,
    rate: Rate,
}

/// What a limit counts.
#[derive(Debug, Hash)]
enum LimitKey {
    Buyer(LimitedCall, BuyerId),
    Address(LimitedCall, u128),
    /// Answers to a challenge.
    Answer(u64),
    /// Log lines of refused operators.
    RefusalLog,
}

/// The limits of one process, and those that it counts together with others.
#[derive(Debug)]
pub struct Admission {
    table: RateTable,
    shared: Option<Arc<SharedLimits>>,
    of_buyers: Vec<Policy>,
    of_addresses: Option<Policy>,
    trusted_proxies: Vec<IpAddr>,
    in_flight: AtomicUsize,
    in_flight_max: usize,
    metrics: Arc<Metrics>,
}

/// A purchase in flight, until drop.
#[derive(Debug)]
pub struct PurchaseInFlight<'a>(&'a AtomicUsize);

impl Drop for PurchaseInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    pub fn new(
        settings: &Settings,
        shared: Option<Arc<SharedLimits>>,
        metrics: &Arc<Metrics>,
        now: Instant,
    ) -> Self {
        let limits = &settings.limits;
        let policy = |name, count, seconds| {
            let rate = Rate { count, window: Duration::from_secs(seconds) };
            (count > 0).then_some(Policy { name, rate })
        };
        let trusted = settings.http.trusted_proxies.iter();
        let second = policy("buyer-second", limits.buyer_per_second, 1);
        let minute = policy("buyer-minute", limits.buyer_per_minute, 60);
        Self {
            table: RateTable::new(now, metrics.limits_forgotten.clone()),
            shared,
            of_buyers: second.into_iter().chain(minute).collect(),
            of_addresses: policy("address-second", limits.address_per_second, 1),
            trusted_proxies: trusted.map(IpAddr::to_canonical).collect(),
            in_flight: AtomicUsize::new(0),
            in_flight_max: limits.in_flight_max,
            metrics: Arc::clone(metrics),
        }
    }

    /// Counts a call of the request's address.
    pub fn check_address(
        &self,
        request: &HttpRequest,
        call: LimitedCall,
        now: Instant,
    ) -> Result<(), Problem> {
        let Some(policy) = &self.of_addresses else { return Ok(()) };
        let Some(address) = address::of(request, &self.trusted_proxies) else { return Ok(()) };
        let key = LimitKey::Address(call, address::network(address));
        self.table.take(key, policy.rate, now).map_err(|wait| self.too_fast(policy, wait))
    }

    /// Counts a call of a buyer.
    pub fn check_buyer(
        &self,
        buyer: BuyerId,
        call: LimitedCall,
        now: Instant,
    ) -> Result<(), Problem> {
        let key = LimitKey::Buyer(call, buyer);
        for policy in &self.of_buyers {
            self.table.take(&key, policy.rate, now).map_err(|wait| self.too_fast(policy, wait))?;
        }
        Ok(())
    }

    /// Counts a call that this process lets pass together with other processes, if the limits are
    /// shared. A call that cannot be counted passes, and is counted as such.
    pub async fn check_shared(
        &self,
        request: &HttpRequest,
        buyer: BuyerId,
        call: LimitedCall,
    ) -> Result<(), Problem> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let call = call.key();
        let address = address::of(request, &self.trusted_proxies);
        if let (Some(policy), Some(address)) = (&self.of_addresses, address) {
            let key = format!("{call}:address:{:032x}", address::network(address));
            self.take_shared(shared, &key, std::slice::from_ref(policy)).await?;
        }
        let key = format!("{call}:buyer:{}", buyer.get());
        self.take_shared(shared, &key, &self.of_buyers).await
    }

    async fn take_shared(
        &self,
        shared: &SharedLimits,
        key: &str,
        policies: &[Policy],
    ) -> Result<(), Problem> {
        if policies.is_empty() {
            return Ok(());
        }
        let rates: Vec<Rate> = policies.iter().map(|policy| policy.rate).collect();
        match tokio::time::timeout(SHARED_WAIT_MAX, shared.take(key, &rates)).await {
            Ok(Ok(Counted::Passed)) => Ok(()),
            Ok(Ok(Counted::Exceeded { rate, wait })) => match policies.get(rate) {
                Some(policy) => Err(self.too_fast(policy, wait)),
                None => Ok(()),
            },
            Ok(Err(_)) | Err(_) => {
                self.metrics.limits_not_shared.inc();
                Ok(())
            }
        }
    }

    /// Counts an answer to a challenge; false if it was answered too often.
    pub fn may_answer(&self, challenge: u64, attempts: Rate, now: Instant) -> bool {
        self.table.take(LimitKey::Answer(challenge), attempts, now).is_ok()
    }

    /// Whether a refused call of an operator may be logged: one a second.
    pub fn may_log_refusal(&self, now: Instant) -> bool {
        let rate = Rate { count: 1, window: Duration::from_secs(1) };
        self.table.take(LimitKey::RefusalLog, rate, now).is_ok()
    }

    /// Counts a purchase that goes to a gate until the result is dropped; `busy` over the maximum.
    pub fn enter(&self) -> Result<PurchaseInFlight<'_>, Problem> {
        let entered = PurchaseInFlight(&self.in_flight);
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= self.in_flight_max {
            return Err(ProblemCode::Busy.into());
        }
        Ok(entered)
    }

    fn too_fast(&self, policy: &Policy, wait: Duration) -> Problem {
        self.metrics.rate_limited.get_or_create(&ReasonLabel { reason: policy.name }).inc();
        let whole = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let (name, Rate { count, window }) = (policy.name, policy.rate);
        let retry_after = whole + fastrand::u64(0..=(whole * 3 / 10).max(1));
        Problem::from(ProblemCode::RateLimited)
            .with("violated-policies", vec![name])
            .with_header(POLICY, &format!("\"{name}\";q={count};w={}", window.as_secs()))
            .with_header(LIMIT, &format!("\"{name}\";r=0;t={whole}"))
            .with_header(RETRY_AFTER, &retry_after.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::now_monotonic;

    #[test]
    fn a_purchase_that_was_refused_as_too_many_takes_no_place() {
        let mut settings = Settings::with_ledger("sqlite://x");
        settings.limits.in_flight_max = 1;
        let admission = Admission::new(&settings, None, &Arc::default(), now_monotonic());
        let first = admission.enter();
        assert!(first.is_ok() && admission.enter().is_err());
        drop(first);
        assert!(admission.enter().is_ok());
    }
}
