//! Scripts: sent by their hash; a server that does not know the hash gets the text.

use redis::{Cmd, ToRedisArgs, cmd};

pub(super) struct Script {
    text: String,
    hash: String,
}

impl Script {
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    pub(super) fn key(&'static self, key: impl ToRedisArgs) -> Call {
        Call { script: self, keys: key.to_redis_args(), args: Vec::new() }
    }

    pub(super) fn arg(&'static self, arg: impl ToRedisArgs) -> Call {
        Call { script: self, keys: Vec::new(), args: arg.to_redis_args() }
    }
}

pub(super) struct Call {
    script: &'static Script,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn key(&mut self, key: impl ToRedisArgs) -> &mut Self {
        key.write_redis_args(&mut self.keys);
        self
    }

    pub(super) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        arg.write_redis_args(&mut self.args);
        self
    }

    /// The command for a server that knows the script.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// The command for a server that does not know the script yet.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", &self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        command
    }
}
