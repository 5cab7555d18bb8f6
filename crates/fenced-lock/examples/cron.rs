//! A job that several machines start at the same time, and that one of them does.
//!
//! The lock alone does not ensure that. The job may be short and another machine's clock late: that machine then finds the lock
//! free, and the job done. So each holder looks for a record of this run, and makes one when the job is done. etcd makes the record
//! only while the lock is held.
//!
//! The job is done twice if its machine dies, or loses the lock, between the job and the record. So a job that must not be repeated
//! needs a store that does the job and checks the token in one step, as in `fenced_redis`.
//!
//! The run that is due is the one whose time is nearest, so clocks may differ by up to half a day. `NOW` replaces the clock, in
//! seconds since 1970.

use std::env::var;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use fenced_lock::{EtcdBackend, EtcdOptions, Guard, SessionKeeper, SessionOptions};

/// The job runs each day at midnight UTC.
const PERIOD_SECONDS: u64 = 24 * 60 * 60;

/// The key of the latest run that was done: its scheduled time, and the token under which it was done.
const DONE: &str = "done/nightly-report";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let mut client = Client::connect([&endpoint], None).await?;
    let etcd = EtcdBackend::new(EtcdOptions::new([endpoint]))?;
    let locks = SessionKeeper::start(Arc::new(etcd), SessionOptions::new(Duration::from_secs(10)));
    let now = match var("NOW") {
        Ok(now) => now.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    let due = (now + PERIOD_SECONDS / 2) / PERIOD_SECONDS * PERIOD_SECONDS;
    // it waits: when the machine that does the job dies, the next one does it
    locks.with("locks/nightly-report", async |guard| run(&mut client, &guard, due).await).await??;
    locks.close().await;
    Ok(())
}

async fn run(client: &mut Client, guard: &Guard, due: u64) -> Result<(), Box<dyn Error>> {
    if let Some(done) = client.get(DONE, None).await?.kvs().first() {
        let time = done.value_str()?.split(' ').next().unwrap_or_default();
        if time.parse::<u64>()? >= due {
            println!("another machine has written the report");
            return Ok(());
        }
    }
    // what the job writes elsewhere carries the token
    println!("the report is written");
    let is_held = Compare::create_revision(guard.key(), CompareOp::Equal, guard.token().revision());
    let record = TxnOp::put(DONE, format!("{due} {}", guard.token()), None);
    if !client.txn(Txn::new().when([is_held]).and_then([record])).await?.succeeded() {
        return Err(
            "the lock was lost before the run was recorded: the next machine does it again".into(),
        );
    }
    Ok(())
}
