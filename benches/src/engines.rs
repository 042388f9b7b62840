//! The engines, whose addresses come from the environment.

use std::{env, time::Duration};

use anyhow::{Context, Result, bail};
use elasticsearch::http::{Method, headers::HeaderMap, transport::Transport};
use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc},
    event::{EventHandler, command::CommandEvent},
    options::{Acknowledgment, ClientOptions, WriteConcern},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    counted::{self, Count},
    cpu::Server,
    proxy::Proxy,
};

/// More connections than the tasks of all cases but the largest, in which 256 tasks share them.
const POOL: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    Mongodb,
    Replset,
    /// A replica set of three members, with a delay between the members.
    Three,
    Elasticsearch,
    Opensearch,
}

impl Engine {
    pub const ALL: [Self; 5] = [
        Self::Mongodb,
        Self::Replset,
        Self::Three,
        Self::Elasticsearch,
        Self::Opensearch,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Mongodb => "MongoDB",
            Self::Replset => "MongoDB replica set",
            Self::Three => "MongoDB three members",
            Self::Elasticsearch => "Elasticsearch",
            Self::Opensearch => "OpenSearch",
        }
    }

    /// The name in the results. It tells how far the members of the set are apart, if the fault laboratory says that.
    pub fn label(self) -> String {
        let name = self.name();
        match env::var("MONGODB_THREE_MILLIS") {
            Ok(millis) if self == Self::Three => format!("{name} {millis} ms apart"),
            _ => name.to_owned(),
        }
    }

    pub fn variable(self) -> &'static str {
        match self {
            Self::Mongodb => "MONGODB_URI",
            Self::Replset => "MONGODB_REPLSET_URI",
            Self::Three => "MONGODB_THREE_URI",
            Self::Elasticsearch => "ELASTICSEARCH_URL",
            Self::Opensearch => "OPENSEARCH_URL",
        }
    }

    pub fn address(self) -> Option<String> {
        env::var(self.variable())
            .ok()
            .filter(|text| !text.is_empty())
    }

    /// The version that the engine reports.
    pub async fn version(self) -> Result<String> {
        let address = self.address().context("no address")?;
        match self {
            Self::Mongodb | Self::Replset | Self::Three => {
                let client = Client::with_uri_str(address).await?;
                let admin = client.database("admin");
                let told = admin.run_command(doc! { "buildInfo": 1 }).await?;
                Ok(told.get_str("version")?.to_owned())
            }
            Self::Elasticsearch | Self::Opensearch => {
                let told = ask(&address, "/").await?;
                let version = told["version"]["number"].as_str();
                Ok(version.context("no version")?.to_owned())
            }
        }
    }

    /// The process of the server, if it runs on this machine.
    pub async fn server(self) -> Result<Option<Server>> {
        let address = self.address().context("no address")?;
        let is_here = ["127.0.0.1", "localhost", ".sock"];
        if !is_here.iter().any(|sign| address.contains(sign)) {
            return Ok(None);
        }
        let process = match self {
            Self::Mongodb | Self::Replset | Self::Three => {
                let client = Client::with_uri_str(address).await?;
                let admin = client.database("admin");
                let told = admin.run_command(doc! { "serverStatus": 1 }).await?;
                told.get_i64("pid").ok()
            }
            Self::Elasticsearch | Self::Opensearch => {
                let told = ask(&address, "/_nodes/process").await?;
                let nodes = told["nodes"].as_object().context("no nodes")?;
                let node = nodes.values().next().context("no node")?;
                node["process"]["id"].as_i64()
            }
        };
        let process = process.and_then(|number| u32::try_from(number).ok());
        let server = process.map(|process| Server { process });
        // The process id is useless if it is the one inside a container.
        Ok(server.filter(|server| server.used().is_some()))
    }

    pub fn is_mongodb(self) -> bool {
        matches!(self, Self::Mongodb | Self::Replset | Self::Three)
    }
}

async fn ask(address: &str, path: &str) -> Result<Value> {
    let transport = Transport::single_node(address)?;
    let (headers, body) = (HeaderMap::new(), None::<&str>);
    let told = transport
        .send(Method::Get, path, headers, None::<&()>, body, None)
        .await?;
    Ok(told.json().await?)
}

/// A separate MongoDB database for one case.
pub struct Mongo {
    pub engine: Engine,
    pub uri: String,
    pub client: Client,
    pub database: Database,
}

impl Mongo {
    pub async fn new(engine: Engine) -> Result<Self> {
        if !engine.is_mongodb() {
            bail!("{} is no MongoDB", engine.name());
        }
        let uri = engine.address().context("no address")?;
        let name = format!("leasehold_bench_{:08x}", fastrand::u32(..));
        let client = connect(&uri, &name, None).await?;
        let database = client.database(&name);
        Ok(Self {
            engine,
            uri,
            client,
            database,
        })
    }

    /// The same database, seen through a proxy that forwards all data with this delay, in either direction.
    pub async fn far_off(&self, delay: Duration) -> Result<(Self, Proxy)> {
        let server = ClientOptions::parse(&self.uri).await?.hosts;
        let server = server.into_iter().next().context("no server")?;
        let proxy = Proxy::with_delay(server, delay).await?;
        let uri = format!("mongodb://127.0.0.1:{}/?directConnection=true", proxy.port);
        let client = connect(&uri, self.database.name(), None).await?;
        let far_off = Self {
            engine: self.engine,
            database: client.database(self.database.name()),
            uri,
            client,
        };
        Ok((far_off, proxy))
    }

    /// A new collection, which nothing else uses.
    pub fn collection(&self, side: &str) -> Collection<Document> {
        let name = format!("{side}-{}", Uuid::new_v4().simple());
        self.database.collection(&name)
    }

    /// Another client of the same database, whose commands are counted.
    pub async fn counting(&self) -> Result<(Database, Count)> {
        let (handler, commands) = counted::commands();
        let client = connect(&self.uri, self.database.name(), Some(handler)).await?;
        Ok((client.database(self.database.name()), commands))
    }

    pub async fn clean_up(&self) -> Result<()> {
        Ok(self.database.drop().await?)
    }
}

/// The write concern for writes that survive a kill of the server. It asks for the journal explicitly, because a newer
/// standalone server does not wait for its journal with `w: "majority"`.
pub async fn durable(uri: &str) -> Result<WriteConcern> {
    let admin = Client::with_uri_str(uri).await?.database("admin");
    let hello = admin.run_command(doc! { "hello": 1 }).await?;
    let w = if hello.contains_key("setName") {
        Acknowledgment::Majority
    } else {
        Acknowledgment::Nodes(1)
    };
    Ok(WriteConcern::builder().w(w).journal(true).build())
}

/// Opens a client with the options that all sides share.
pub async fn connect(
    uri: &str,
    database: &str,
    handler: Option<EventHandler<CommandEvent>>,
) -> Result<Client> {
    let mut options = ClientOptions::parse(uri).await?;
    options.max_pool_size = Some(POOL);
    // Some peers use the write concern and the database of the client.
    options.write_concern = Some(durable(uri).await?);
    options.default_database = Some(database.to_owned());
    options.server_selection_timeout = Some(Duration::from_secs(10));
    options.command_event_handler = handler;
    Ok(Client::with_options(options)?)
}
