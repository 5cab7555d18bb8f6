//! The store of the simulator against the real Redis.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{ClusterId, Token};
use flash_sale::inventory::{
    Action, Attempt, ChangeCall, Inventory, InventoryOptions, Item, LedgerPosition, NewSale, Order,
    OrderId, Quantity, Replaces, SaleId, Streams, Terms, Timestamp, User,
};
use parking_lot::Mutex;
use redis::{Client, Cmd, Connection, ConnectionLike as _, Value};
use simulator::{
    Chance, Data, Engine, Refusal, Reply, Store, StoreEnd, Text, Value as Content, connection,
};
use testkit::{PrivateRedis, RedisOptions};
use tokio::time::sleep;

const SEEDS: u64 = 40;
const STEPS: u32 = 60;

/// All keys of the real Redis, each with its type and its content; but not `clock`, which has the time that the scripts see.
const DUMP: &str = "
local of = {string = {'GET'}, list = {'LRANGE', 0, -1}, hash = {'HGETALL'}, zset = {'ZRANGE', 0, -1, 'WITHSCORES'}}
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key ~= 'clock' then
    local type = redis.call('TYPE', key).ok
    local read = of[type]
    local content = redis.call(read[1], key, unpack(read, 2))
    all[#all + 1] = {key, type, type == 'string' and {content} or content}
  end
end
return all";

/// A key, its type and its content.
type Dumped = (Text, Text, Vec<Text>);

/// The simulated store and the real one, which get the same requests.
struct Both {
    store: Store,
    /// The connection blocks, so that no simulated time passes meanwhile.
    real: Connection,
    opened: Arc<Mutex<Vec<StoreEnd>>>,
    ends: Vec<StoreEnd>,
    now: u64,
    /// The patched scripts, by the source that ships and by its digest.
    patched: BTreeMap<Text, Rc<Patched>>,
    /// How often each answer came.
    seen: BTreeMap<String, u32>,
}

/// A script for the real Redis: it reads the time from a key.
struct Patched {
    source: String,
    digest: String,
    /// The digest of the script that ships.
    shipped: String,
}

impl Patched {
    fn new(shipped: &[u8]) -> Self {
        let shipped = str::from_utf8(shipped).unwrap();
        // the same lines, so that errors name the same ones
        let source = shipped.replace("redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, 1)");
        assert_ne!(source, shipped);
        let [digest, shipped] =
            [&source, shipped].map(|source| redis::Script::new(source).get_hash().to_owned());
        Self { source, digest, shipped }
    }
}

fn command<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>) -> Cmd {
    let mut command = Cmd::new();
    words.into_iter().for_each(|word| _ = command.arg(word.as_ref()));
    command
}

impl Both {
    /// Serves the requests of this call until it is answered.
    async fn serve<T>(&mut self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        loop {
            tokio::select! {
                biased;
                done = &mut call => return done,
                () = tokio::task::yield_now() => {}
            }
            self.ends.append(&mut self.opened.lock());
            let mut is_idle = true;
            for end in 0..self.ends.len() {
                while let Some(request) = self.ends[end].next_request() {
                    let reply = self.call(&request);
                    self.ends[end].answer(&reply);
                    is_idle = false;
                }
            }
            if is_idle {
                // lets a pause between two attempts to connect pass
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Sends a request to both stores, and returns their answer, which must be the same.
    fn call(&mut self, request: &[Text]) -> Reply {
        let reply = self.store.call(self.now, request);
        if matches!(&request[0][..], b"HELLO" | b"CLIENT" | b"INFO") {
            return reply;
        }
        let mut words = request.to_vec();
        if request[0] == b"EVAL" && !self.patched.contains_key(&request[1]) {
            let patched = Rc::new(Patched::new(&request[1]));
            self.patched.insert(request[1].clone(), Rc::clone(&patched));
            self.patched.insert(patched.shipped.clone().into(), patched);
        }
        let patched = words.get(1).and_then(|script| self.patched.get(script)).cloned();
        if let Some(patched) = &patched {
            let is_source = request[0] == b"EVAL";
            words[1] = if is_source { &patched.source } else { &patched.digest }.clone().into();
        }
        let [refuse, relent] = match self.store.refusal {
            None => ["PING", "PING"],
            Some(Refusal::OutOfMemory) => ["CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"],
            Some(Refusal::ReadOnly) => ["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"],
            Some(other) => unreachable!("{other:?}"),
        };
        let mut pipe = redis::pipe();
        let time = format!("RPUSH clock {} {}", self.now / 1_000_000, self.now % 1_000_000);
        for line in ["DEL clock", &time, refuse] {
            pipe.add_command(command(line.split(' ')));
        }
        pipe.add_command(command(&words)).add_command(command(relent.split(' ')));
        let pipe = pipe.add_command(command(["EVAL", DUMP, "0"])).get_packed_pipeline();
        let mut answers = self.real.req_packed_commands(&pipe, 0, 6).unwrap();
        let dump = redis::from_redis_value(answers.swap_remove(5)).unwrap();
        let answer = answers.swap_remove(3);

        let mut encoded = Vec::new();
        reply.encode(&mut encoded);
        let ours = shown(redis::parse_redis_value(&encoded).unwrap(), request);
        let mut theirs = shown(answer, request);
        if let Some(patched) = &patched {
            theirs = theirs.replace(&patched.digest, &patched.shipped);
        }
        assert_eq!(ours, theirs, "{}", line(request));
        self.note(request, &reply);
        self.compare(dump, request);
        reply
    }

    fn note(&mut self, request: &[Text], reply: &Reply) {
        let mut note = |answer: &[u8]| {
            let word = answer.split(|b| matches!(b, b' ' | b'\t')).next().unwrap_or_default();
            *self.seen.entry(String::from_utf8_lossy(word).into()).or_default() += 1;
        };
        match reply {
            Reply::Error(error) => note(error),
            Reply::List(done) if operation(request) == Some(b"reduce") => {
                let Some(Reply::List(answers)) = done.get(3) else { return };
                for answer in answers {
                    let Reply::Text(text) = answer else { panic!("{answer:?}") };
                    let is_held = text.windows(2).any(|pair| pair == b"\tw");
                    note(if is_held && text.starts_with(b"sold-out") { b"all-held" } else { text });
                }
            }
            _ => {}
        }
    }

    /// Checks that the two stores have the same data.
    fn compare(&self, mut theirs: Vec<Dumped>, request: &[Text]) {
        for (_, kind, content) in &mut theirs {
            if matches!(&kind[..], b"hash" | b"zset") {
                let mut pairs: Vec<_> = content.chunks(2).map(<[Text]>::to_vec).collect();
                pairs.sort();
                *content = pairs.concat();
            }
        }
        theirs.sort();
        let ours: Vec<Dumped> = dumped(&self.store.data).collect();
        assert!(ours == theirs, "{ours:#?}\n{theirs:#?}\n{}", line(request));
    }

    /// Gives both this data.
    fn restart(&mut self, data: Data) {
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHDB").cmd("SCRIPT").arg("FLUSH");
        for (key, kind, content) in dumped(&data) {
            let (name, content) = match &kind[..] {
                b"string" => ("SET", content),
                b"list" => ("RPUSH", content),
                b"hash" => ("HSET", content),
                // the score comes before its member
                _ => ("ZADD", content.into_iter().rev().collect()),
            };
            pipe.cmd(name).arg(key).arg(content);
        }
        pipe.query::<()>(&mut self.real).unwrap();
        self.store.restart(data);
    }
}

/// A request as a person reads it, without the source of a script.
fn line(request: &[Text]) -> String {
    request
        .iter()
        .map(|word| String::from_utf8_lossy(&word[..word.len().min(200)]).into_owned() + " ")
        .collect()
}

/// The operation that a call of a script asks for.
fn operation(request: &[Text]) -> Option<&[u8]> {
    request.get(20).map(Vec::as_slice)
}

fn shown(mut answer: Value, request: &[Text]) -> String {
    // a hash has no order
    if operation(request) == Some(b"sales")
        && let Value::Array(parts) = &mut answer
        && let Some(Value::Array(parts)) = parts.get_mut(1)
        && let Some(Value::Array(sales)) = parts.get_mut(1)
    {
        sales.sort_by_key(|sale| format!("{sale:?}"));
    }
    format!("{answer:?}")
}

fn dumped(data: &Data) -> impl Iterator<Item = Dumped> {
    data.iter().map(|(key, content)| {
        let (kind, content) = match content {
            Content::String(text) => ("string", vec![text.clone()]),
            Content::List(list) => ("list", list.clone()),
            Content::Hash(hash) => (
                "hash",
                hash.iter().flat_map(|(field, text)| [field.clone(), text.clone()]).collect(),
            ),
            Content::SortedSet(set) => {
                let pairs = set.iter().map(|(member, n)| [member.clone(), n.to_string().into()]);
                ("zset", pairs.flatten().collect())
            }
        };
        (key.to_vec(), kind.into(), content)
    })
}

/// The random choices of calls and their arguments.
trait Draws {
    fn id(&mut self) -> SaleId;
    fn token(&mut self, latest: &mut i64) -> Option<Token>;
    fn order(&mut self) -> Order;
    fn sale(&mut self, now: u64) -> NewSale;
    fn change(&mut self) -> ChangeCall;
    fn damage(&mut self) -> Vec<Text>;
}

impl Draws for Chance {
    fn id(&mut self) -> SaleId {
        self.pick(&["a", "b", "c", "d.1"]).parse().unwrap()
    }

    /// The latest token or the next one, seldom an older one, another cluster's or none.
    fn token(&mut self, latest: &mut i64) -> Option<Token> {
        let cluster = ClusterId(if self.one_in(40) { 7 } else { 0xfeed });
        *latest += i64::from(self.one_in(10));
        let revision = *latest - i64::from(self.one_in(15));
        (!self.one_in(6)).then(|| Token::new(cluster, revision))
    }

    fn order(&mut self) -> Order {
        let reserve = Action::Reserve;
        let action = [reserve, reserve, reserve, Action::Confirm, Action::Cancel, Action::Return];
        let of_id =
            [("1", ""), ("2", "ann"), ("3", "ann"), ("4", "bob"), ("5", "bob"), ("6\"/\\", "ü")];
        let (id, user) = *self.pick(&of_id);
        Order {
            id: OrderId::new(id).unwrap(),
            item: Item::DEFAULT,
            quantity: Quantity::new(*self.pick(&[1, 1, 2, 3])).unwrap(),
            user: User::new(if self.one_in(8) { "ann" } else { user }).unwrap(),
            action: if self.one_in(20) { Action::Expire } else { *self.pick(&action) },
        }
    }

    fn sale(&mut self, now: u64) -> NewSale {
        let limit = |chance: &mut Self, most, odds| {
            (!chance.one_in(odds)).then(|| u32::try_from(chance.between(1, most)).unwrap())
        };
        let near = |chance: &mut Self, ahead: u64| {
            chance.one_in(5).then(|| Timestamp::new(now - 1_000_000 + chance.below(ahead)).unwrap())
        };
        NewSale {
            units: self.below(12),
            id: self.id(),
            is_named: self.one_in(2),
            terms: Terms {
                per_order: limit(self, 3, 2),
                per_user: limit(self, 4, 2),
                hold_seconds: limit(self, 3, 4),
                starts_at: near(self, 3_000_000),
                ends_at: near(self, 4_000_000),
            },
            replaces: match self.below(5) {
                0 => Replaces::WithoutOrders,
                1 => Replaces::AnyOf(vec![self.id().into(), self.id().into()]),
                2 => Replaces::Any,
                _ => Replaces::Unconditionally,
            },
        }
    }

    fn change(&mut self) -> ChangeCall {
        let change = *self.pick(&[
            r#"{"add":2}"#,
            r#"{"add":-1,"note":"n"}"#,
            r#"{"add":-9}"#,
            r#"{"paused":true}"#,
            r#"{"paused":false,"starts_at":"2027-01-15T08:00:01Z"}"#,
            r#"{"ends_at":"now"}"#,
            r#"{"ends_at":"2199-01-01T00:00:00Z","per_order":3}"#,
            r#"{"per_user":1,"hold_seconds":2}"#,
        ]);
        let ids: &[_] = if self.one_in(6) { &["a:0", "b:1"] } else { &["a", "b", "c", "d.1"] };
        let key = *self.pick(&["1", "2", "3"]);
        ChangeCall {
            key: OrderId::new(key).unwrap(),
            change: serde_json::from_str(change).unwrap(),
            sales: ids.iter().map(|id| id.parse().unwrap()).collect(),
        }
    }

    /// A command that damages a key, or that an operator may give.
    fn damage(&mut self) -> Vec<Text> {
        let key = *self.pick(&[
            "stock", "lucky", "initial", "orders", "ledger", "fence", "sale", "doubt", "terms",
            "changes", "holds", "buyers", "sales",
        ]);
        let words: &[&str] = match self.below(14) {
            0 => &["DEL", key],
            1 | 11 | 12 => &["HSET", "orders", "1", "x"],
            2 => &["SET", key, "5"],
            3 => &["SET", key, "-1.5 nonsense"],
            4 => &[
                "SET",
                key,
                r#"{"id":"a","named":true,"initial":3,"other":[1,{"x":null}],"per_user":2}"#,
            ],
            5 => &["RPUSH", key, "1", "x"],
            6 => &["HSET", key, "1", "2\t1\t1\t1\tfeed 1\ti\t5\t\t", "ann", "x"],
            7 => &["HDEL", key, "1", "2"],
            8 => &["ZADD", key, "inf", "1", "4", "ann\t2"],
            9 => &["SET", "doubt", "1\r\nx\r\n"],
            10 => &["RENAME", key, "buyers"],
            _ => &["HSET", "buyers", "ann", "x"],
        };
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }
}

/// Goal: the simulated store answers as Redis does, and has the same data, whatever the scripts are asked.
///
/// Method: two inventories, with watermarks of their own, send random calls over simulated connections; each request goes to
/// both stores; each answer and each key is compared. The script in the real Redis reads the time from a key.
#[tokio::test]
async fn the_simulated_store_answers_as_redis_does() {
    let redis =
        PrivateRedis::start(RedisOptions { volatile: true, ..Default::default() }).await.unwrap();
    let real = Client::open(redis.url()).unwrap().get_connection().unwrap();
    tokio::time::pause();
    let mut both = Both {
        store: Store::new(&Rc::new(Engine::default())),
        real,
        opened: Arc::default(),
        ends: Vec::new(),
        now: 0,
        patched: BTreeMap::new(),
        seen: BTreeMap::new(),
    };
    for seed in 0..SEEDS {
        both.restart(Data::default());
        both.ends.clear();
        both.now = 1_800_000_000_000_000 + seed;
        let inventories = [(); 2].map(|()| {
            let opened = Arc::clone(&both.opened);
            let streams: Streams = Arc::new(move || {
                let (client, end) = connection();
                opened.lock().push(end);
                Ok(Box::pin(client))
            });
            let patient = Duration::from_mins(1);
            let options = InventoryOptions { connect_timeout: patient, response_timeout: patient };
            Inventory::over(streams, options).unwrap()
        });
        both.days(&inventories, Chance::new(seed)).await;
    }
    println!("{:?}", both.seen);
    for answer in [
        "2",
        "repeated",
        "conflict",
        "changed",
        "unchanged",
        "over",
        "final",
        "not-confirmed",
        "unknown",
        "sold-out",
        "all-held",
        "not-started",
        "paused",
        "ended",
        "user-required",
        "order-limit",
        "user-limit",
        "damaged",
        "STALE",
        "FOREIGN",
        "UNKNOWNITEM",
        "DAMAGED",
        "ROLLEDBACK",
        "WRONGTYPE",
        "NOSCRIPT",
        "OOM",
        "READONLY",
        "sale-conflict",
        "sale-replaced",
        "already-ended",
        "sale-running",
        "sale-mismatch",
        "unknown-sale",
        "not-replaced",
        "change-conflict",
        "term-final",
        "too-few-units",
    ] {
        assert!(both.seen.contains_key(answer), "{answer} was never met: {:?}", both.seen);
    }
}

impl Both {
    async fn days(&mut self, inventories: &[Inventory; 2], mut chance: Chance) {
        let item = &Item::DEFAULT;
        let mut revision = 3;
        let mut saved = Data::default();
        _ = self.serve(inventories[1].reduce(item, None, "i", &[chance.order()])).await;
        _ = self.serve(inventories[0].start(item, None, 6)).await;
        for _ in 0..STEPS {
            self.now += chance.below(400_000);
            self.store.refusal = self.store.refusal.filter(|_| !chance.one_in(3));
            let inventory = &inventories[usize::from(chance.one_in(2))];
            let token = chance.token(&mut revision);
            match chance.below(100) {
                0..60 => {
                    let orders: Vec<_> = (0..=chance.below(5)).map(|_| chance.order()).collect();
                    let mut attempt = |order| Attempt {
                        order,
                        instance: "i",
                        holder: chance.one_in(4).then_some("h"),
                        request: chance.one_in(2).then_some(7),
                        sent_under: chance.one_in(8).then(|| chance.token(&mut revision)).flatten(),
                    };
                    let attempts: Vec<_> = orders.iter().map(&mut attempt).collect();
                    _ = self.serve(inventory.reduce_attempts(item, token, &attempts)).await;
                }
                60..70 => {
                    let sale = chance.sale(self.now);
                    _ = self.serve(inventory.start(item, token, sale)).await;
                }
                70..72 => _ = self.serve(inventory.forget(item, &chance.id())).await,
                72 => {
                    let token = Token::new(ClusterId(0xfeed), revision + 1);
                    _ = self.serve(inventory.recover_store(item, token)).await;
                    _ = self.serve(inventory.recover_cluster(item, token)).await;
                }
                73..80 => {
                    let [one, other] = [chance.order(), chance.order()];
                    match chance.below(7) {
                        0 => _ = self.serve(inventory.stock(item)).await,
                        1 => _ = self.serve(inventory.inspect(item)).await,
                        2 => _ = self.serve(inventory.sales(item)).await,
                        3 => _ = self.serve(inventory.look_up(item, &[one.key()])).await,
                        4 => {
                            _ = self
                                .serve(inventory.look_up(item, &[one.key(), other.key()]))
                                .await;
                        }
                        5 => _ = self.serve(inventory.check(token)).await,
                        _ => {
                            let sale = chance.one_in(2).then(|| chance.id());
                            let of = chance.one_in(3).then(|| chance.id().as_str().to_owned());
                            let from = LedgerPosition { sale, of, after: chance.below(6) };
                            _ = self.serve(inventory.ledger(item, from, 3)).await;
                        }
                    }
                    _ = self.serve(inventory.available(item)).await;
                    _ = self.serve(inventory.exists(item)).await;
                }
                80..84 => self.now += chance.below(3_000_000),
                84..88 => {
                    let call = chance.change();
                    _ = self.serve(inventory.change_sale(item, token, "i", &call)).await;
                }
                88..92 => revision += 1,
                92..95 => _ = self.call(&chance.damage()),
                95 => saved = self.store.data.clone(),
                96 => self.restart(saved.clone()),
                97 => self.restart(self.store.data.clone()),
                98 => self.store.refusal = Some(Refusal::OutOfMemory),
                _ => self.store.refusal = Some(Refusal::ReadOnly),
            }
        }
    }
}
