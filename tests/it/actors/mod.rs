//! The actors, without HTTP.

mod accepted_terms;
mod actix_facts;
mod dead_letters;
mod gates;
mod gates_elsewhere;
pub mod gates_failing;
mod gates_unanswered;
mod lost_requests;
mod order_consumer;
mod order_consumer_evidence;
mod order_consumer_failing;
mod order_consumer_watermark;
mod orphan_rescuer;
mod reconciler;
mod reconciler_failing;
mod relay_dead_letters;
mod relays;
mod stalls;
mod status_watcher;
mod supervision;
