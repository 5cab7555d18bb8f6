//! The data of the store, and the commands on it that the service and its scripts use, as Redis 7 has them.

use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes, as everything in Redis is.
pub type Text = Vec<u8>;

/// The answer to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Null,
    Int(i64),
    Status(Text),
    Text(Text),
    List(Vec<Reply>),
    Map(Vec<(&'static str, Reply)>),
    /// A code, a space and what is wrong.
    Error(Text),
}

impl Reply {
    pub(super) const OK: fn() -> Self = || Self::Status(b"OK".to_vec());

    pub fn error(text: impl AsRef<str>) -> Self {
        Self::Error(text.as_ref().as_bytes().to_vec())
    }

    fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Text(text.as_ref().to_vec())
    }

    fn texts<'a>(texts: impl IntoIterator<Item = &'a Text>) -> Self {
        Self::List(texts.into_iter().map(Self::text).collect())
    }

    fn optional(text: Option<&Text>) -> Self {
        text.map_or(Self::Null, Self::text)
    }

    fn count(count: usize) -> Self {
        Self::Int(i64::try_from(count).expect("less than a memory has"))
    }

    /// Appends it in RESP 3.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let mut line = |kind: u8, text: &[u8]| {
            to.push(kind);
            // Redis drops the line ends behind an error, and replaces the others
            let is_end = |b: &u8| matches!(b, b'\r' | b'\n');
            let size = text.iter().rposition(|b| !is_end(b)).map_or(0, |last| last + 1);
            let text = text[..size].iter();
            to.extend(text.map(|b| if is_end(b) { &b' ' } else { b }));
            to.extend(b"\r\n");
        };
        let number = |number: usize| number.to_string().into_bytes();
        match self {
            Self::Null => line(b'_', b""),
            Self::Int(int) => line(b':', int.to_string().as_bytes()),
            Self::Status(text) => line(b'+', text),
            Self::Error(text) => line(b'-', text),
            Self::Text(text) => {
                line(b'$', &number(text.len()));
                to.extend(text);
                to.extend(b"\r\n");
            }
            Self::List(list) => {
                line(b'*', &number(list.len()));
                for reply in list {
                    reply.encode(to);
                }
            }
            Self::Map(map) => {
                line(b'%', &number(map.len()));
                for (key, value) in map {
                    Self::text(key).encode(to);
                    value.encode(to);
                }
            }
        }
    }
}

/// The content of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    String(Text),
    List(Vec<Text>),
    Hash(Hash),
    SortedSet(Scores),
}

type Hash = BTreeMap<Text, Text>;
type Scores = BTreeMap<Text, f64>;

/// One of the types that a key can have.
pub trait Kind: Clone + Default {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn value(self) -> Value;
    fn has_none(&self) -> bool;
}

macro_rules! kinds {
    ($($name:ident($kind:ty)),*) => {$(
        impl Kind for $kind {
            fn of(value: &Value) -> Option<&Self> {
                if let Value::$name(found) = value { Some(found) } else { None }
            }
            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                if let Value::$name(found) = value { Some(found) } else { None }
            }
            fn value(self) -> Value {
                Value::$name(self)
            }
            fn has_none(&self) -> bool {
                self.is_empty()
            }
        }
    )*};
}
kinds!(String(Text), List(Vec<Text>), Hash(Hash), SortedSet(Scores));

/// All keys. A clone is cheap, and serves as the data of a disk or of a replica.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Data(Rc<BTreeMap<Text, Rc<Value>>>);

/// The commands that write, and that may need memory.
const GROWS: [&[u8]; 5] = [b"SET", b"MSET", b"HSET", b"RPUSH", b"ZADD"];
/// The other commands that write.
const SHRINKS: [&[u8]; 5] = [b"DEL", b"UNLINK", b"RENAME", b"HDEL", b"ZREM"];
const READS: [&[u8]; 10] = [
    b"GET", b"MGET", b"EXISTS", b"HGET", b"HMGET", b"HLEN", b"HVALS", b"LLEN", b"LRANGE", b"ZCARD",
];

/// Whether the command of this name (in capitals) writes, and whether it then needs no memory.
pub(super) fn writes(name: &[u8]) -> Option<bool> {
    let shrinks = SHRINKS.contains(&name);
    (shrinks || GROWS.contains(&name)).then_some(shrinks)
}

/// Whether this store has the command of this name, in capitals.
pub(super) fn is_known(name: &[u8]) -> bool {
    writes(name).is_some() || READS.contains(&name) || matches!(name, b"ZRANGEBYSCORE" | b"TIME")
}

fn wrong_type() -> Reply {
    Reply::error("WRONGTYPE Operation against a key holding the wrong kind of value")
}

impl Data {
    /// The content of the key, if it is of this type.
    pub fn get<K: Kind>(&self, key: &[u8]) -> Option<&K> {
        self.read(key).ok().flatten()
    }

    /// All keys, in the order of their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Value)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    fn read<K: Kind>(&self, key: &[u8]) -> Result<Option<&K>, Reply> {
        self.0.get(key).map(|value| K::of(value).ok_or_else(wrong_type)).transpose()
    }

    /// Changes the content of the key, and removes a key that becomes empty.
    fn change<K: Kind, R>(
        &mut self,
        key: &Text,
        change: impl FnOnce(&mut K) -> R,
    ) -> Result<R, Reply> {
        let keys = Rc::make_mut(&mut self.0);
        let value = keys.entry(key.clone()).or_insert_with(|| Rc::new(K::default().value()));
        let content = K::of_mut(Rc::make_mut(value)).ok_or_else(wrong_type)?;
        let result = change(content);
        if content.has_none() {
            keys.remove(key);
        }
        Ok(result)
    }

    fn set(&mut self, key: &Text, text: &Text) {
        Rc::make_mut(&mut self.0).insert(key.clone(), Rc::new(Value::String(text.clone())));
    }

    /// Runs the command of this name, in capitals, with these arguments, at this time (microseconds since 1970).
    pub(super) fn run(&mut self, name: &[u8], args: &[Text], now: u64) -> Reply {
        self.try_run(name, args, now).unwrap_or_else(|error| error)
    }

    fn try_run(&mut self, name: &[u8], args: &[Text], now: u64) -> Result<Reply, Reply> {
        Ok(match (name, args) {
            (b"TIME", []) => {
                Reply::texts(&[now / 1_000_000, now % 1_000_000].map(|n| n.to_string().into()))
            }
            (b"GET", [key]) => Reply::optional(self.read(key)?),
            (b"SET", [key, text]) => {
                self.set(key, text);
                Reply::OK()
            }
            (b"MGET", [_, ..]) => {
                Reply::List(args.iter().map(|key| Reply::optional(self.get(key))).collect())
            }
            (b"MSET", [_, ..]) if args.len().is_multiple_of(2) => {
                args.chunks(2).for_each(|pair| self.set(&pair[0], &pair[1]));
                Reply::OK()
            }
            (b"DEL" | b"UNLINK", [_, ..]) => {
                let keys = Rc::make_mut(&mut self.0);
                Reply::count(args.iter().filter(|key| keys.remove(*key).is_some()).count())
            }
            (b"EXISTS", [_, ..]) => {
                Reply::count(args.iter().filter(|key| self.0.contains_key(*key)).count())
            }
            (b"RENAME", [from, to]) => {
                let keys = Rc::make_mut(&mut self.0);
                let value = keys.remove(from).ok_or_else(|| Reply::error("ERR no such key"))?;
                keys.insert(to.clone(), value);
                Reply::OK()
            }
            _ => return self.run_on_collection(name, args),
        })
    }

    fn run_on_collection(&mut self, name: &[u8], args: &[Text]) -> Result<Reply, Reply> {
        Ok(match (name, args) {
            (b"HGET", [key, field]) => {
                Reply::optional(self.read::<Hash>(key)?.and_then(|hash| hash.get(field)))
            }
            (b"HMGET", [key, fields @ ..]) if !fields.is_empty() => {
                let hash: Option<&Hash> = self.read(key)?;
                let value = |field| Reply::optional(hash.and_then(|hash| hash.get(field)));
                Reply::List(fields.iter().map(value).collect())
            }
            (b"HSET", [key, pairs @ ..]) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
                Reply::count(self.change(key, |hash: &mut Hash| {
                    let pairs = pairs.chunks(2);
                    pairs.filter(|p| hash.insert(p[0].clone(), p[1].clone()).is_none()).count()
                })?)
            }
            (b"HDEL", [key, fields @ ..]) if !fields.is_empty() => {
                Reply::count(self.change(key, |hash: &mut Hash| {
                    fields.iter().filter(|field| hash.remove(*field).is_some()).count()
                })?)
            }
            (b"HLEN", [key]) => Reply::count(self.read(key)?.map_or(0, Hash::len)),
            (b"HVALS", [key]) => {
                Reply::texts(self.read(key)?.iter().flat_map(|hash: &&Hash| hash.values()))
            }
            (b"LLEN", [key]) => Reply::count(self.read::<Vec<Text>>(key)?.map_or(0, Vec::len)),
            (b"RPUSH", [key, texts @ ..]) if !texts.is_empty() => {
                Reply::count(self.change(key, |list: &mut Vec<Text>| {
                    list.extend_from_slice(texts);
                    list.len()
                })?)
            }
            (b"LRANGE", [key, first, last]) => {
                let [first, last] = [integer(first)?, integer(last)?];
                let texts = self.read::<Vec<Text>>(key)?.map_or(&[][..], Vec::as_slice);
                let from_start = |index: i64| {
                    let before = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
                    if index < 0 { texts.len().checked_sub(before) } else { Some(before) }
                };
                let end =
                    from_start(last).map_or(0, |last| texts.len().min(last.saturating_add(1)));
                Reply::texts(texts.get(from_start(first).unwrap_or(0)..end).unwrap_or_default())
            }
            (b"ZADD", [key, pairs @ ..]) if !pairs.is_empty() => {
                if !pairs.len().is_multiple_of(2) {
                    return Err(Reply::error("ERR syntax error"));
                }
                let invalid = || Reply::error("ERR value is not a valid float");
                let scored = pairs
                    .chunks(2)
                    .map(|pair| Ok((pair[1].clone(), float(&pair[0]).ok_or_else(invalid)?)));
                let scored = scored.collect::<Result<Vec<_>, Reply>>()?;
                Reply::count(self.change(key, |set: &mut Scores| {
                    scored.into_iter().filter(|(k, n)| set.insert(k.clone(), *n).is_none()).count()
                })?)
            }
            (b"ZREM", [key, members @ ..]) if !members.is_empty() => {
                Reply::count(self.change(key, |set: &mut Scores| {
                    members.iter().filter(|member| set.remove(*member).is_some()).count()
                })?)
            }
            (b"ZCARD", [key]) => Reply::count(self.read(key)?.map_or(0, Scores::len)),
            (b"ZRANGEBYSCORE", [key, least, most, with @ .., limit, skip, take])
                if limit.eq_ignore_ascii_case(b"LIMIT")
                    && matches!(with, [] | [_])
                    && with.iter().all(|word| word.eq_ignore_ascii_case(b"WITHSCORES")) =>
            {
                let no_float = || Reply::error("ERR min or max is not a float");
                let [least, most] = [float(least), float(most)];
                let range = least.ok_or_else(no_float)?..=most.ok_or_else(no_float)?;
                let [skip, take] = [integer(skip)?, integer(take)?];
                let set: Option<&Scores> = self.read(key)?;
                let members = set.into_iter().flatten().filter(|(_, n)| range.contains(*n));
                let mut members: Vec<_> = members.collect();
                members.sort_by(|a, b| a.1.total_cmp(b.1));
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                let take = usize::try_from(take).unwrap_or(usize::MAX);
                let found = members.into_iter().skip(skip).take(take);
                let found = found.flat_map(|(member, score)| {
                    let score = with.iter().map(|_| score.to_string().into_bytes());
                    std::iter::once(member.clone()).chain(score)
                });
                Reply::List(found.map(Reply::text).collect())
            }
            _ if is_known(name) => Err(Reply::error(format!(
                "ERR wrong number of arguments for '{}' command",
                String::from_utf8_lossy(name).to_lowercase()
            )))?,
            _ => Err(Reply::error(format!(
                "ERR unknown command '{}'",
                String::from_utf8_lossy(name)
            )))?,
        })
    }
}

fn integer(text: &[u8]) -> Result<i64, Reply> {
    let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))
}

fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}
