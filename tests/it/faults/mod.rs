//! Things that break: the process, its actors, its ledger file; and what is found afterwards.

mod broker_blocked;
mod broker_kill;
mod broker_queues;
mod desk;
mod drill;
mod full_disk;
mod gate_kill;
mod gate_ledger;
mod gate_moves;
mod gate_replicas;
mod gate_retries;
mod gate_sold_out;
mod intake_crash;
mod kill;
mod ledger_crash;
mod ledger_file;
mod ledger_rows;
mod letters;
mod mysql_crash;
mod mysql_outage;
mod pipeline_broker;
mod pipeline_chaos;
mod pipeline_deleted;
mod pipeline_intake;
mod pipeline_letters;
mod pipeline_operators;
mod pipeline_panics;
mod pipeline_poison;
mod pipeline_relays;
mod redis_loading;
mod redis_network;
mod redis_refusals;
mod redis_restart;
mod redis_topologies;
mod relay_edges;
mod relay_pauses;

/// Waits long for a slow Redis: for tests in which none is silent.
const PATIENT: [(&str, &str); 3] = [
    ("http.answer_deadline_ms", "20000"),
    ("redis.connect_timeout_ms", "10000"),
    ("redis.command_timeout_ms", "10000"),
];
