//! Things that break: the process, its actors, its ledger file; and what is found afterwards.

mod desk;
mod drill;
mod full_disk;
mod gate_kill;
mod gate_ledger;
mod gate_moves;
mod gate_replicas;
mod gate_retries;
mod gate_sold_out;
mod kill;
mod ledger_crash;
mod ledger_file;
mod ledger_rows;
mod mysql_crash;
mod mysql_outage;
mod redis_loading;
mod redis_network;
mod redis_refusals;
mod redis_restart;
mod redis_topologies;
