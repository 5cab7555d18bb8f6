//! Lua 5.1 with what Redis adds to it, as far as the scripts use it: they run here as they ship.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::rc::Rc;

use mlua::{ChunkMode, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Deserializer;

use super::data::{Data, Reply, Text, is_known};

/// What is made once and serves any number of stores, one call after the other.
pub(crate) struct Engine {
    lua: Lua,
    /// Calls a script, and catches its error.
    call: Function,
    /// By digest, with whether each may run when memory is full.
    scripts: RefCell<BTreeMap<Text, (Function, bool)>>,
    running: Rc<RefCell<Running>>,
}

/// What the running script works on.
#[derive(Default)]
struct Running {
    data: Data,
    now: u64,
}

/// An error of a command ends a script, unless the script asked for the error as a value. Redis protects the global variables.
const PRELUDE: &str = "
local run, acl_check_cmd, encode, decode = ...
cjson = {encode = encode, decode = decode}
redis = {
  acl_check_cmd = acl_check_cmd,
  call = function(...)
    local reply, has_failed = run(...)
    if has_failed then error(reply) end
    return reply
  end,
  pcall = function(...) return (run(...)) end,
  error_reply = function(text)
    return {err = string.find(text, ' ', 1, true) and text or 'ERR ' .. text}
  end,
}
setmetatable(_G, {
  __index = function(_, name)
    error(\"Script attempted to access nonexistent global variable '\" .. tostring(name) .. \"'\", 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})
return function(script) return pcall(script) end
";

impl Engine {
    pub(crate) fn new() -> Self {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default()).expect("these are safe");
        let running = Rc::<RefCell<Running>>::default();
        let call = install(&lua, &running).expect("the prelude works");
        Self { lua, call, scripts: RefCell::default(), running }
    }

    /// Compiles a script, unless it is known.
    ///
    /// # Errors
    /// Redis' answer to what is no script.
    pub(super) fn load(&self, digest: &[u8], source: &[u8]) -> Result<(), Reply> {
        let mut scripts = self.scripts.borrow_mut();
        if !scripts.contains_key(digest) {
            // Redis leaves out the first line's text, and counts the line
            let line =
                source.iter().position(|b| *b == b'\n').filter(|_| source.starts_with(b"#!"));
            let chunk = self.lua.load(&source[line.unwrap_or(0)..]).set_name("@user_script");
            let script = chunk.set_mode(ChunkMode::Text).into_function().map_err(|error| {
                Reply::error(format!("ERR Error compiling script (new function): {error}"))
            })?;
            let may_run = source[..line.unwrap_or(0)].ends_with(b"allow-oom");
            scripts.insert(digest.to_vec(), (script, may_run));
        }
        Ok(())
    }

    /// Whether a script that was loaded may run when memory is full.
    pub(super) fn runs_without_memory(&self, digest: &[u8]) -> bool {
        self.scripts.borrow()[digest].1
    }

    /// Runs a script that was loaded, on this data.
    pub(super) fn run(
        &self,
        digest: &[u8],
        (keys, args): (&[Text], &[Text]),
        data: &mut Data,
        now: u64,
    ) -> Reply {
        let script = self.scripts.borrow()[digest].0.clone();
        *self.running.borrow_mut() = Running { data: mem::take(data), now };
        let reply = self.reply(&script, keys, args);
        *data = mem::take(&mut self.running.borrow_mut().data);
        match reply {
            Ok(Ok(reply)) => reply,
            Ok(Err((mut error, line))) => {
                error.extend(b" script: ");
                error.extend(digest);
                error.extend(format!(", on @user_script:{line}.").as_bytes());
                Reply::Error(error)
            }
            Err(error) => panic!("the simulator itself failed: {error}"),
        }
    }

    /// What the script returns; or the error that ended it, and where.
    fn reply(
        &self,
        script: &Function,
        keys: &[Text],
        args: &[Text],
    ) -> mlua::Result<Result<Reply, (Text, String)>> {
        for (name, texts) in [("KEYS", keys), ("ARGV", args)] {
            self.lua.globals().raw_set(name, list_of(&self.lua, texts)?)?;
        }
        let (is_done, value): (bool, Value) = self.call.call(script)?;
        if is_done {
            return Ok(Ok(reply_of(&value)?));
        }
        if let Value::Table(error) = &value {
            let text: mlua::String = error.raw_get("err")?;
            return Ok(Err((text.as_bytes().to_vec(), error.raw_get("line")?)));
        }
        let text = value.to_string()?;
        let line = text.split(':').nth(1).unwrap_or_default().to_owned();
        Ok(Err((format!("ERR {text}").into_bytes(), line)))
    }
}

fn install(lua: &Lua, running: &Rc<RefCell<Running>>) -> mlua::Result<Function> {
    let running = Rc::clone(running);
    let run = lua.create_function(move |lua, args: MultiValue| {
        let mut words = args.iter().map(word).collect::<mlua::Result<Vec<Text>>>()?.into_iter();
        let Some(name) = words.next() else {
            return Err(mlua::Error::runtime("a command is missing"));
        };
        let reply = {
            let mut running = running.borrow_mut();
            let now = running.now;
            running.data.run(&name.to_ascii_uppercase(), words.as_slice(), now)
        };
        let value = value_of(lua, &reply)?;
        if let (Reply::Error(_), Value::Table(error)) = (&reply, &value) {
            // behind this function and `redis.call`
            let line = lua.inspect_stack(2, |of| of.current_line()).flatten();
            error.raw_set("line", line.unwrap_or_default().to_string())?;
            return Ok((value, true));
        }
        Ok((value, false))
    })?;
    let acl_check_cmd = lua.create_function(|_, args: MultiValue| {
        let name = args.front().map(word).transpose()?.unwrap_or_default();
        let what = || mlua::Error::runtime("ERR Invalid command passed to redis.acl_check_cmd()");
        is_known(&name.to_ascii_uppercase()).then_some(true).ok_or_else(what)
    })?;
    let encode =
        lua.create_function(|lua, text: mlua::String| lua.create_string(quoted(&text.as_bytes())))?;
    let decode = lua.create_function(|lua, text: mlua::String| {
        let text = text.as_bytes();
        let mut json = Deserializer::from_slice(&text);
        let value = Json(lua).deserialize(&mut json).and_then(|value| json.end().map(|()| value));
        value.map_err(mlua::Error::external)
    })?;
    lua.load(PRELUDE).call((run, acl_check_cmd, encode, decode))
}

/// An argument of a command.
fn word(value: &Value) -> mlua::Result<Text> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into()),
        // Redis has 17 digits
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e17 => {
            Ok(format!("{number:.0}").into())
        }
        other => {
            Err(mlua::Error::runtime(format!("no simulated argument of a command: {other:?}")))
        }
    }
}

fn list_of(lua: &Lua, texts: &[Text]) -> mlua::Result<Table> {
    let list = lua.create_table_with_capacity(texts.len(), 0)?;
    for text in texts {
        list.raw_push(lua.create_string(text)?)?;
    }
    Ok(list)
}

/// A reply as scripts see it, in RESP 2.
fn value_of(lua: &Lua, reply: &Reply) -> mlua::Result<Value> {
    let with = |field: &str, text: &Text| -> mlua::Result<Value> {
        let table = lua.create_table_with_capacity(0, 2)?;
        table.raw_set(field, lua.create_string(text)?)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Null => Value::Boolean(false),
        #[allow(clippy::cast_precision_loss, reason = "as in Redis")]
        Reply::Int(int) => Value::Number(*int as f64),
        Reply::Text(text) => Value::String(lua.create_string(text)?),
        Reply::Status(text) => with("ok", text)?,
        Reply::Error(text) => with("err", text)?,
        Reply::List(replies) => {
            let list = lua.create_table_with_capacity(replies.len(), 0)?;
            for reply in replies {
                list.raw_push(value_of(lua, reply)?)?;
            }
            Value::Table(list)
        }
        Reply::Map(_) => unreachable!("no command of a script answers with a map"),
    })
}

/// What a script returns, as Redis answers it.
fn reply_of(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(number) => Reply::Int(*number),
        #[allow(clippy::cast_possible_truncation, reason = "as in Redis")]
        Value::Number(number) => Reply::Int(*number as i64),
        Value::String(text) => Reply::Text(text.as_bytes().to_vec()),
        Value::Table(table) => {
            for (field, reply) in
                [("err", Reply::Error as fn(Text) -> Reply), ("ok", Reply::Status)]
            {
                if let Value::String(text) = table.raw_get(field)? {
                    return Ok(reply(text.as_bytes().to_vec()));
                }
            }
            let mut list = Vec::with_capacity(table.raw_len());
            // up to the first nil
            loop {
                match table.raw_get(list.len() + 1)? {
                    Value::Nil => return Ok(Reply::List(list)),
                    value => list.push(reply_of(&value)?),
                }
            }
        }
        _ => Reply::Null,
    })
}

/// As `cjson.encode` writes a text.
fn quoted(text: &[u8]) -> Text {
    let mut quoted = b"\"".to_vec();
    for byte in text {
        match byte {
            b'"' | b'\\' | b'/' => quoted.extend([b'\\', *byte]),
            8 => quoted.extend(b"\\b"),
            b'\t' => quoted.extend(b"\\t"),
            b'\n' => quoted.extend(b"\\n"),
            12 => quoted.extend(b"\\f"),
            b'\r' => quoted.extend(b"\\r"),
            0..=31 | 127 => quoted.extend(format!("\\u{byte:04x}").as_bytes()),
            _ => quoted.push(*byte),
        }
    }
    quoted.push(b'"');
    quoted
}

/// Reads JSON as `cjson.decode` does, except that `cjson` also takes texts that are not UTF-8, and hexadecimal numbers.
struct Json<'a>(&'a Lua);

impl<'de> DeserializeSeed<'de> for Json<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

#[allow(clippy::cast_precision_loss, reason = "Lua 5.1 has doubles only")]
impl<'de> Visitor<'de> for Json<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::NULL)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.0.create_string(text).map(Value::String).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let list = self.0.create_table().map_err(A::Error::custom)?;
        while let Some(value) = seq.next_element_seed(Json(self.0))? {
            list.raw_push(value).map_err(A::Error::custom)?;
        }
        Ok(Value::Table(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let table = self.0.create_table().map_err(A::Error::custom)?;
        while let Some(key) = map.next_key::<String>()? {
            table.raw_set(key, map.next_value_seed(Json(self.0))?).map_err(A::Error::custom)?;
        }
        Ok(Value::Table(table))
    }
}
