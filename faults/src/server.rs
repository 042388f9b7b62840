//! A server that can be killed and restarted on its data, or stopped for a while.

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
    /// The number of the server in a cluster.
    number: usize,
    engine: &'static str,
    data: TempDir,
    /// A port, or the path of a Unix socket.
    place: String,
    /// The arguments of its command line.
    arguments: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    network: Network,
    child: Option<Child>,
}

/// How often a server is started before it counts as broken.
const ATTEMPTS: usize = 3;

/// A free port outside the range from which the system picks ports by itself. Otherwise another program might have the
/// port when the server starts or restarts.
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

    /// Starts a server with these variables in its environment.
    pub async fn start_with(
        engine: &'static str,
        number: usize,
        arguments: Vec<String>,
        environment: Vec<(&'static str, PathBuf)>,
        network: &Network,
    ) -> Result<Self> {
        let data = TempDir::new()?;
        // The search engines refuse to run as root, so they run as another user.
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

    /// The address of the server, for a client.
    pub fn uri(&self) -> String {
        let place = self.target().replace('/', "%2F");
        format!("mongodb://{place}/?directConnection=true")
    }

    /// Its port, as text.
    pub fn port(&self) -> &str {
        &self.place
    }

    /// The address of the server, for a proxy.
    pub fn target(&self) -> String {
        if self.place.starts_with('/') {
            self.place.clone()
        } else {
            format!("127.0.0.1:{}", self.place)
        }
    }

    /// Restarts the server at the same place with other arguments.
    pub async fn run_with(&mut self, arguments: Vec<String>) -> Result<()> {
        self.arguments = arguments;
        self.run().await
    }

    /// Starts the server at the same place. An outgoing connection of another program may use the port for a while.
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
        // The network must know the process before it connects.
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

    /// Its log since its first start.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.data.path().join("engine.log"))?)
    }

    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Kills the server with SIGKILL. Its data remains.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("it does not run")?;
        // The script kills the engine when its standard input is closed.
        drop(child.stdin.take());
        child.wait().await?;
        Ok(())
    }

    /// Sends a signal, to stop the server or to continue it.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = sockets::process_at(self.place.parse()?, None, &BTreeSet::new())?;
        kill_process(Pid::from_raw(process).context("no process")?, signal)?;
        Ok(())
    }
}
