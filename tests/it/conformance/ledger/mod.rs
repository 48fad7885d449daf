//! The contract of every ledger, as one suite. A new backend implements [`Backend`] and adds a line
//! to `backends!`; no case depends on the backend.

use std::sync::Arc;

use async_trait::async_trait;
use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::db::Ledger;
use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::sql::WriteMode;
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::runtime::clock::ManualClock;
use tempfile::TempDir;

use crate::support::offers::run;
use crate::support::servers::mariadb as servers;

mod dead_letters;
mod feed;
mod follow_ups;
mod life;
mod money;
mod placing;
mod reading;
mod retakes;
mod retention;
mod sale_changes;
mod sales;
mod tokens;

/// The timestamp of every row, in epoch milliseconds.
pub const NOW_MS: i64 = 1_800_000_000_123;

/// A store that outlives the ledgers opened on it. Each case gets a new one.
#[async_trait(?Send)]
pub trait Backend {
    /// Opens a ledger on the store as its only writer, with this clock.
    async fn open_with(&self, clock: Arc<ManualClock>) -> Arc<dyn Ledger>;

    /// Opens a ledger on the store as its only writer. Its clock is fixed at [`NOW_MS`].
    async fn open(&self) -> Arc<dyn Ledger> {
        self.open_with(Arc::new(ManualClock::new(NOW_MS))).await
    }

    /// Fences the open ledger, as another process does that becomes the writer.
    async fn take_over(&self);
}

struct Sqlite {
    directory: TempDir,
}

impl Sqlite {
    fn fresh() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }
}

#[async_trait(?Send)]
impl Backend for Sqlite {
    async fn open_with(&self, clock: Arc<ManualClock>) -> Arc<dyn Ledger> {
        let options = OpenOptions::new(self.directory.path().join("ledger.db"));
        let options = OpenOptions { clock, ..options };
        Arc::new(SqliteLedger::open(&options).unwrap())
    }

    async fn take_over(&self) {
        let file = self.directory.path().join("ledger.db");
        let mut conn = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        conn.batch_execute(
            "PRAGMA busy_timeout = 5000; \
             UPDATE tokens SET token = token + 1 WHERE name = 'writer'",
        )
        .unwrap();
    }
}

struct MariaDb(servers::MariaDb);

impl MariaDb {
    fn fresh() -> Self {
        Self(servers::MariaDb::start())
    }

    fn options(&self, clock: Arc<ManualClock>) -> MysqlOptions {
        MysqlOptions { writing: WriteMode::Exclusive, clock, ..self.0.options() }
    }
}

#[async_trait(?Send)]
impl Backend for MariaDb {
    async fn open_with(&self, clock: Arc<ManualClock>) -> Arc<dyn Ledger> {
        Arc::new(MysqlLedger::open(&self.options(clock)).unwrap())
    }

    async fn take_over(&self) {
        let clock = Arc::new(ManualClock::new(NOW_MS));
        MysqlLedger::open(&self.options(clock)).unwrap().close().await;
    }
}

macro_rules! cases {
    ($fresh:expr; $($module:ident: $($case:ident)+;)+) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                super::super::run(async {
                    super::super::$module::$case(&$fresh).await;
                });
            })+
        })+
    };
}

macro_rules! backends {
    ($($backend:ident: $fresh:expr;)+) => {
        $(mod $backend {
            cases! { $fresh;
                sales:
                    a_sale_reads_back_as_it_was_described
                    a_name_is_taken_once
                    a_draft_that_does_not_fit_is_not_stored
                    an_opening_takes_the_next_epoch
                    an_opening_follows_the_one_that_was_seen
                    a_sale_is_paused_above_a_later_epoch
                    a_move_that_is_not_allowed_changes_nothing
                    sales_survive_a_restart;
                sale_changes:
                    other_terms_are_the_next_epoch
                    title_and_later_end_change_without_an_epoch
                    an_earlier_end_is_the_next_epoch
                    a_change_is_recorded_with_its_operator_and_its_values
                    a_changed_limit_is_that_of_the_intent
                    a_stock_changes_once_per_id
                    the_stock_of_a_closed_sale_does_not_change
                    units_given_up_before_a_load_stay;
                placing:
                    a_clean_batch_becomes_orders
                    ids_of_nineteen_digits_travel_unchanged
                    nothing_to_place_is_no_conflict
                    one_bad_intent_keeps_the_whole_batch_out
                    a_batch_of_several_skus_takes_from_each
                    a_quota_counts_over_batches_and_within_one
                    the_last_unit_is_sold_and_no_more
                    a_failed_request_never_becomes_an_order
                    many_writers_sell_exactly_the_stock
                    a_large_batch_is_examined_whole
                    an_examination_has_the_reason_of_each_refusal
                    orders_survive_a_restart;
                reading:
                    scans_leave_a_reader_for_other_reads
                    a_scan_is_sorted_and_may_end_early
                    a_scan_sees_one_instant
                    an_order_is_found_by_its_request_and_by_its_key
                    the_timeline_of_an_order_is_stored
                    a_buyers_orders_come_newest_first_in_pages
                    every_reason_reads_back
                    the_first_record_of_a_failure_stays
                    an_order_is_never_recorded_as_a_failure
                    the_evidence_begins_with_the_facts
                    a_healthy_ledger_has_no_anomalies
                    the_counts_are_those_of_one_sku;
                life:
                    a_deadline_begins_at_the_commit
                    an_unpaid_order_times_out_once
                    an_order_without_a_deadline_stays
                    a_paying_order_ends_after_the_limit_of_extensions
                    an_unpaid_order_is_cancelled_once
                    a_paying_order_is_not_cancelled_before_its_attempt_closed
                    a_limit_that_returned_lets_the_buyer_order_again
                    a_limit_that_does_not_return_keeps_counting
                    a_limit_returns_only_so_often
                    a_lapsed_buyer_is_barred_from_the_whole_sale
                    many_orders_end_at_once
                    of_payment_and_time_out_one_wins
                    of_payment_and_cancellation_one_wins;
                money:
                    an_order_is_paid_once
                    an_attempt_is_opened_once
                    a_closed_attempt_lets_the_buyer_try_again
                    money_that_is_not_applied_is_due_back
                    a_refund_is_tried_until_it_is_decided
                    a_refund_ends_a_paid_order
                    a_report_of_no_attempt_is_stored;
                follow_ups:
                    a_second_charge_of_one_attempt_is_paid_back
                    a_paying_order_keeps_its_attempt_beside_other_money
                    a_report_before_its_payment_is_matched_later
                    a_resolved_report_waits_no_longer_and_is_not_matched
                    payments_in_doubt_are_those_that_no_deadline_ends
                    an_order_without_a_deadline_leaves_its_payment_in_doubt
                    a_refund_that_was_given_up_is_tried_again_on_demand;
                retakes:
                    late_money_pays_the_order_that_it_bought_again
                    charges_of_an_order_are_recorded_after_its_first_payment_has_moved
                    late_money_that_buys_nothing_is_due_back
                    the_bar_of_a_lapse_does_not_apply_to_its_late_money
                    late_money_buys_again_for_each_order_that_lapsed
                    of_two_reports_during_a_move_none_is_lost;
                feed:
                    events_come_in_order_each_with_its_order
                    several_sequencers_leave_no_gap
                    changes_are_read_without_placements
                    a_recorded_failure_is_one_event
                    a_cursor_moves_forward;
                retention:
                    an_archive_is_complete_and_the_same_at_every_page_size
                    the_sums_of_an_archive_show_a_payment
                    the_sums_of_an_archive_may_exceed_64_bits
                    open_ends_of_a_sale_are_named
                    a_batch_of_two_sales_is_unread_in_both
                    orders_of_a_sealed_sale_do_not_change
                    a_purge_deletes_every_row_and_keeps_the_name
                    nothing_is_placed_or_refused_between_archive_and_purge
                    a_purge_leaves_the_events_of_other_sales;
                dead_letters:
                    a_dead_letter_reads_back_as_it_was_stored
                    copies_of_a_message_are_one_dead_letter
                    a_replayed_message_that_fails_again_is_open_again
                    a_copy_of_the_recorded_arrival_leaves_a_replayed_dead_letter_replayed
                    a_discarded_dead_letter_stays_discarded_and_ends_nothing
                    a_dead_letter_that_changed_meanwhile_keeps_its_state
                    dead_letters_come_newest_first_in_pages
                    dead_letters_are_found_and_counted_by_every_condition
                    a_request_is_dead_lettered_while_its_dead_letter_is_open_or_parked
                    a_dead_letter_may_hold_a_mebibyte_and_a_thousand_requests
                    two_collectors_store_each_dead_letter_once
                    dead_letters_survive_a_restart;
                tokens:
                    a_token_is_never_given_twice
                    a_secret_is_made_once
                    a_writer_that_was_replaced_writes_nothing
                    a_closed_ledger_refuses_calls;
            }
        })+
    };
}

backends! {
    sqlite: crate::conformance::ledger::Sqlite::fresh();
    mariadb: crate::conformance::ledger::MariaDb::fresh();
}
