//! What all buyers of a run have in common.

use std::time::Duration;

use hyper::{Method, Uri};

use crate::cli::Args;
use crate::cpu::Process;
use crate::endpoint::Endpoint;

/// What is sent, and where to.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) endpoints: Vec<Endpoint>,
    /// At least one. The orders go to them in turn.
    pub(crate) items: Vec<PlannedItem>,
    pub(crate) quantity: u64,
    pub(crate) retries: u32,
    /// For one order, asking again included.
    pub(crate) timeout: Duration,
    /// The path that is asked for instead of ordering.
    pub(crate) probe: Option<String>,
    /// Whose CPU time is measured besides our own.
    pub(crate) processes: Vec<Process>,
    /// Made once: by endpoint, then by item.
    targets: Vec<Vec<Uri>>,
}

/// What is ordered.
#[derive(Debug)]
pub(crate) struct PlannedItem {
    /// `None` is the default item.
    pub(crate) name: Option<String>,
    /// What the ids of its orders begin with; made of visible ASCII characters.
    pub(crate) run: String,
}

impl Plan {
    pub(crate) fn new(args: &Args, endpoints: Vec<Endpoint>) -> Self {
        let run = uuid::Uuid::new_v4().simple();
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
            endpoints,
            items,
            quantity: args.quantity,
            retries: args.retries,
            timeout: args.timeout,
            probe: args.probe_path.clone(),
            processes: args.processes.clone(),
            targets,
        }
    }

    /// How long one attempt may take, connecting again included: half of what the order may take,
    /// so that an instance that hangs leaves time to ask another one.
    pub(crate) fn attempt_limit(&self) -> Duration {
        self.timeout / 2
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
