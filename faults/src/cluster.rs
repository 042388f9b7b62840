//! The servers of a run: a single one, three that replace each other, or a sharded cluster.

mod sharded;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use elasticsearch::{
    Elasticsearch,
    http::{Method, headers::HeaderMap, transport::Transport},
};
use futures::future::{join_all, try_join_all};
use leasehold_tests::disguise::Disguise;
use mongodb::{
    Client,
    bson::{Document, doc},
};
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::sleep;

use self::sharded::{ROUTERS, SHARD};
use crate::{
    HANGS,
    network::Network,
    schedule::Fault,
    server::{Server, free_port},
};

/// A restarted member repeats what the set did since the member's last checkpoint. The checkpoints come every few
/// seconds, because after a minute of work this recovery took most of another minute.
const OFTEN_WRITTEN_DOWN: [&str; 2] = ["--syncdelay", "5"];

pub struct Cluster {
    engine: &'static str,
    kind: Kind,
    servers: Vec<Server>,
    network: Network,
    /// The addresses by which the members of a set know each other.
    hosts: Vec<String>,
    /// What the routers pretend to be for the clients, if anything.
    disguise: Option<Disguise>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    One,
    MongoSet,
    ElasticsearchCluster,
    Sharded,
}

impl Cluster {
    pub async fn start(engine: &'static str, network: &Network) -> Result<Self> {
        let (kind, servers, hosts) = match engine {
            "mongodb-three" => {
                let start = |number| {
                    let arguments = OFTEN_WRITTEN_DOWN.map(str::to_owned).to_vec();
                    Server::start("mongodb-member", number, arguments, network)
                };
                let servers = try_join_all((0..3).map(start)).await?;
                let mut hosts = Vec::new();
                for (number, server) in servers.iter().enumerate() {
                    let port = network.port_to(number, server.target());
                    hosts.push(port.await?.to_string());
                }
                make_set(&hosts).await?;
                (Kind::MongoSet, servers, hosts)
            }
            "elasticsearch-three" => {
                let servers = elasticsearch_nodes(network).await?;
                (Kind::ElasticsearchCluster, servers, Vec::new())
            }
            "mongodb-sharded" => (Kind::Sharded, sharded::start(network).await?, Vec::new()),
            _ => {
                let server = Server::start(engine, 0, Vec::new(), network).await?;
                (Kind::One, vec![server], Vec::new())
            }
        };
        Ok(Self {
            engine,
            kind,
            servers,
            network: network.clone(),
            hosts,
            disguise: None,
        })
    }

    /// The number of servers.
    pub fn members(&self) -> usize {
        self.servers.len()
    }

    /// The address of the servers for this client, which gives up a call after this time.
    pub async fn address(&self, client: usize, call_timeout: Duration) -> Result<String> {
        // The driver's limit is shorter than the call timeout, so that the driver reports the reason. (The driver has
        // no limit for a connection to a server that is stopped.)
        let selection = call_timeout.mul_f64(0.9).as_millis();
        let options = format!("serverSelectionTimeoutMS={selection}&maxPoolSize=500");
        if self.kind == Kind::MongoSet {
            let hosts = self.hosts.join(",");
            return Ok(format!("mongodb://{hosts}/?replicaSet=rs0&{options}"));
        }
        if self.kind == Kind::Sharded {
            return self.address_of_routers(client, &options).await;
        }
        let targets = self.servers.iter().map(Server::target).collect();
        let port = self.network.port_of(client, targets).await?;
        Ok(match self.engine {
            "mongodb" | "mongodb-replset" => {
                format!("mongodb://{port}/?directConnection=true&{options}")
            }
            _ => format!("http://{port}"),
        })
    }

    /// Applies a fault until its end. On the search engines, `index` holds the locks.
    pub async fn suffer(&mut self, fault: Fault, index: &str) -> Result<()> {
        match fault {
            Fault::Kill(time) => {
                let server = self.first(index).await?;
                self.servers[server].kill().await?;
                sleep(time).await;
                self.servers[server].run().await?;
            }
            Fault::Pause(time) => {
                let server = self.first(index).await?;
                self.servers[server].signal(Signal::STOP)?;
                sleep(time).await;
                self.servers[server].signal(Signal::CONT)?;
            }
            Fault::CutOff(time) => {
                let server = self.first(index).await?;
                self.network.cuts_off(server, self.servers.len(), time);
                sleep(time).await;
            }
            Fault::KillRouter(router, time) => {
                let router = &mut self.servers[ROUTERS[router]];
                router.kill().await?;
                sleep(time).await;
                router.run().await?;
            }
            Fault::StepDown => {
                let step_down = doc! {
                    "replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5, "force": true,
                };
                let end = Instant::now() + HANGS;
                // The server may no longer be the primary when it gets the command.
                while let Err(error) = {
                    let server = self.first(index).await?;
                    admin(&self.hosts[server], step_down.clone()).await
                } {
                    anyhow::ensure!(Instant::now() < end, error);
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        Ok(())
    }

    /// Ends the servers.
    pub async fn stop(&mut self) {
        // A server that is down, or that cannot be killed, has ended already or ends with this process.
        join_all(self.servers.iter_mut().map(Server::kill)).await;
    }

    /// The server that accepts the writes: the only one, the primary of the set, the node with the primary shard, or
    /// the shard.
    async fn first(&self, index: &str) -> Result<usize> {
        let end = Instant::now() + HANGS;
        loop {
            let first = match self.kind {
                Kind::One => Ok(0),
                Kind::Sharded => Ok(SHARD),
                Kind::MongoSet => self.primary().await,
                Kind::ElasticsearchCluster => self.node_with_primary(index).await,
            };
            match first {
                Ok(first) => return Ok(first),
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => {}
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn primary(&self) -> Result<usize> {
        for (number, host) in self.hosts.iter().enumerate() {
            if let Ok(hello) = admin(host, doc! { "hello": 1 }).await
                && hello.get_bool("isWritablePrimary") == Ok(true)
            {
                return Ok(number);
            }
        }
        bail!("there is no primary")
    }

    async fn node_with_primary(&self, index: &str) -> Result<usize> {
        // Any node that is up knows this.
        let up = self.servers.iter().find(|server| server.is_up());
        let target = up.context("no node is up")?.target();
        let transport = Transport::single_node(&format!("http://{target}"))?;
        let path = format!("/_cat/shards/{index}");
        let query = [("format", "json"), ("h", "prirep,node")];
        let answer = Elasticsearch::new(transport)
            .transport()
            .send(
                Method::Get,
                &path,
                HeaderMap::new(),
                Some(&query),
                None::<()>,
                Some(Duration::from_secs(20)),
            )
            .await?;
        let shards: Value = answer.json().await?;
        let shards = shards.as_array().context("no shards")?;
        let primary = shards.iter().find(|shard| shard["prirep"] == "p");
        let node = primary.and_then(|shard| shard["node"].as_str());
        Ok(node.context("no primary shard")?.parse()?)
    }

    /// How many times a member rolled back writes that a majority did not have. `None` if there is no set.
    pub fn rollbacks(&self) -> Result<Option<usize>> {
        if self.kind != Kind::MongoSet {
            return Ok(None);
        }
        let mut rollbacks = 0;
        for server in &self.servers {
            rollbacks += server.log()?.matches("\"Rollback complete\"").count();
        }
        Ok(Some(rollbacks))
    }

    /// Waits until there are more [`rollbacks`](Self::rollbacks) than before, and returns their number.
    pub async fn rolls_back(&self, before: Option<usize>) -> Result<Option<usize>> {
        let end = Instant::now() + HANGS;
        loop {
            match self.rollbacks()? {
                rollbacks if rollbacks == before && Instant::now() < end => {
                    sleep(Duration::from_millis(200)).await;
                }
                rollbacks => return Ok(rollbacks),
            }
        }
    }
}

async fn admin(host: &str, command: Document) -> Result<Document> {
    let options = "directConnection=true&serverSelectionTimeoutMS=10000";
    let client = Client::with_uri_str(format!("mongodb://{host}/?{options}")).await?;
    Ok(client.database("admin").run_command(command).await?)
}

/// Sends a command until the server has carried it out. On a slow machine, some servers may not be up yet.
async fn until_done(host: &str, command: Document) -> Result<()> {
    let end = Instant::now() + HANGS;
    while let Err(error) = admin(host, command.clone()).await {
        if error.to_string().contains("already initialized") {
            break;
        }
        anyhow::ensure!(Instant::now() < end, error);
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Makes these members a set that soon notices a lost member, and that defines a write concern of its own.
async fn make_set(hosts: &[String]) -> Result<()> {
    let members: Vec<_> = (0i32..)
        .zip(hosts)
        .map(|(number, host)| {
            doc! { "_id": number, "host": host, "tags": { "member": number.to_string() } }
        })
        .collect();
    let settings = doc! {
        "electionTimeoutMillis": 2_000,
        "heartbeatIntervalMillis": 500,
        "getLastErrorModes": { "just_one": { "member": 1 } },
    };
    let set = doc! { "_id": "rs0", "members": members, "settings": settings };
    until_done(&hosts[0], doc! { "replSetInitiate": set }).await?;
    let uri = format!("mongodb://{}/?replicaSet=rs0", hosts.join(","));
    let note = doc! {
        "appendOplogNote": 1, "data": { "started": true }, "writeConcern": { "w": "majority" },
    };
    let client = Client::with_uri_str(uri).await?;
    client.database("admin").run_command(note).await?;
    Ok(())
}

/// Three nodes that reach each other through the network. Each node is named by its number.
async fn elasticsearch_nodes(network: &Network) -> Result<Vec<Server>> {
    let mut ports = Vec::new();
    for number in 0..3 {
        let port = free_port()?;
        let proxy = network.port_to(number, format!("127.0.0.1:{port}"));
        ports.push((port, proxy.await?));
    }
    let seeds: Vec<_> = ports.iter().map(|(_, proxy)| proxy.to_string()).collect();
    let seeds = seeds.join(",");
    let start = |(number, (port, proxy)): (usize, &(u16, std::net::SocketAddr))| {
        let settings = [
            format!("node.name={number}"),
            "cluster.name=leasehold".to_owned(),
            format!("transport.port={port}"),
            format!("transport.publish_port={}", proxy.port()),
            format!("discovery.seed_hosts={seeds}"),
            "cluster.initial_master_nodes=0,1,2".to_owned(),
            // The cluster should notice a lost node as soon as the other engines do.
            "cluster.fault_detection.follower_check.interval=500ms".to_owned(),
            "cluster.fault_detection.follower_check.timeout=1s".to_owned(),
            "cluster.fault_detection.leader_check.interval=500ms".to_owned(),
            "cluster.fault_detection.leader_check.timeout=1s".to_owned(),
        ];
        let arguments = settings.into_iter().flat_map(|it| ["-E".to_owned(), it]);
        Server::start("elasticsearch", number, arguments.collect(), network)
    };
    try_join_all(ports.iter().enumerate().map(start)).await
}
