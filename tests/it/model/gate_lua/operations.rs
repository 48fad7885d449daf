//! Random operations on two buckets.

use floodgate::domain::{OrderState, Phase, Refusal, RequestId};
use proptest::prelude::*;
use proptest::sample::Index;

pub const NUM_OPERATIONS: usize = 100;
const NUM_BUYERS: u64 = 10;
const REQUESTS_OF_A_BUYER: u64 = 4;

/// Ids from here on differ only in digits that a double cannot represent.
pub const FIRST_ID: u64 = 9_007_199_254_740_993_000;

/// One operation; picks select earlier accepted requests or loans.
#[derive(Debug, Clone)]
pub enum Operation {
    Reserve {
        bucket: usize,
        batch: Vec<(u64, u64, u32)>,
        shift: i64,
    },
    /// The ledger places a request, or changes its order.
    Change {
        bucket: usize,
        pick: Index,
        state: OrderState,
        counts_for_limit: bool,
    },
    /// The bucket learns orders, each in one of the versions that it had in the ledger.
    Settle {
        bucket: usize,
        picks: Vec<(Index, Index)>,
    },
    Adopt {
        bucket: usize,
        buyer: u64,
        quantity: u32,
        state: OrderState,
    },
    Release {
        bucket: usize,
        picks: Vec<Index>,
        reason: Refusal,
    },
    Lend {
        from: usize,
        want: u32,
    },
    Borrow {
        pick: Index,
        clears: bool,
    },
    SetPhase {
        bucket: usize,
        phase: Phase,
        shift: i64,
    },
    Withdraw {
        bucket: usize,
        units: u32,
    },
    EndWithdrawal {
        pick: Index,
        is_recorded: bool,
    },
    /// A change of the stock; `after` is its distance from the last one of the bucket.
    ChangeStock {
        bucket: usize,
        after: i32,
        units: u32,
    },
}

pub fn operations() -> impl Strategy<Value = Operation> {
    let bucket = || 0..2_usize;
    let picks = || prop::collection::vec(any::<Index>(), 0..5);
    // A buyer's own requests repeat often, with fixed units; the others reuse foreign ids.
    let own = (0..NUM_BUYERS, 0..REQUESTS_OF_A_BUYER).prop_map(|(buyer, no)| {
        let units = [1, 2, 3, 1][usize::try_from(no).unwrap()];
        (buyer, buyer * REQUESTS_OF_A_BUYER + no, units)
    });
    let foreign = (0..NUM_BUYERS, 0..NUM_BUYERS * REQUESTS_OF_A_BUYER, 1..4_u32);
    let purchase = prop_oneof![5 => own, 1 => foreign];
    let batch = prop::collection::vec(purchase, 0..9);
    // Mostly the epoch of the bucket.
    let shift = prop_oneof![8 => Just(0_i64), 1 => Just(-1_i64), 1 => Just(1_i64)];
    // A paused or closed bucket opens again at the next epoch only.
    let epoch_shift = prop_oneof![4 => Just(1_i64), 1 => Just(0_i64), 1 => Just(-1_i64)];
    let phase = prop_oneof![
        4 => Just(Phase::Open),
        1 => prop::sample::select(Phase::ALL.to_vec()),
    ];
    let states = || prop::sample::select(OrderState::ALL.to_vec());
    let reasons = prop::sample::select(vec![
        Refusal::SoldOut,
        Refusal::AlreadyPurchased { first: RequestId::new(FIRST_ID).unwrap() },
        Refusal::QuotaExceeded { owned: 3, limit: 4 },
        Refusal::RequestIdReused,
        Refusal::Ended,
        Refusal::CancelledByBuyer,
        Refusal::QueueTimeout,
    ]);
    prop_oneof![
        40 => (bucket(), batch, shift)
            .prop_map(|(bucket, batch, shift)| Operation::Reserve { bucket, batch, shift }),
        15 => (bucket(), any::<(Index, bool)>(), states()).prop_map(
            |(bucket, (pick, counts_for_limit), state)| {
                Operation::Change { bucket, pick, state, counts_for_limit }
            }
        ),
        15 => (bucket(), prop::collection::vec(any::<(Index, Index)>(), 0..7))
            .prop_map(|(bucket, picks)| Operation::Settle { bucket, picks }),
        3 => (bucket(), 0..NUM_BUYERS, 1..4_u32, states()).prop_map(
            |(bucket, buyer, quantity, state)| Operation::Adopt { bucket, buyer, quantity, state }
        ),
        12 => (bucket(), picks(), reasons)
            .prop_map(|(bucket, picks, reason)| Operation::Release { bucket, picks, reason }),
        12 => (bucket(), 0..6_u32).prop_map(|(from, want)| Operation::Lend { from, want }),
        12 => any::<(Index, bool)>()
            .prop_map(|(pick, clears)| Operation::Borrow { pick, clears }),
        6 => (bucket(), phase, epoch_shift)
            .prop_map(|(bucket, phase, shift)| Operation::SetPhase { bucket, phase, shift }),
        5 => (bucket(), 0..9_u32)
            .prop_map(|(bucket, units)| Operation::Withdraw { bucket, units }),
        5 => any::<(Index, bool)>()
            .prop_map(|(pick, is_recorded)| Operation::EndWithdrawal { pick, is_recorded }),
        6 => (bucket(), -1..3_i32, 0..9_u32)
            .prop_map(|(bucket, after, units)| Operation::ChangeStock { bucket, after, units }),
    ]
}
