//! Lua 5.1 with what Redis adds to it, as far as the scripts need it. The scripts run as they ship.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem;
use std::rc::Rc;

use mlua::{ChunkMode, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use serde_json::Value as Json;

use crate::data::{Data, Reply, Text, is_known};

/// The interpreter and the compiled scripts. One engine serves any number of stores, one call after the other.
pub struct Engine {
    lua: Lua,
    /// By digest, with whether each may run when memory is full.
    scripts: RefCell<BTreeMap<Text, (Function, bool)>>,
    /// The digests of sources, which are slow to compute.
    digests: RefCell<BTreeMap<Text, Text>>,
    running: Rc<RefCell<Running>>,
}

/// The data and the time of the running script.
#[derive(Default)]
struct Running {
    data: Data,
    now: u64,
}

/// An error of a command, which ends the script, and the line of the script. A script cannot catch it by `pcall`.
#[derive(Debug, thiserror::Error)]
#[error("a command failed")]
struct Failed(Text, usize);

/// Redis protects the global variables.
const PRELUDE: &str = "
cjson, redis = {}, {error_reply = function(text)
  return {err = string.find(text, ' ', 1, true) and text or 'ERR ' .. text}
end}
setmetatable(_G, {
  __index = function(_, name)
    error(\"Script attempted to access nonexistent global variable '\" .. tostring(name) .. \"'\", 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})
";

impl Default for Engine {
    fn default() -> Self {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default()).expect("these are safe");
        // memory is cheap here, and collecting garbage takes time
        lua.gc_set_pause(1000);
        let running = Rc::<RefCell<Running>>::default();
        install(&lua, &running).expect("the prelude works");
        Self { lua, scripts: RefCell::default(), digests: RefCell::default(), running }
    }
}

impl Engine {
    /// The digest under which a script is known.
    pub(super) fn digest(&self, source: &[u8]) -> Text {
        if let Some(digest) = self.digests.borrow().get(source) {
            return digest.clone();
        }
        let script = redis::Script::new(&String::from_utf8_lossy(source));
        let digest = script.get_hash().as_bytes().to_vec();
        self.digests.borrow_mut().insert(source.to_vec(), digest.clone());
        digest
    }

    /// Compiles a script, unless it is known.
    ///
    /// # Errors
    /// The answer of Redis to a text that is no script.
    pub(super) fn load(&self, digest: &[u8], source: &[u8]) -> Result<(), Reply> {
        let mut scripts = self.scripts.borrow_mut();
        if !scripts.contains_key(digest) {
            // Redis skips the text of a first line with `#!`, and counts the line
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
        reply.unwrap_or_else(|error| {
            let failed = error.chain().find_map(|cause| cause.downcast_ref());
            let Some(Failed(text, line)) = failed else {
                // a mistake in the script, about which Redis says more
                return Reply::error(format!("ERR {error}"));
            };
            let place = format!(", on @user_script:{line}.").into_bytes();
            Reply::Error([text, &b" script: "[..], digest, &place].concat())
        })
    }

    fn reply(&self, script: &Function, keys: &[Text], args: &[Text]) -> mlua::Result<Reply> {
        for (name, texts) in [("KEYS", keys), ("ARGV", args)] {
            self.lua.globals().raw_set(name, list_of(&self.lua, texts)?)?;
        }
        reply_of(&script.call(())?)
    }
}

fn install(lua: &Lua, running: &Rc<RefCell<Running>>) -> mlua::Result<()> {
    lua.load(PRELUDE).exec()?;
    let redis: Table = lua.globals().raw_get("redis")?;
    for (name, catches) in [("call", false), ("pcall", true)] {
        let running = Rc::clone(running);
        let call = lua.create_function(move |lua, args: MultiValue| {
            let words = args.iter().map(word).collect::<mlua::Result<Vec<Text>>>()?;
            let (name, args) =
                words.split_first().ok_or_else(|| mlua::Error::runtime("a command is missing"))?;
            let running = &mut *running.borrow_mut();
            match running.data.run(&name.to_ascii_uppercase(), args, running.now) {
                Reply::Error(text) if !catches => {
                    let line =
                        lua.inspect_stack(1, |caller| caller.current_line().unwrap_or_default());
                    Err(mlua::Error::external(Failed(text, line.unwrap_or_default())))
                }
                reply => value_of(lua, &reply),
            }
        })?;
        redis.raw_set(name, call)?;
    }
    let acl_check_cmd = lua.create_function(|_, args: MultiValue| {
        let name = args.front().map(word).transpose()?.unwrap_or_default();
        let what = || mlua::Error::runtime("Invalid command passed to redis.acl_check_cmd()");
        is_known(&name.to_ascii_uppercase()).then_some(true).ok_or_else(what)
    })?;
    redis.raw_set("acl_check_cmd", acl_check_cmd)?;
    let encode = lua.create_function(|_, value: Value| {
        let is_plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'/');
        match &value {
            Value::Boolean(value) => Ok(value.to_string()),
            value if value.is_null() => Ok("null".to_owned()),
            Value::String(text) if text.as_bytes().iter().copied().all(is_plain) => {
                Ok(format!("\"{}\"", text.to_string_lossy()))
            }
            _ => Err(mlua::Error::runtime("the scripts write no text that needs escapes")),
        }
    })?;
    let decode = lua.create_function(|lua, text: mlua::String| {
        let json = serde_json::from_slice(&text.as_bytes()).map_err(mlua::Error::external)?;
        decoded(lua, json)
    })?;
    let cjson: Table = lua.globals().raw_get("cjson")?;
    cjson.raw_set("encode", encode)?;
    cjson.raw_set("decode", decode)
}

/// An argument of a command.
fn word(value: &Value) -> mlua::Result<Text> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into()),
        // Redis writes 17 digits
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

/// The answer of Redis to what a script returns.
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

/// A value as `cjson.decode` has it, except that `cjson` also takes texts that are not UTF-8, and hexadecimal numbers.
fn decoded(lua: &Lua, json: Json) -> mlua::Result<Value> {
    Ok(match json {
        Json::Null => Value::NULL,
        Json::Bool(value) => Value::Boolean(value),
        Json::Number(number) => Value::Number(number.as_f64().unwrap_or_default()),
        Json::String(text) => Value::String(lua.create_string(text)?),
        Json::Array(list) => {
            let list = list.into_iter().map(|value| decoded(lua, value));
            Value::Table(lua.create_sequence_from(list.collect::<mlua::Result<Vec<_>>>()?)?)
        }
        Json::Object(object) => {
            let table = lua.create_table()?;
            for (key, value) in object {
                table.raw_set(key, decoded(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}
