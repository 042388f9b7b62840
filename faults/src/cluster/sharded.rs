//! A sharded cluster: a config server and a shard, each a set of one member, and two routers. The clock of the second
//! router is ahead.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::{try_join, try_join_all};
use leasehold_tests::disguise::Disguise;
use mongodb::{
    Client,
    bson::{Document, doc},
    options::ClientOptions,
};
use tokio::time::sleep;

use super::{Cluster, Kind, OFTEN_WRITTEN_DOWN, until_done};
use crate::{HANGS, network::Network, server::Server};

/// The indexes among the servers.
const CONFIG: usize = 0;
pub(super) const SHARD: usize = 1;
pub(super) const ROUTERS: [usize; 2] = [2, 3];

/// How far the clock of the second router is ahead. This is longer than any lease lasts, because the clock of a router
/// must not matter.
const AHEAD: &str = "+1m";
/// How far it is ahead if the clock of a router matters and this must be caught: a few seconds are enough.
const LITTLE_AHEAD: &str = "+5s";

pub(super) async fn start(network: &Network) -> Result<Vec<Server>> {
    let member = |number, set: &str, part: &str| {
        let arguments = ["--set", set, part].into_iter().chain(OFTEN_WRITTEN_DOWN);
        let arguments = arguments.map(str::to_owned).collect();
        Server::start("mongodb-member", number, arguments, network)
    };
    let config = member(CONFIG, "config", "--configsvr");
    let shard = member(SHARD, "shard", "--shardsvr");
    let (config, shard) = try_join(config, shard).await?;
    try_join(
        make_set("config", &config, doc! { "configsvr": true }),
        make_set("shard", &shard, doc! {}),
    )
    .await?;
    let clocks = ROUTERS.into_iter().zip([None, Some(AHEAD)]);
    let routers = clocks.map(|(number, clock)| {
        Server::start("mongodb-router", number, router_of(&config, clock), network)
    });
    let routers = try_join_all(routers).await?;
    let add = doc! { "addShard": format!("shard/{}", shard.target()) };
    until_done(&routers[0].target(), add).await?;
    try_join_all(routers.iter().map(until_it_takes_writes)).await?;
    Ok([config, shard].into_iter().chain(routers).collect())
}

/// The arguments of a router.
fn router_of(config: &Server, clock: Option<&str>) -> Vec<String> {
    let clock = clock.into_iter().flat_map(|clock| ["--clock", clock]);
    [config.port()]
        .into_iter()
        .chain(clock)
        .map(str::to_owned)
        .collect()
}

async fn make_set(name: &str, member: &Server, more: Document) -> Result<()> {
    let host = member.target();
    let members = vec![doc! { "_id": 0, "host": &host }];
    let mut set = doc! { "_id": name, "members": members };
    set.extend(more);
    until_done(&host, doc! { "replSetInitiate": set }).await
}

/// Waits until a router accepts writes. It refuses commands until it knows its config server and its shard.
async fn until_it_takes_writes(router: &Server) -> Result<()> {
    let client = Client::with_uri_str(router.uri()).await?;
    let database = client.database("leasehold_test");
    let probe = database.collection::<Document>("probe");
    let end = Instant::now() + HANGS;
    while let Err(error) = probe.insert_one(doc! {}).await {
        anyhow::ensure!(Instant::now() < end, error);
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

impl Cluster {
    /// On a sharded cluster, makes all later addresses those of routers with this disguise. Only while the routers are
    /// disguised is the second router just a few seconds ahead.
    pub async fn disguise_routers(&mut self, disguise: Option<Disguise>) -> Result<()> {
        if self.kind != Kind::Sharded || self.disguise == disguise {
            return Ok(());
        }
        self.disguise = disguise;
        let clock = match disguise {
            Some(_) => LITTLE_AHEAD,
            None => AHEAD,
        };
        let arguments = router_of(&self.servers[CONFIG], Some(clock));
        let second = &mut self.servers[ROUTERS[1]];
        second.kill().await?;
        second.run_with(arguments).await
    }

    /// The address of the routers for a client. Each of the first two clients has one router, as if it ran on the
    /// client's machine, and all other clients have both. A disguised router looks like a separate deployment, so each
    /// client then has one router.
    pub(super) async fn address_of_routers(&self, client: usize, options: &str) -> Result<String> {
        let (one, is_disguised) = (ROUTERS[client % 2], self.disguise.is_some());
        let behind = match client {
            0 | 1 => vec![one],
            _ if is_disguised => vec![one],
            _ => ROUTERS.to_vec(),
        };
        let mut hosts = Vec::new();
        for router in behind {
            let target = self.target_of(router).await?;
            let port = self.network.port_of(client, vec![target]).await?;
            hosts.push(port.to_string());
        }
        let hosts = hosts.join(",");
        Ok(format!(
            "mongodb://{hosts}/?directConnection={is_disguised}&{options}"
        ))
    }

    async fn target_of(&self, router: usize) -> Result<String> {
        let router = &self.servers[router];
        Ok(match self.disguise {
            None => router.target(),
            Some(disguise) => {
                let address = disguise.of(&router.uri()).await;
                ClientOptions::parse(address).await?.hosts[0].to_string()
            }
        })
    }
}
