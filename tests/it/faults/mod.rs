//! Things that break: the process, its actors, its ledger file; and what is found afterwards.

mod drill;
mod full_disk;
mod kill;
mod ledger_crash;
mod ledger_file;
mod ledger_rows;
