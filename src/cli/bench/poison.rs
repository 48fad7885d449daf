//! What messages that nobody can read cost the good ones.

use anyhow::Context;
use tokio::sync::oneshot;

use super::lab::Lab;
use super::pipeline::{GUESSED_BY, REQUESTS_MAX};
use super::raw::{self, STRANGE_EVERY};
use super::rig::for_seconds;
use super::sample::{Round, row};
use super::servers::Servers;
use super::stats::{Goal, grouped};
use super::table::Row;
use crate::broker::{Route, Topology};
use crate::load::Until;

const NAMESPACE: &str = "poison";

/// The same process with a stranger who writes into its order queue, and without.
pub(super) async fn poison(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Row>> {
    let servers = Servers::start(lab).await?;
    let product = servers.product(lab, NAMESPACE, &[]).await?;
    let (guess, _) = GUESSED_BY;
    let rate = servers.flow(lab, &product, Until::Requests(guess)).await?.rate();
    let wanted = Until::Requests(for_seconds(rate, lab.args.seconds, (guess, REQUESTS_MAX)));
    let topology = Topology::new(NAMESPACE, 1, 1, Vec::new());
    let to = topology.address(Route::Orders(0)).context("no order queue")?;
    let (mut rounds, mut line, mut num_strange) = (Vec::new(), String::new(), 0);
    for number in 1..=lab.args.rounds {
        let clean = servers.flow(lab, &product, wanted).await?;
        let (over, is_over) = oneshot::channel();
        let strange = raw::strange(servers.rabbit.url(), to.clone(), num_strange, is_over);
        let poisoned = async {
            let flow = servers.flow(lab, &product, wanted).await;
            drop(over);
            flow
        };
        let (poisoned, strange) = tokio::join!(poisoned, strange);
        let poisoned = poisoned?;
        num_strange += strange?;
        line = format!(
            "{}/s landed with a malformed message every {STRANGE_EVERY:?}, {}/s without",
            grouped(poisoned.rate()),
            grouped(clean.rate())
        );
        lab.say(&format!("round {number}: {line}"));
        rounds.push(Round { product: poisoned.sample(), yardstick: Some(clean.sample()) });
    }
    // Each of them must have ended where people find it.
    let letters = product.admin.await_letters(num_strange).await?;
    if letters != num_strange {
        lab.void.push(format!("{num_strange} malformed messages, {letters} dead letters"));
    }
    let goal = Goal::AtLeast { floor: 0.90, aim: 0.98 };
    let what = "orders landed per second among malformed messages, against none of these";
    let mut row = row("poison", what, goal, &rounds, "/s")?;
    row.remark = Some(format!("last round: {line}; all {num_strange} are dead letters"));
    Ok(vec![row])
}
