//! Tickets after their end, and which ones stay bound in Redis, for how long.

use floodgate::config::Tier;
use floodgate::runtime::clock::wall_ms;
use serde_json::Value as Json;

use super::tickets::{bought_and_cancelled, purchase, ticket, ticketed_on};
use super::{one_per_buyer, problem, settings, unlimited};
use crate::support::app::fresh_settings;
use crate::support::wait::until;

#[tokio::test]
async fn an_expired_ticket_repeats_its_purchase_and_begins_none() {
    let (mut settings, _stores) = settings();
    settings.tickets.work_bits = 8;
    (settings.tickets.challenge_ttl_s, settings.tickets.ticket_ttl_s) = (5, 1);
    let app = ticketed_on(settings, unlimited(), 1).await;
    let ids = [app.request_id("sale", 1).await, app.request_id("sale", 1).await];
    let (own, unused) = (ticket(&app, 1).await, ticket(&app, 1).await);
    let first = app.bought(&own, 1, purchase("sku", Some(&ids[0]))).await;
    let end_ms = wall_ms() + 6_000;
    until("the end of both", async || (wall_ms() > end_ms).then_some(())).await;
    let buy = async |path: &str, id: &str| app.buy(path, 1, purchase("sku", Some(id))).await;
    problem(buy(&unused, &ids[1]).await, 403, "ticket-invalid").await;
    problem(buy(&own, &ids[1]).await, 403, "ticket-invalid").await;
    let again = buy(&own, &ids[0]).await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(again.json::<Json>().await.unwrap()["request_id"], first["request_id"]);
}

#[tokio::test]
async fn in_redis_a_ticket_stays_bound_until_it_expires() {
    let (mut settings, stores) = fresh_settings(Tier::Gate);
    settings.tickets.work_bits = 8;
    let life_s = settings.tickets.challenge_ttl_s + settings.tickets.ticket_ttl_s;
    let app = ticketed_on(settings, unlimited(), 1).await;
    let (id, began_ms) = (app.request_id("sale", 1).await, wall_ms());
    app.bought(&ticket(&app, 1).await, 1, purchase("sku", Some(&id))).await;
    let redis = stores.redis.as_ref().unwrap();
    let key = redis.text(&["EVAL", "return redis.call('KEYS', '*:ticket:*')[1]", "0"]);
    let ends_ms = wall_ms() + redis.text(&["PTTL", &key]).parse::<i64>().unwrap();
    // The time of a ticket is in whole seconds.
    assert!(ends_ms >= began_ms + i64::from(life_s) * 1000 - 1000, "{ends_ms}, {began_ms}");
}

/// The crowd at the start of a sale needs no call for its tickets.
#[tokio::test]
async fn in_redis_the_first_purchase_of_a_buyer_binds_no_ticket() {
    let (mut settings, stores) = fresh_settings(Tier::Gate);
    settings.tickets.work_bits = 8;
    let app = ticketed_on(settings, one_per_buyer(), 1).await;
    let redis = stores.redis.as_ref().unwrap();
    let num_bound = || redis.text(&["EVAL", "return #redis.call('KEYS', '*:ticket:*')", "0"]);
    let own = ticket(&app, 1).await;
    let again = bought_and_cancelled(&app, &own, None).await;
    assert_eq!(num_bound(), "0");
    bought_and_cancelled(&app, &own, Some(&again)).await;
    assert_eq!(num_bound(), "1");
}
