//! The cases of the suite, by file.

macro_rules! all_cases {
    ($with:ident! $($arguments:tt)*) => {
        $with! { $($arguments)*
            loading:
                a_bucket_that_was_not_loaded_sells_nothing
                units_are_dealt_out_evenly
                orders_and_failures_are_remembered
                units_of_a_quota_add_up
                queued_requests_of_a_load_keep_their_units
                queued_requests_of_a_load_count_for_a_quota
                a_load_without_units_is_sold_out
                another_process_finds_what_was_loaded
                buckets_in_another_phase_are_reported_and_set
                an_older_opening_is_ignored
                late_and_crossed_phase_changes_take_nothing_back;
            reserving:
                the_policies_hold
                a_repeat_reads_the_status_of_its_request
                a_repeat_reads_what_was_accepted
                a_repeat_is_answered_in_every_phase_and_of_every_opening
                a_sold_out_bucket_still_answers_repeats
                the_same_id_with_other_content_is_refused
                requests_of_one_batch_see_each_other
                a_batch_larger_than_one_call_is_decided_in_order
                a_batch_of_several_openings_is_decided_one_by_one
                reservations_of_more_than_is_left_take_nothing
                ids_of_nineteen_digits_stay_apart
                many_at_once_get_exactly_the_stock;
            settling:
                an_order_settles_its_request_once
                a_refusal_gives_back_once
                a_refusal_gives_back_only_what_the_ledger_still_has
                a_refusal_of_a_request_that_was_lost_is_entered
                the_first_answer_of_the_ledger_stays
                an_order_that_was_never_accepted_here_takes_its_units
                an_order_that_ended_takes_no_units
                orders_of_many_buckets_and_skus_settle_together
                a_buyer_who_was_let_go_may_buy_again
                unsettled_intents_come_back_word_for_word
                a_request_accepted_after_a_read_is_unsettled
                intents_are_unsettled_until_the_ledger_has_decided_them;
            ending:
                an_order_that_ends_gives_its_units_back_once
                an_order_that_ended_before_it_was_settled_gives_back_too
                an_ended_order_of_an_unknown_request_moves_nothing
                a_limit_that_does_not_return_stays_used
                ended_orders_are_loaded_without_their_units
                a_unit_of_an_ended_order_is_on_sale_everywhere
                a_change_that_contradicts_moves_nothing;
            changing:
                units_are_added_once_and_in_order
                a_sold_out_sku_sells_again
                withdrawn_units_are_not_sold
                units_that_leave_an_unsold_sku_are_left_nowhere;
            moving:
                a_loan_moves_its_units_once
                an_open_loan_is_the_answer_again
                a_lender_gives_half_or_what_is_wanted
                half_done_transfers_are_finished_once
                units_under_way_are_not_sold_out
                steps_in_any_order_keep_the_sum
                many_movers_at_once_keep_the_sum;
            reading:
                a_request_is_shown_to_its_owner_only
                many_statuses_come_in_the_order_of_the_requests
                a_request_that_a_bucket_may_hold_is_never_denied
                sold_out_is_known_and_forgotten_when_units_come_back
                a_unit_that_was_sold_again_is_not_denied
                the_facts_are_the_sum_of_the_buckets
                the_store_answers;
        }
    };
}

/// Of stores that are loaded again.
macro_rules! loaded_again {
    ($with:ident! $($arguments:tt)*) => {
        $with! { $($arguments)*
            loading:
                an_accepted_request_stays_queued_through_a_load
                loaders_that_end_early_lose_nothing
                a_later_load_replaces_the_one_before
                a_loader_with_a_smaller_token_changes_nothing
                a_phase_set_during_a_load_is_published_with_it;
            ending:
                a_change_during_a_load_is_not_lost;
            changing:
                a_load_contains_the_changes_of_its_rows
                a_load_frees_withdrawn_units;
            reading:
                a_load_that_lost_a_request_invalidates_the_cache;
        }
    };
}
