//! The store of the simulator: one Redis without a network, without tasks and without a clock of its own.
//!
//! It has only the commands that the service sends and that its scripts call. The scripts themselves run as they ship. A
//! differential test compares its answers and its data with those of the real Redis. The simulator decides what goes wrong: it
//! takes each request from the [`StoreEnd`], runs it or drops it, and delivers the answer or loses it. [`Store`] has the fields and
//! methods that make the store refuse or forget.

#![allow(missing_docs, reason = "for the simulator alone")]
#![allow(clippy::missing_panics_doc, reason = "for the simulator alone")]

mod chance;
mod data;
mod lua;
mod wire;

use std::collections::BTreeSet;
use std::rc::Rc;

pub use chance::Chance;
pub use data::{Data, Reply, Text, Value};
pub use lua::Engine;
pub use wire::{StoreEnd, connection};

/// Why a server refuses requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It reads its data after a start.
    Loading,
    /// It is a replica: it still answers reads.
    ReadOnly,
    /// Its disk is full: it still answers reads.
    DiskFull,
    /// Its memory is full: it still answers reads, and runs scripts that may run without memory.
    OutOfMemory,
}

impl Refusal {
    fn reply(self) -> Reply {
        Reply::error(match self {
            Self::Loading => "LOADING Redis is loading the dataset in memory",
            Self::ReadOnly => "READONLY You can't write against a read only replica.",
            Self::DiskFull => "MISCONF Errors writing to the AOF file: No space left on device",
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
        })
    }
}

/// A server of the store.
pub struct Store {
    engine: Rc<Engine>,
    /// All its keys. A clone of the data is a snapshot.
    pub data: Data,
    /// The digests of the scripts that it has cached.
    scripts: BTreeSet<Text>,
    /// Why it refuses, if it does.
    pub refusal: Option<Refusal>,
    /// How many replicas confirm each write.
    pub replicas: i64,
}

impl Store {
    pub fn new(engine: &Rc<Engine>) -> Self {
        Self {
            engine: Rc::clone(engine),
            data: Data::default(),
            scripts: BTreeSet::new(),
            refusal: None,
            replicas: 0,
        }
    }

    /// Starts again with this data, which the disk had at the last stop, or which a replica has that takes over. The store
    /// forgets its scripts. The caller cuts the connections.
    pub fn restart(&mut self, data: Data) {
        self.data = data;
        self.refusal = None;
        self.flush_scripts();
    }

    /// As `SCRIPT FLUSH`.
    pub fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Runs one request, all of it at this time (microseconds since 1970), and answers.
    pub fn call(&mut self, now: u64, request: &[Text]) -> Reply {
        let Some((name, args)) = request.split_first() else { return Reply::error("ERR empty") };
        let name = name.to_ascii_uppercase();
        match &name[..] {
            b"HELLO" if args.first().is_some_and(|version| version == b"3") => hello(),
            b"HELLO" => Reply::error("NOPROTO unsupported protocol version"),
            // the name of the client's library
            b"CLIENT" => Reply::OK(),
            b"INFO" => Reply::Text(self.info().into_bytes()),
            b"PING" if self.refusal == Some(Refusal::DiskFull) => Refusal::DiskFull.reply(),
            _ if self.refusal == Some(Refusal::Loading) => Refusal::Loading.reply(),
            b"PING" => Reply::Status(b"PONG".to_vec()),
            b"CONFIG" => Reply::Map(vec![("appendfsync", Reply::Text(b"always".to_vec()))]),
            b"WAIT" => Reply::Int(self.replicas),
            b"EVAL" | b"EVALSHA" => self.script(&name, args, now).unwrap_or_else(|refused| refused),
            _ => match data::writes(&name).and_then(|needs_none| self.refuses(needs_none)) {
                Some(refusal) => refusal.reply(),
                None => self.data.run(&name, args, now),
            },
        }
    }

    /// Why it refuses a write, if it does.
    fn refuses(&self, needs_no_memory: bool) -> Option<Refusal> {
        self.refusal.filter(|why| !(needs_no_memory && *why == Refusal::OutOfMemory))
    }

    fn script(&mut self, name: &[u8], args: &[Text], now: u64) -> Result<Reply, Reply> {
        let [script, count, args @ ..] = args else {
            return Err(Reply::error("ERR wrong number of arguments"));
        };
        let count = str::from_utf8(count).ok().and_then(|count| count.parse().ok());
        let (keys, args) =
            count.and_then(|count: usize| args.split_at_checked(count)).ok_or_else(|| {
                Reply::error("ERR Number of keys can't be greater than number of args")
            })?;
        let digest = if name == b"EVAL" {
            let digest = self.engine.digest(script);
            self.engine.load(&digest, script)?;
            digest
        } else if self.scripts.contains(script) {
            script.clone()
        } else {
            return Err(Reply::error("NOSCRIPT No matching script. Please use EVAL."));
        };
        if let Some(refusal) = self.refuses(self.engine.runs_without_memory(&digest)) {
            return Err(refusal.reply());
        }
        let reply = self.engine.run(&digest, (keys, args), &mut self.data, now);
        self.scripts.insert(digest);
        Ok(reply)
    }

    fn info(&self) -> String {
        let role = if self.refusal == Some(Refusal::ReadOnly) { "slave" } else { "master" };
        format!(
            "redis_version:7.0.15\r\nredis_mode:standalone\r\nrole:{role}\r\nconnected_slaves:{}\r\naof_enabled:1\r\n\
             maxmemory:0\r\nmaxmemory_policy:noeviction\r\n",
            self.replicas
        )
    }
}

fn hello() -> Reply {
    let text = |text: &str| Reply::Text(text.into());
    Reply::Map(vec![
        ("server", text("redis")),
        ("version", text("7.0.15")),
        ("proto", Reply::Int(3)),
        ("mode", text("standalone")),
        ("role", text("master")),
    ])
}
