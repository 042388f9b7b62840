//! Finds a real engine: at an address in the environment, or among those that the run shares, or in a new container, or
//! as a new process.
//!
//! A test that gets no engine fails. No test is skipped.

pub mod shared;

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::OnceLock,
    thread,
    time::Duration,
};

use elasticsearch::{
    Elasticsearch,
    http::{Method, headers::HeaderMap, transport::Transport},
};
use mongodb::bson::doc;
use serde::Deserialize;
use testcontainers::{
    ContainerAsync, ContainerRequest, CopyTargetOptions, GenericImage, ImageExt,
    core::{IntoContainerPort, WaitFor},
    runners::AsyncRunner,
};

use crate::{faketime, project};

/// An engine, named as in `scripts/engine list` and in `testcontainers.toml`.
#[derive(Clone, Copy, Debug)]
pub enum Engine {
    /// A standalone MongoDB. It is quick, and enough for most tests.
    MongoDb,
    /// An alpha of MongoDB 9.0: standalone, with the expression `$currentDate`.
    MongoDbAlpha,
    /// A complete MongoDB replica set of one member, with TTL deletion and an oplog.
    MongoDbReplicaSet,
    /// A sharded cluster with two routers. The clock of the second router is a minute ahead.
    MongoDbSharded,
    /// A MongoDB with accounts. Its address has the name and password of the superuser.
    MongoDbSecured,
    /// Elasticsearch without accounts.
    Elasticsearch,
    /// Elasticsearch with accounts. Its address has the name and password of the superuser.
    ElasticsearchSecured,
    /// OpenSearch without accounts.
    OpenSearch,
    /// OpenSearch with accounts. Its address has the name and password of the superuser.
    OpenSearchSecured,
}

/// A local process that ends when this is dropped.
pub struct OwnEngine {
    /// Where it is.
    pub address: String,
    process: Child,
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

impl Engine {
    const ALL: [Self; 9] = [
        Self::MongoDb,
        Self::MongoDbAlpha,
        Self::MongoDbReplicaSet,
        Self::MongoDbSharded,
        Self::MongoDbSecured,
        Self::Elasticsearch,
        Self::ElasticsearchSecured,
        Self::OpenSearch,
        Self::OpenSearchSecured,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::MongoDb => "mongodb",
            Self::MongoDbAlpha => "mongodb-alpha",
            Self::MongoDbReplicaSet => "mongodb-replset",
            Self::MongoDbSharded => "mongodb-sharded",
            Self::MongoDbSecured => "mongodb-secured",
            Self::Elasticsearch => "elasticsearch",
            Self::ElasticsearchSecured => "elasticsearch-secured",
            Self::OpenSearch => "opensearch",
            Self::OpenSearchSecured => "opensearch-secured",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::MongoDb => "MONGODB_URI",
            Self::MongoDbAlpha => "MONGODB_ALPHA_URI",
            Self::MongoDbReplicaSet => "MONGODB_REPLSET_URI",
            Self::MongoDbSharded => "MONGODB_SHARDED_URI",
            Self::MongoDbSecured => "MONGODB_SECURED_URI",
            Self::Elasticsearch => "ELASTICSEARCH_URL",
            Self::ElasticsearchSecured => "ELASTICSEARCH_SECURED_URL",
            Self::OpenSearch => "OPENSEARCH_URL",
            Self::OpenSearchSecured => "OPENSEARCH_SECURED_URL",
        }
    }

    /// The address of this engine, which all tests of this process share.
    pub fn address(self) -> String {
        match self.found(|| shared::ask(self).unwrap_or_else(|| self.find())) {
            Ok(address) => {
                self.count_test();
                address
            }
            Err(problem) => panic!(
                "no {name} engine for the tests: {problem}\n\
                 Set {variable} to the address of one, or start a Docker daemon, or see what \
                 `scripts/engine run {name}` says.",
                name = self.name(),
                variable = self.variable(),
            ),
        }
    }

    /// What was found for this engine. Each process looks only once.
    fn found(self, look: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
        static FOUND: [OnceLock<Result<String, String>>; Engine::ALL.len()] =
            [const { OnceLock::new() }; Engine::ALL.len()];
        let found = FOUND[self as usize].get_or_init(|| match env::var(self.variable()) {
            Ok(address) => Ok(address),
            Err(_) => look(),
        });
        found.clone()
    }

    fn find(self) -> Result<String, String> {
        // A cluster needs more than one container, no image has a router with another clock, and no image has an alpha.
        // OpenSearch with accounts was tried as a process only.
        let has_image = !matches!(
            self,
            Self::MongoDbSharded | Self::MongoDbAlpha | Self::OpenSearchSecured
        );
        if has_image && docker_is_reachable() {
            return self.container();
        }
        self.process()
    }

    /// A new engine with a clock of its own, which shows the time off by what this file says: `+5s`, for example. It ends
    /// when this is dropped: a server whose clock has stepped may wait for times without sleeping.
    pub fn with_clock(self, off: &Path) -> OwnEngine {
        self.count_test();
        self.start(faketime::by_file(off)).unwrap()
    }

    /// A local process, which ends when this process ends, in whatever way.
    fn process(self) -> Result<String, String> {
        let engine = keep(self.start([])?);
        Ok(engine.address.clone())
    }

    /// A local process, by `scripts/engine`. It ends when the pipe to its standard input is closed.
    fn start<const N: usize>(self, envs: [(&str, String); N]) -> Result<OwnEngine, String> {
        let script = project().join("scripts/engine");
        let mut process = Command::new(&script)
            .args(["run", self.name()])
            .envs(envs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} does not start: {error}", script.display()))?;
        let output = process.stdout.take().ok_or("its output is not there")?;
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .map_err(|error| error.to_string())?;
        let address = line.trim_end().strip_prefix("ready ");
        let address = address.ok_or_else(|| "it did not start, see its messages above".to_owned());
        Ok(OwnEngine {
            address: address?.to_owned(),
            process,
        })
    }

    /// A container of the image that `testcontainers.toml` pins.
    fn container(self) -> Result<String, String> {
        let path = project().join("testcontainers.toml");
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        let image = toml::from_str::<toml::Table>(&text)
            .map_err(|error| error.to_string())?
            .remove(self.name())
            .ok_or_else(|| format!("{} has no [{}]", path.display(), self.name()))?
            .try_into::<PinnedImage>()
            .map_err(|error| error.to_string())?;
        // It needs a runtime of its own, because the runtimes of tests end with their tests.
        let start = thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
            let address = runtime.block_on(async {
                let container = image.start().await.map_err(|error| error.to_string())?;
                self.set_up(container, &image)
                    .await
                    .map_err(|error| error.to_string())
            });
            // The client inside the container's handle goes on using the runtime.
            std::mem::forget(runtime);
            address
        });
        match start.join() {
            Ok(Ok(address)) => Ok(address),
            Ok(Err(problem)) => Err(format!("its container did not start: {problem}")),
            Err(_) => Err("its container did not start".to_owned()),
        }
    }

    async fn set_up(
        self,
        container: ContainerAsync<GenericImage>,
        image: &PinnedImage,
    ) -> anyhow::Result<String> {
        let port = container.get_host_port_ipv4(image.port.tcp()).await?;
        // The port is the one on IPv4. On IPv6 the same number may belong to another container.
        let host = container.get_host().await?.to_string();
        let host = host.replace("localhost", "127.0.0.1");
        remove_at_exit(container.id())?;
        std::mem::forget(container);
        Ok(match self {
            Self::MongoDb | Self::MongoDbAlpha | Self::MongoDbSharded => {
                format!("mongodb://{host}:{port}/?directConnection=true")
            }
            Self::MongoDbReplicaSet => {
                let address = format!("mongodb://{host}:{port}/?directConnection=true");
                initiate_replica_set(&address).await?;
                address
            }
            Self::MongoDbSecured => {
                let key = image.files.values().next().map_or("", String::as_str);
                let address =
                    |user| format!("mongodb://{user}:{key}@{host}:{port}/?directConnection=true");
                // A client that knows the key may do everything, even before there are users.
                let member = address("__system") + "&authSource=local";
                initiate_replica_set(&member).await?;
                let superuser = doc! { "createUser": "leasehold", "pwd": key, "roles": ["root"] };
                let client = mongodb::Client::with_uri_str(member).await?;
                client.database("admin").run_command(superuser).await?;
                address("leasehold") + "&authSource=admin"
            }
            Self::Elasticsearch | Self::OpenSearch | Self::OpenSearchSecured => {
                let address = format!("http://{host}:{port}");
                await_search_engine(&address).await?;
                address
            }
            Self::ElasticsearchSecured => {
                let password = image.env.get("ELASTIC_PASSWORD");
                let password = password.map_or("", String::as_str);
                let address = format!("http://elastic:{password}@{host}:{port}");
                await_search_engine(&address).await?;
                address
            }
        })
    }

    /// Records which test asked for this engine, for the count that `scripts/test` shows.
    fn count_test(self) {
        let Ok(path) = env::var("LEASEHOLD_ENGINE_LOG") else {
            return;
        };
        let binary = env::current_exe().unwrap_or_default();
        let test = thread::current().name().unwrap_or("unnamed").to_owned();
        let line = format!("{}\t{}\t{test}\n", self.name(), binary.display());
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut log| log.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("cannot write to {path}: {error}"));
    }
}

#[derive(Deserialize)]
struct PinnedImage {
    name: String,
    tag: String,
    port: u16,
    ready: String,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The contents of files by their paths. Only their owner can read the files.
    #[serde(default)]
    files: BTreeMap<String, String>,
}

impl PinnedImage {
    async fn start(
        &self,
    ) -> Result<ContainerAsync<GenericImage>, testcontainers::TestcontainersError> {
        let image = GenericImage::new(&self.name, &self.tag)
            .with_exposed_port(self.port.tcp())
            .with_wait_for(WaitFor::message_on_stdout(&self.ready))
            .with_cmd(self.command.clone());
        let with_variable = |image: ContainerRequest<_>, (name, value): (&String, &String)| {
            image.with_env_var(name, value)
        };
        let with_file = |image: ContainerRequest<_>, (path, text): (&String, &String)| {
            let target = CopyTargetOptions::new(path).with_mode(0o600);
            image.with_copy_to(target, text.clone().into_bytes())
        };
        let image = self.env.iter().fold(image, with_variable);
        self.files.iter().fold(image, with_file).start().await
    }
}

/// Makes a server the only member of its replica set, and waits until it takes writes.
async fn initiate_replica_set(address: &str) -> anyhow::Result<()> {
    let admin = mongodb::Client::with_uri_str(address)
        .await?
        .database("admin");
    let members = doc! { "_id": "rs0", "members": [{ "_id": 0, "host": "localhost:27017" }] };
    admin
        .run_command(doc! { "replSetInitiate": members })
        .await?;
    loop {
        let hello = admin.run_command(doc! { "hello": 1 }).await?;
        if hello.get_bool("isWritablePrimary") == Ok(true) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a search engine takes writes. That is a moment after it says that it has started.
async fn await_search_engine(address: &str) -> anyhow::Result<()> {
    let client = Elasticsearch::new(Transport::single_node(address)?);
    let health = "_cluster/health?wait_for_status=yellow&timeout=60s";
    client
        .transport()
        .send(
            Method::Get,
            health,
            HeaderMap::new(),
            None::<&()>,
            None::<String>,
            None,
        )
        .await?
        .error_for_status_code()?;
    Ok(())
}

fn docker_is_reachable() -> bool {
    env::var_os("DOCKER_HOST").is_some() || UnixStream::connect("/var/run/docker.sock").is_ok()
}

/// A container outlives the process that started it. So a shell removes it: the shell waits for the end of its input,
/// which comes with the end of this process.
fn remove_at_exit(container: &str) -> anyhow::Result<()> {
    let script = format!("cat >/dev/null; docker rm --force --volumes {container} >/dev/null");
    let shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .spawn()?;
    keep(shell);
    Ok(())
}

/// Keeps an engine, or another child, and the pipe to its standard input, until this process ends.
fn keep<T>(child: T) -> &'static mut T {
    Box::leak(Box::new(child))
}
