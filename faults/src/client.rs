//! A process that takes leases, as an application does. It is this program, started with a task in the environment.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use anyhow::{Context, Result};
use chrono::TimeDelta;
use elasticsearch::{Elasticsearch, http::transport::Transport as ElasticsearchTransport};
use fastrand::Rng;
use leasehold::{ElasticsearchStore, Leases, MongoStore, OpenSearchStore, Store};
use leasehold_tests::faketime;
use mongodb::bson::Document;
use opensearch::{OpenSearch, http::transport::Transport as OpenSearchTransport};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

use crate::{
    HANGS,
    broken::{Broken, Wrong},
    documents::Documents,
    history::{Clock, Recorder},
    ledger::Account,
    recording::{Recording, ServerClock},
    stays::Stays,
    work::{Pace, Role, Worker},
};

const TASK: &str = "LEASEHOLD_FAULTS_CLIENT";

/// The settings of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The name of the engine.
    pub engine: String,
    pub address: String,
    /// The name of the collection or the alias.
    pub name: String,
    pub ledger: String,
    pub history: PathBuf,
    pub seed: u64,
    pub wrong: Wrong,
    /// The number of the client.
    pub client: usize,
    /// How many minutes its clock is off.
    pub clock: i32,
    pub workers: u64,
    pub pace: Pace,
    /// One in this many stays lasts about as long as the ttl, or longer.
    pub dawdles: u32,
}

impl Task {
    /// Opens the store of the task, with a new client.
    pub async fn store(&self) -> Result<Arc<dyn Store>> {
        self.open(false).await
    }

    /// Prepares the store.
    pub async fn prepare(&self) -> Result<()> {
        self.open(true).await.map(drop)
    }

    async fn open(&self, prepares: bool) -> Result<Arc<dyn Store>> {
        Ok(match &*self.engine {
            "elasticsearch" | "elasticsearch-three" => {
                let transport = ElasticsearchTransport::single_node(&self.address)?;
                let store = ElasticsearchStore::new(Elasticsearch::new(transport), &self.name);
                if prepares {
                    store.prepare().await?;
                }
                Arc::new(store)
            }
            "opensearch" => {
                let transport = OpenSearchTransport::single_node(&self.address)?;
                let store = OpenSearchStore::new(OpenSearch::new(transport), &self.name);
                if prepares {
                    store.prepare().await?;
                }
                Arc::new(store)
            }
            _ => {
                let client = mongodb::Client::with_uri_str(&self.address).await?;
                let database = client.database("leasehold_test");
                let store = MongoStore::new(&database.collection::<Document>(&self.name));
                if prepares {
                    store.prepare().await?;
                }
                Arc::new(store)
            }
        })
    }
}

/// A running client.
pub struct Client {
    child: Child,
    history: PathBuf,
}

impl Client {
    /// Starts this program with a task.
    pub fn start(program: &Path, task: &Task) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .env(TASK, serde_json::to_string(task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        if task.clock != 0 {
            command.envs(faketime::minutes(task.clock));
        }
        let child = command.spawn()?;
        let history = task.history.clone();
        Ok(Self { child, history })
    }

    pub fn process(&self) -> Result<i32> {
        let process = self.child.id().context("a client has ended by itself")?;
        Ok(process.try_into()?)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = Pid::from_raw(self.process()?).context("no process")?;
        kill_process(process, signal)?;
        Ok(())
    }

    pub async fn kill(mut self) -> Result<()> {
        // The process may be stopped.
        self.child.kill().await?;
        Ok(())
    }

    /// Returns an error if the client has ended by itself.
    pub fn runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("a client failed: {status}"),
        }
    }

    /// Tells the client to close, and waits until it has. Returns its history.
    pub async fn close(mut self) -> Result<PathBuf> {
        drop(self.child.stdin.take());
        let ended = timeout(HANGS, self.child.wait()).await;
        let status = ended.context("a client does not close")??;
        anyhow::ensure!(status.success(), "a client failed: {status}");
        Ok(self.history)
    }
}

/// The task of this process; `None` if it is not a client.
pub fn task() -> Option<Result<Task>> {
    let task = env::var(TASK).ok()?;
    Some(serde_json::from_str(&task).context("the task of a client"))
}

/// Works on a task until the input ends.
pub async fn work(task: Task) -> Result<()> {
    // With this, a stopped process also ends together with the process that started it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let recorder = Recorder::to_file(Clock::of_this_machine(), Path::new(&task.history))?;
    tracing::subscriber::set_global_default(Stays::of(recorder.clone()))?;
    let ahead = TimeDelta::minutes(task.clock.into());
    let store = Arc::new(Broken::new(task.store().await?, task.wrong, ahead));
    let store = Recording::new(store, recorder.clone(), ServerClock::OfThisMachine);
    let leases = Leases::builder(store)
        .call_timeout(task.pace.call_timeout)
        .build();
    let documents = Documents::of(&task).await?;
    let mut workers = JoinSet::new();
    for number in 0..task.workers {
        let worker = Worker {
            leases: leases.clone(),
            recorder: recorder.clone(),
            account: Account::at(&task.ledger).await?,
            documents: documents.clone(),
            random: Rng::with_seed(task.seed * task.workers + number),
            role: Role::of(number),
            client: task.client,
            ttl: task.pace.ttl,
            dawdles: task.dawdles,
        };
        workers.spawn(worker.work());
    }
    let (mut end, mut nothing) = (tokio::io::stdin(), [0]);
    tokio::select! {
        _ = end.read(&mut nothing) => {}
        Some(ended) = workers.join_next() => ended??,
    }
    workers.shutdown().await;
    leases.close().await;
    Ok(())
}
