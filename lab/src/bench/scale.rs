//! The sizes of the loads.

use serde::Serialize;

use super::contender::Contender;
use super::options::{BenchOptions, Measure};

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
    slow_requests: usize,
    /// Requests before a measure begins, so that connections and caches are there.
    pub(super) warm_up_requests: usize,
    pub(super) burst_buyers: usize,
    pub(super) burst_stock: u64,
    /// Requests of two clients at two instances, on the product and on the others.
    handover_requests: usize,
    slow_handover_requests: usize,
    /// Commits whose cost is measured.
    pub(super) commits: usize,
    sweep_requests: Vec<usize>,
    sweep_connections: Vec<usize>,
    sweep_instances: Vec<usize>,
    sweep_items: Vec<usize>,
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
    pub(super) fn of(options: &BenchOptions) -> Self {
        /// The second one is for a smoke test.
        struct Sized(bool);
        impl Sized {
            fn of<T>(&self, full: T, short: T) -> T {
                if self.0 { short } else { full }
            }
        }
        let sized = Sized(options.short);
        let far = vec![(0, 0), (2, 0), (6, 0), (20, 0), (0, 2), (2, 2), (6, 2), (20, 2)];
        Self {
            rounds: options.rounds.unwrap_or(sized.of(5, 1)),
            sweep_rounds: sized.of(3, 1).min(options.rounds.unwrap_or(3)),
            connections: sized.of(500, 10),
            fast_requests: sized.of(100_000, 60),
            slow_requests: sized.of(500, 10),
            warm_up_requests: sized.of(2000, 4),
            burst_buyers: sized.of(500, 10),
            burst_stock: sized.of(300, 6),
            handover_requests: sized.of(4000, 20),
            slow_handover_requests: sized.of(300, 10),
            commits: sized.of(500, 10),
            sweep_requests: sized.of(vec![500, 5000, 50_000, 500_000], vec![10, 40]),
            sweep_connections: sized.of(vec![2, 10, 50, 500, 2000, 10_000], vec![2, 8]),
            sweep_instances: sized.of(vec![1, 2, 4, 8], vec![1, 2]),
            sweep_items: sized.of(vec![1, 4, 16, 64], vec![1, 3]),
            distances: sized.of(far, vec![(0, 0), (4, 2)]),
            distance_connections: sized.of(vec![500, 5000], vec![10]),
            distance_instances: sized.of(vec![2, 8], vec![2]),
            distance_shares: sized.of(vec![0.5, 0.9], vec![0.5]),
            distance_rounds: options.rounds.unwrap_or(1),
            distance_requests: sized.of(50_000, 60),
            requests_of_a_sweep: sized.of(200_000, 40),
            requests_of_a_connection: sized.of(2000, 10),
            waiting: sized.of(10_000, 50),
        }
    }

    pub(super) fn requests_of(&self, contender: Contender) -> usize {
        if contender.locks_each_request() { self.slow_requests } else { self.fast_requests }
    }

    pub(super) fn handover_requests_of(&self, contender: Contender) -> usize {
        if contender.locks_each_request() {
            self.slow_handover_requests
        } else {
            self.handover_requests
        }
    }

    /// The values of a number that changes.
    pub(super) fn values(&self, measure: Measure) -> &[usize] {
        match measure {
            Measure::Requests => &self.sweep_requests,
            Measure::Connections => &self.sweep_connections,
            Measure::Instances => &self.sweep_instances,
            Measure::Items => &self.sweep_items,
            _ => &[],
        }
    }
}
