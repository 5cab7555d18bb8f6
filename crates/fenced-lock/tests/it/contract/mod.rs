//! What every backend must do: each test is generic over the lab, and instantiated for each in
//! `main`.

pub(super) mod basics;
pub(super) mod cancellation;
pub(super) mod loss;
pub(super) mod polling;
pub(super) mod queueing;
pub(super) mod reentry;
pub(super) mod resilience;
