//! Reads state and ledger after the run.

use std::time::Duration;

use hyper::StatusCode;

use crate::api::{Api, ApiError};
use crate::checker::{LedgerEntry, StockState, u64_from};
use crate::plan::{Plan, PlannedItem};

/// How often the end is read at most: an order whose buyer gave up may still be on its way.
const READINGS: u32 = 10;

/// The pause between two readings.
const READING_PAUSE: Duration = Duration::from_millis(300);

/// States and ledger after the run.
#[derive(Default)]
pub(crate) struct Reading {
    pub(crate) after: Vec<(String, StockState)>,
    pub(crate) gone: Vec<String>,
    pub(crate) ledger: Vec<LedgerEntry>,
    pub(crate) silent: Vec<String>,
}

/// Reads states and ledger until they agree, or the readings are used up.
pub(crate) async fn end(plan: &Plan, item: &PlannedItem, from: u64) -> Result<Reading, ApiError> {
    let (mut gone, mut silent) = (Vec::new(), Vec::new());
    let mut apis = Vec::new();
    let mut failure = None;
    for endpoint in &plan.endpoints {
        let mut api = item.api(endpoint);
        match api.stock().await {
            Ok(_) => apis.push((endpoint.url.to_string(), api)),
            Err(ApiError::Refused { status: StatusCode::NOT_FOUND, .. }) => {
                gone.push(endpoint.url.to_string());
            }
            Err(error) => {
                silent.push(format!("{} does not answer after the run", endpoint.url));
                failure = Some(error);
            }
        }
    }
    if apis.is_empty() {
        return match failure {
            Some(error) if gone.is_empty() => Err(error),
            _ => Ok(Reading { gone, silent, ..Reading::default() }),
        };
    }
    let mut reading = read(&mut apis, from).await?;
    for _ in 1..READINGS {
        let (states, ledger) = &reading;
        let recorded = u64_from(ledger.len());
        let agreed = states.iter().all(|(_, state)| *state == states[0].1);
        if agreed && states[0].1.orders.saturating_sub(from) == recorded {
            break;
        }
        tokio::time::sleep(READING_PAUSE).await;
        reading = read(&mut apis, from).await?;
    }
    let (after, ledger) = reading;
    Ok(Reading { after, gone, ledger, silent })
}

async fn read(
    apis: &mut [(String, Api<'_>)],
    from: u64,
) -> Result<(Vec<(String, StockState)>, Vec<LedgerEntry>), ApiError> {
    let ledger = apis[0].1.ledger(from).await?;
    let mut states = Vec::new();
    for (url, api) in apis {
        states.push((url.clone(), api.stock().await?));
    }
    Ok((states, ledger))
}
