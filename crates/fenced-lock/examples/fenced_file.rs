//! A file that several processes of one machine write, each only while no later holder has written.
//!
//! The file's first line is the largest token that was accepted. `File::lock` makes comparing and writing
//! one step. The file is at `FILE` (default: `greeting.txt` in the temporary directory).

use std::error::Error;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fenced_lock::{EtcdBackend, EtcdOptions, Session, SessionOptions, Token};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::var("ETCD").unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let path = std::env::var_os("FILE").map(PathBuf::from);
    let path = path.unwrap_or_else(|| std::env::temp_dir().join("greeting.txt"));
    let etcd = EtcdBackend::new(EtcdOptions::new([endpoint]))?;
    let session =
        Session::open(Arc::new(etcd), SessionOptions::new(Duration::from_secs(10))).await?;
    let mutex = session.mutex("greeting-file")?;

    let first = mutex.lock().await?;
    let outdated = first.token();
    first.unlock().await?;
    let second = mutex.lock().await?;
    println!("the holder writes: {}", write(&path, second.token(), "hello")?);
    // a holder that slept through its lease would do this
    println!("an earlier one writes: {}", write(&path, outdated, "goodbye")?);
    second.unlock().await?;
    Ok(session.close().await?)
}

/// Whether it was written.
fn write(path: &Path, token: Token, text: &str) -> io::Result<bool> {
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    let mut content = String::new();
    file.read_to_string(&mut content)?;
    let fence = content.lines().next().and_then(|line| line.parse().ok()).unwrap_or(0);
    if token.revision() < fence {
        return Ok(false);
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}\n{text}", token.revision())?;
    Ok(true)
}
