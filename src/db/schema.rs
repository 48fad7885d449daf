//! The tables, as diesel sees them; the same for every database.
//!
//! Written by hand from `migrations/`, because each database prints its own spelling of the types.
//! A test migrates a fresh ledger and compares its columns with these.

diesel::table! {
    /// Timed offers.
    sales (sale_no) {
        sale_no -> Integer,
        sale_id -> Text,
        title -> Text,
        starts_at_ms -> BigInt,
        ends_at_ms -> BigInt,
        /// [`crate::domain::Phase`] by number.
        phase -> SmallInt,
        /// The latest opening; 0 when there was none.
        epoch -> BigInt,
        /// When it was; 0 when there was none.
        opened_at_ms -> BigInt,
        created_at_ms -> BigInt,
    }
}

diesel::table! {
    /// What is on offer in a sale, and what is left of it.
    skus (sku_no) {
        sku_no -> Integer,
        sale_no -> Integer,
        sku_id -> Text,
        title -> Text,
        price -> BigInt,
        initial_stock -> Integer,
        available -> Integer,
        /// [`crate::domain::Policy::kind`].
        policy_kind -> Text,
        /// Units per buyer, where the policy counts units.
        policy_limit -> Nullable<Integer>,
        max_quantity -> Integer,
        buckets -> SmallInt,
        payment_window_s -> Integer,
        /// 1: a buyer who lets an order time out is barred from the sale.
        bar_lapsed -> SmallInt,
    }
}

diesel::table! {
    /// Orders, live or ended.
    orders (sku_no, buyer_id, slot) {
        sku_no -> Integer,
        buyer_id -> BigInt,
        /// [`crate::domain::Policy::slot`].
        slot -> BigInt,
        request_id -> BigInt,
        /// The opening under which the units were taken.
        epoch -> BigInt,
        quantity -> Integer,
        /// Price times quantity.
        amount -> BigInt,
        /// [`crate::domain::OrderState`] by number.
        state -> SmallInt,
        placed_at_ms -> BigInt,
        pay_by_ms -> BigInt,
        /// The trace of the click, 16 bytes.
        trace_id -> Binary,
        /// When the message that brought it was published; null where no broker is on the way.
        published_at_ms -> Nullable<BigInt>,
        /// When it was written; null in rows of older versions.
        recorded_at_ms -> Nullable<BigInt>,
    }
}

diesel::table! {
    /// Units that a buyer has of a SKU with a quota.
    quotas (sku_no, buyer_id) {
        sku_no -> Integer,
        buyer_id -> BigInt,
        /// Units of the buyer's live orders.
        owned -> Integer,
        /// Units the buyer may have.
        quota -> Integer,
    }
}

diesel::table! {
    /// Accepted requests that became no order.
    failed_requests (request_id) {
        request_id -> BigInt,
        sku_no -> Integer,
        buyer_id -> BigInt,
        quantity -> Integer,
        /// [`crate::domain::Refusal::code`].
        reason -> Text,
        /// Of already-purchased: the request that came first.
        first_request_id -> Nullable<BigInt>,
        /// Of quota-exceeded: units the buyer had.
        owned -> Nullable<Integer>,
        /// Of quota-exceeded: units the buyer may have.
        quota -> Nullable<Integer>,
        /// When it was recorded.
        recorded_at_ms -> BigInt,
    }
}

diesel::table! {
    /// Counters that never return a number twice.
    tokens (name) {
        name -> Text,
        token -> BigInt,
    }
}

diesel::table! {
    /// Secrets of this installation.
    secrets (name) {
        name -> Text,
        /// 32 random bytes.
        value -> Binary,
    }
}

diesel::table! {
    /// Messages that were given up.
    dead_letters (letter_no) {
        letter_no -> BigInt,
        /// The same for every copy of a message; unique, 32 bytes.
        digest -> Binary,
        /// [`crate::domain::DeadLetterOrigin::name`].
        origin -> Text,
        reason -> Text,
        attempts -> Integer,
        message_id -> Text,
        /// What travelled beside the body, as a JSON object.
        headers -> Text,
        /// The body, or its beginning.
        body -> Binary,
        body_bytes -> BigInt,
        dead_at_ms -> BigInt,
        arrivals -> Integer,
        /// [`crate::domain::DeadLetterState`] by number.
        state -> SmallInt,
        changed_at_ms -> BigInt,
        note -> Nullable<Text>,
    }
}

diesel::table! {
    /// The accepted requests in dead letters.
    dead_requests (request_id, letter_no) {
        request_id -> BigInt,
        letter_no -> BigInt,
    }
}

diesel::allow_tables_to_appear_in_same_query!(sales, skus, orders, quotas, failed_requests);
diesel::allow_tables_to_appear_in_same_query!(dead_letters, dead_requests);
