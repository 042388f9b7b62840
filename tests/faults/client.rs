//! A process that takes leases, as an application does: the test binary again, with its task in the
//! environment.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use elasticsearch::{Elasticsearch, http::transport::Transport as ElasticsearchTransport};
use fastrand::Rng;
use leasehold::{ElasticsearchStore, Leases, MongoStore, OpenSearchStore, Store};
use mongodb::bson::Document;
use opensearch::{OpenSearch, http::transport::Transport as OpenSearchTransport};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

use super::{
    faketime,
    history::{Clock, Recorder},
    ledger::Account,
    work::{CALL_TIMEOUT, Worker},
};

const WORKERS: u64 = 12;
const TASK: &str = "LEASEHOLD_FAULTS_CLIENT";

/// What a client has to know.
#[derive(Clone, Debug)]
pub struct Task {
    /// The name of the engine.
    pub engine: String,
    pub address: String,
    /// Of the collection or alias.
    pub name: String,
    pub ledger: String,
    pub history: PathBuf,
    pub seed: u64,
}

impl Task {
    fn to_text(&self) -> String {
        let Self {
            engine,
            address,
            name,
            ledger,
            history,
            seed,
        } = self;
        format!(
            "{engine} {address} {name} {ledger} {seed} {}",
            history.display()
        )
    }

    fn from_text(text: &str) -> Result<Self> {
        let mut words = text.splitn(6, ' ').map(str::to_owned);
        let mut next = || words.next().context("a word is missing");
        Ok(Self {
            engine: next()?,
            address: next()?,
            name: next()?,
            ledger: next()?,
            seed: next()?.parse()?,
            history: next()?.into(),
        })
    }

    /// The store of the task, with a client of its own.
    pub async fn store(&self) -> Result<Arc<dyn Store>> {
        self.open(false).await
    }

    /// Sets the store up.
    pub async fn prepare(&self) -> Result<()> {
        self.open(true).await.map(drop)
    }

    async fn open(&self, prepares: bool) -> Result<Arc<dyn Store>> {
        Ok(match &*self.engine {
            "elasticsearch" => {
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

/// A client that runs.
pub struct Client {
    child: Child,
}

impl Client {
    /// Starts one whose clock is off by so many minutes.
    pub fn start(task: &Task, off: i32) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command
            .args(["--exact", "client::the_work_of_a_client", "--nocapture"])
            .env(TASK, task.to_text())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        if off != 0 {
            command.envs(faketime::minutes(off));
        }
        let child = command.spawn()?;
        Ok(Self { child })
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().context("a client has ended by itself")?;
        let pid = Pid::from_raw(pid.try_into()?).context("no process")?;
        kill_process(pid, signal)?;
        Ok(())
    }

    pub async fn kill(mut self) -> Result<()> {
        // It may have been stopped.
        self.child.kill().await?;
        Ok(())
    }

    /// Tells it to close, and waits until it has.
    pub async fn close(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let limit = Duration::from_secs(60);
        let ended = timeout(limit, self.child.wait()).await;
        let status = ended.context("a client does not close")??;
        anyhow::ensure!(status.success(), "a client failed: {status}");
        Ok(())
    }
}

/// Not a test of its own: what a started process does. Without a task there is nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_work_of_a_client() {
    if let Ok(task) = env::var(TASK) {
        work(Task::from_text(&task).unwrap()).await.unwrap();
    }
}

async fn work(task: Task) -> Result<()> {
    let recorder = Recorder::to_file(Clock::of_this_machine(), Path::new(&task.history))?;
    let leases = Leases::builder(task.store().await?)
        .call_timeout(CALL_TIMEOUT)
        .build();
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let worker = Worker {
            leases: leases.clone(),
            recorder: recorder.clone(),
            account: Account::at(&task.ledger).await?,
            random: Rng::with_seed(task.seed * WORKERS + number),
            contends: number == 0,
            // What is always waited for shows how soon it is granted again.
            dawdles: (number > 0).then_some(200),
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
