//! An engine that can be killed and started again on its data, or whose primary can be stopped.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context, Result, bail};
use mongodb::bson::doc;
use rustix::process::Pid;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

pub struct Engine {
    name: &'static str,
    data: TempDir,
    port: Option<String>,
    child: Child,
    /// As the script tells it.
    pub address: String,
}

impl Engine {
    pub async fn start(name: &'static str) -> Result<Self> {
        let data = TempDir::new()?;
        // The search engines refuse to be root, and run as another user then.
        #[allow(clippy::permissions_set_readonly_false)]
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(data.path(), open)?;
        let (child, address) = run(name, &data, None).await?;
        let mut engine = Self {
            name,
            data,
            port: None,
            child,
            address,
        };
        let port = engine.host().rsplit(':').next().map(str::to_owned);
        engine.port = port;
        Ok(engine)
    }

    /// The host and port.
    pub fn host(&self) -> String {
        let address = self.address.split("://").last().unwrap_or_default();
        let host = address.split(['/', '?']).next().unwrap_or_default();
        host.rsplit('@').next().unwrap_or_default().to_owned()
    }

    /// Kills it. Its data stays.
    pub async fn kill(&mut self) -> Result<()> {
        // The script kills the engine hard when nobody holds its input any more.
        drop(self.child.stdin.take());
        self.child.wait().await?;
        Ok(())
    }

    /// Starts it again where it was.
    pub async fn restart(&mut self) -> Result<()> {
        let (child, address) = run(self.name, &self.data, self.port.as_deref()).await?;
        (self.child, self.address) = (child, address);
        Ok(())
    }
}

async fn run(name: &str, data: &TempDir, port: Option<&str>) -> Result<(Child, String)> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/engine");
    let mut command = Command::new(script);
    command.args(["run", name, "--data"]).arg(data.path());
    if let Some(port) = port {
        command.args(["--port", port]);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().context("its output is not there")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).await?;
    let address = line.trim_end().strip_prefix("ready ");
    let address = address.with_context(|| format!("{name} did not start, see its messages"))?;
    Ok((child, address.to_owned()))
}

/// The primary of a set, by its host and port.
pub async fn primary(address: &str) -> Result<String> {
    let client = mongodb::Client::with_uri_str(address).await?;
    let hello = client
        .database("admin")
        .run_command(doc! { "hello": 1 })
        .await?;
    Ok(hello
        .get_str("primary")
        .context("there is no primary")?
        .to_owned())
}

/// Tells the primary to step down, and not to come back for some seconds.
pub async fn step_down(address: &str) -> Result<()> {
    let host = primary(address).await?;
    let direct = format!("mongodb://{host}/?directConnection=true");
    let client = mongodb::Client::with_uri_str(direct).await?;
    let step_down = doc! { "replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5, "force": true };
    client.database("admin").run_command(step_down).await?;
    Ok(())
}

/// The process that listens on the port of this address.
pub fn process_of(host: &str) -> Result<Pid> {
    let port = host.rsplit(':').next().unwrap_or_default();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        // It may have ended by now.
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = words.split(|byte| *byte == 0).collect();
        let member = words.contains(&&b"--replSet"[..]);
        if member
            && words
                .windows(2)
                .any(|it| it == [&b"--port"[..], port.as_bytes()])
        {
            return Pid::from_raw(pid).context("no process");
        }
    }
    bail!("nobody listens at {host}")
}
