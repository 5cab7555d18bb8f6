//! The plan of a run, shared by all buyers.

use std::time::Duration;

use hyper::{Method, Uri};

use crate::abandon::Abandon;
use crate::api::Api;
use crate::cli::Args;
use crate::cpu::Process;
use crate::endpoint::Endpoint;

/// The time limit of a call other than an order.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// What is sent, and where to.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The prefix of its order ids.
    pub(crate) run: String,
    pub(crate) endpoints: Vec<Endpoint>,
    /// At least one. The orders are for them in turn.
    pub(crate) items: Vec<PlannedItem>,
    pub(crate) quantity: u64,
    /// Whether there must be no other buyers.
    pub(crate) alone: bool,
    /// Whether each order must be accepted under a token.
    pub(crate) tokens: bool,
    pub(crate) retries: u32,
    /// For one order, retries included.
    pub(crate) timeout: Duration,
    /// For one attempt, connecting included; by default half of the order's limit, so that there is time to ask
    /// another instance.
    pub(crate) attempt_timeout: Duration,
    /// The most orders that are sent.
    pub(crate) requests: usize,
    /// For how long new orders are sent.
    pub(crate) duration: Option<Duration>,
    /// Orders a second, over all connections.
    pub(crate) rate: Option<f64>,
    /// Which clients go away.
    pub(crate) abandon: Abandon,
    /// The path to request instead of ordering.
    pub(crate) probe: Option<String>,
    /// The processes to measure besides our own.
    pub(crate) processes: Vec<Process>,
    /// Made once: by endpoint, then by item.
    targets: Vec<Vec<Uri>>,
}

/// What is ordered.
#[derive(Debug)]
pub(crate) struct PlannedItem {
    /// `None` is the default item.
    pub(crate) name: Option<String>,
    /// The prefix of its order ids, of visible ASCII characters.
    pub(crate) run: String,
}

impl PlannedItem {
    /// The calls to one instance about this item.
    pub(crate) fn api<'a>(&'a self, endpoint: &'a Endpoint) -> Api<'a> {
        Api::new(endpoint, self.name.as_deref(), CALL_LIMIT)
    }
}

impl Plan {
    pub(crate) fn new(args: &Args, endpoints: Vec<Endpoint>) -> Self {
        let run = uuid::Uuid::new_v4().simple();
        let seed = args.seed.unwrap_or_else(crate::any_seed);
        let items: Vec<_> = match args.items {
            None => vec![PlannedItem { name: args.item.clone(), run: run.to_string() }],
            Some(items) => (1..=items)
                .map(|n| PlannedItem { name: Some(format!("item-{n}")), run: format!("{run}-{n}") })
                .collect(),
        };
        let path = |item: &PlannedItem| {
            if let Some(path) = &args.probe_path {
                return path.clone();
            }
            let item = item.name.as_ref().map(|item| format!("item={item}&")).unwrap_or_default();
            format!("/stock/reduce?{item}quantity={}", args.quantity)
        };
        let targets = endpoints
            .iter()
            .map(|endpoint| items.iter().map(|item| endpoint.target(&path(item))).collect())
            .collect();
        Self {
            run: run.to_string(),
            endpoints,
            items,
            quantity: args.quantity,
            alone: args.alone,
            tokens: args.tokens,
            retries: args.retries,
            timeout: args.timeout,
            attempt_timeout: args.attempt_timeout.unwrap_or(args.timeout / 2),
            requests: args.requests(),
            duration: args.duration,
            rate: args.rate,
            abandon: Abandon { seed, share: args.abandon },
            probe: args.probe_path.clone(),
            processes: args.processes.clone(),
            targets,
        }
    }

    /// Which item the order `number` of the run is for, and its number among that item's orders.
    pub(crate) fn place(&self, number: usize) -> (usize, usize) {
        (number % self.items.len(), number / self.items.len())
    }

    pub(crate) fn target(&self, endpoint: usize, item: usize) -> Uri {
        self.targets[endpoint][item].clone()
    }

    pub(crate) fn method(&self) -> Method {
        if self.probe.is_some() { Method::GET } else { Method::POST }
    }
}
