//! A server that can be killed and started again on its data, or made to stand still.

use std::{
    collections::BTreeSet, fs, net::TcpListener, os::unix::fs::PermissionsExt, path::PathBuf,
    process::Stdio,
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{
    HANGS,
    network::{Network, Party},
    sockets,
};

pub struct Server {
    /// Which one of a cluster it is.
    number: usize,
    engine: &'static str,
    data: TempDir,
    /// A port, or the path of a Unix socket.
    place: String,
    /// For its own command line.
    arguments: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    network: Network,
    child: Option<Child>,
}

/// How often a server is started before it is taken for broken.
const ATTEMPTS: usize = 3;

/// A port that nobody uses at the moment, out of those that the system gives to nobody who does not ask for
/// them: one of the others may be somebody's when the server starts, or starts again.
pub fn free_port() -> Result<u16> {
    let ports = (0..100).map(|_| fastrand::u16(16_000..32_000));
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().context("no port is free")
}

impl Server {
    pub async fn start(
        engine: &'static str,
        number: usize,
        arguments: Vec<String>,
        network: &Network,
    ) -> Result<Self> {
        Self::start_with(engine, number, arguments, Vec::new(), network).await
    }

    /// With these in its environment.
    pub async fn start_with(
        engine: &'static str,
        number: usize,
        arguments: Vec<String>,
        environment: Vec<(&'static str, PathBuf)>,
        network: &Network,
    ) -> Result<Self> {
        let data = TempDir::new()?;
        // The search engines refuse to be root, and run as another user then.
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o777))?;
        let place = match engine {
            "mongodb" => format!("{}/mongodb.sock", data.path().display()),
            _ => free_port()?.to_string(),
        };
        let mut server = Self {
            number,
            engine,
            data,
            place,
            arguments,
            environment,
            network: network.clone(),
            child: None,
        };
        server.run().await?;
        Ok(server)
    }

    /// Where it listens, for a client.
    pub fn uri(&self) -> String {
        let place = self.target().replace('/', "%2F");
        format!("mongodb://{place}/?directConnection=true")
    }

    /// Its port, as text.
    pub fn port(&self) -> &str {
        &self.place
    }

    /// Where it listens, for a proxy.
    pub fn target(&self) -> String {
        if self.place.starts_with('/') {
            self.place.clone()
        } else {
            format!("127.0.0.1:{}", self.place)
        }
    }

    /// Starts it where it was, with other arguments.
    pub async fn run_with(&mut self, arguments: Vec<String>) -> Result<()> {
        self.arguments = arguments;
        self.run().await
    }

    /// Starts it where it was. The port may be somebody's for a while who has connected to somewhere.
    pub async fn run(&mut self) -> Result<()> {
        for _ in 1..ATTEMPTS {
            match self.runs().await {
                Ok(()) => return Ok(()),
                Err(error) => eprintln!("{error:#}; it is started again"),
            }
        }
        self.runs().await
    }

    async fn runs(&mut self) -> Result<()> {
        let script = leasehold_tests::project().join("scripts/engine");
        let place = if self.place.starts_with('/') {
            "--socket"
        } else {
            "--port"
        };
        let mut child = Command::new(script)
            .args(["run", self.engine, place, &self.place, "--data"])
            .arg(self.data.path())
            .args((!self.arguments.is_empty()).then_some("--"))
            .args(&self.arguments)
            .env("LEASEHOLD_START_TIMEOUT", HANGS.as_secs().to_string())
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let process = child.id().context("it has ended")?.try_into()?;
        // Before it connects to anybody.
        self.network.knows(process, Party::Server(self.number));
        let output = child.stdout.take().context("its output is not there")?;
        self.child = Some(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).await?;
        let ready = line.starts_with("ready ");
        ready
            .then_some(())
            .with_context(|| format!("{} did not start, see its messages", self.engine))
    }

    /// What it has told since its first start.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.data.path().join("engine.log"))?)
    }

    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Kills it hard. Its data stays.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("it does not run")?;
        // The script kills the engine when nobody holds its input any more.
        drop(child.stdin.take());
        child.wait().await?;
        Ok(())
    }

    /// Makes it stand still, or go on.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = sockets::process_at(self.place.parse()?, None, &BTreeSet::new())?;
        kill_process(Pid::from_raw(process).context("no process")?, signal)?;
        Ok(())
    }
}
