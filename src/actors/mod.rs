//! The actors, in the order of the flow, and what keeps them alive.
//!
//! An actor here is a thin shell around a decision that is made elsewhere: it holds a mailbox,
//! calls out, and counts. Nothing that matters lives only in an actor: units and requests are in
//! the stock, orders in the ledger. So any of them may die at any step.

pub mod breaker;
pub mod child;
pub mod dead_letter_keeper;
pub mod drill;
pub mod gate_directory;
pub mod gate_handle;
pub mod order_consumer;
pub mod order_door;
pub mod order_intake;
pub mod orphan_rescuer;
pub mod outbox_relay;
pub mod permits;
mod pipeline;
pub mod placing_step;
pub mod reconciler;
pub mod sale_keeper;
mod served;
pub mod stock_gate;
pub mod stock_teller;
pub mod supervisor;
pub mod system;

pub use dead_letter_keeper::DeadLetterKeeper;
pub use gate_directory::GateDirectory;
pub use gate_handle::GateHandle;
pub use order_consumer::OrderConsumer;
pub use order_door::OrderDoor;
pub use order_intake::OrderIntake;
pub use orphan_rescuer::OrphanRescuer;
pub use outbox_relay::{OutboxRelay, RelayCrew, RelayDoor};
pub use reconciler::Reconciler;
pub use sale_keeper::SaleKeeper;
pub use stock_gate::StockGate;
pub use stock_teller::StockTeller;
pub use supervisor::Supervisor;
pub use system::ActorSystem;
