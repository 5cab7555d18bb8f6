//! The sizes of the loads.

use serde::Serialize;

use super::contender::Contender;

/// The sizes of the loads, such that each one takes some seconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scale {
    pub(super) rounds: usize,
    pub(super) sweep_rounds: usize,
    /// Connections of the load, over all instances.
    pub(super) connections: usize,
    /// Requests of a load on those that need no turn of the lock for each one.
    pub(super) fast_requests: usize,
    /// Requests of a load on those that do.
    pub(super) slow_requests: usize,
    /// Requests of a load on the slowest, which takes a lease for each.
    pub(super) slowest_requests: usize,
    /// Requests before a measure begins, so that connections and caches are there.
    pub(super) warm_up_requests: usize,
    pub(super) burst_buyers: usize,
    pub(super) burst_stock: u64,
    /// Requests of two clients at two instances, on the product and on the others.
    pub(super) handover_requests: usize,
    pub(super) slow_handover_requests: usize,
    /// Commits whose cost is measured.
    pub(super) commits: usize,
    pub(super) sweep_requests: Vec<usize>,
    pub(super) sweep_connections: Vec<usize>,
    pub(super) sweep_instances: Vec<usize>,
    pub(super) sweep_items: Vec<usize>,
    /// Round trips to etcd and to Redis in milliseconds.
    pub(super) distances: Vec<(u64, u64)>,
    pub(super) distance_connections: Vec<usize>,
    pub(super) distance_instances: Vec<usize>,
    /// The rates of open loops, as shares of what the sale without a lock reaches.
    pub(super) distance_shares: Vec<f64>,
    pub(super) distance_rounds: usize,
    pub(super) distance_requests: usize,
    /// Requests of a load within a sweep; fewer where there are few connections.
    pub(super) requests_of_a_sweep: usize,
    /// How many of them at most for each connection.
    pub(super) requests_of_a_connection: usize,
    /// Orders that wait while the memory is measured.
    pub(super) waiting: usize,
}

impl Scale {
    pub(super) fn full() -> Self {
        Self {
            rounds: 5,
            sweep_rounds: 3,
            connections: 500,
            fast_requests: 100_000,
            slow_requests: 1000,
            slowest_requests: 500,
            warm_up_requests: 2000,
            burst_buyers: 500,
            burst_stock: 300,
            handover_requests: 4000,
            slow_handover_requests: 300,
            commits: 500,
            sweep_requests: vec![500, 5000, 50_000, 500_000],
            sweep_connections: vec![2, 10, 50, 500, 2000, 10_000],
            sweep_instances: vec![1, 2, 4, 8],
            sweep_items: vec![1, 4, 16, 64],
            distances: vec![(0, 0), (2, 0), (6, 0), (20, 0), (0, 2), (2, 2), (6, 2), (20, 2)],
            distance_connections: vec![500, 5000],
            distance_instances: vec![2, 8],
            distance_shares: vec![0.5, 0.9],
            distance_rounds: 1,
            distance_requests: 50_000,
            requests_of_a_sweep: 200_000,
            requests_of_a_connection: 2000,
            waiting: 10_000,
        }
    }

    pub(super) fn short() -> Self {
        Self {
            rounds: 1,
            sweep_rounds: 1,
            connections: 10,
            fast_requests: 60,
            slow_requests: 20,
            slowest_requests: 10,
            warm_up_requests: 4,
            burst_buyers: 10,
            burst_stock: 6,
            handover_requests: 20,
            slow_handover_requests: 10,
            commits: 10,
            sweep_requests: vec![10, 40],
            sweep_connections: vec![2, 8],
            sweep_instances: vec![1, 2],
            sweep_items: vec![1, 3],
            distances: vec![(0, 0), (4, 2)],
            distance_connections: vec![10],
            distance_instances: vec![2],
            distance_shares: vec![0.5],
            distance_rounds: 1,
            distance_requests: 60,
            requests_of_a_sweep: 40,
            requests_of_a_connection: 10,
            waiting: 50,
        }
    }

    pub(super) fn requests_of(&self, contender: Contender) -> usize {
        match contender {
            Contender::EtcdRpc => self.slowest_requests,
            slow if slow.locks_each_request() => self.slow_requests,
            _ => self.fast_requests,
        }
    }

    pub(super) fn handover_requests_of(&self, contender: Contender) -> usize {
        match contender {
            Contender::EtcdRecipe | Contender::EtcdRpc => self.slow_handover_requests,
            _ => self.handover_requests,
        }
    }

    pub(super) fn warm_up_requests_of(&self, contender: Contender) -> usize {
        if contender.locks_each_request() {
            self.warm_up_requests.min(20)
        } else {
            self.warm_up_requests
        }
    }
}
