//! Stores whose requests are counted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::Result;
use elasticsearch::http::transport as elastic;
use leasehold::{ElasticsearchStore, OpenSearchStore, Store};
use mongodb::event::{EventHandler, command::CommandEvent};
use opensearch::http::transport as open;

use crate::{
    engines::{Engine, connect},
    ours::mongo_store,
};

/// The number of commands or requests so far.
pub type Count = Arc<AtomicU64>;

/// A handler that counts each command of a MongoDB client.
pub fn commands() -> (EventHandler<CommandEvent>, Count) {
    let commands = Count::default();
    let count = commands.clone();
    let handler = EventHandler::callback(move |event| {
        if let CommandEvent::Started(_) = event {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (handler, commands)
}

/// The same handler, with a second count of the commands that read a change stream.
pub fn commands_and_streams() -> (EventHandler<CommandEvent>, Count, Count) {
    let (commands, streams) = (Count::default(), Count::default());
    let (all, of_streams) = (commands.clone(), streams.clone());
    let handler = EventHandler::callback(move |event| {
        if let CommandEvent::Started(started) = event {
            all.fetch_add(1, Ordering::Relaxed);
            if ["aggregate", "getMore"].contains(&started.command_name.as_str()) {
                of_streams.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    (handler, commands, streams)
}

/// Counts requests: the clients ask the pool for a connection once for each request.
#[derive(Clone, Debug)]
struct Pool<C> {
    connection: C,
    requests: Count,
}

impl elastic::ConnectionPool for Pool<elastic::Connection> {
    fn next(&self) -> elastic::Connection {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.connection.clone()
    }
}

/// The OpenSearch client takes its pool by reference.
impl open::ConnectionPool for Pool<open::SingleNodeConnectionPool> {
    fn next(&self) -> open::Connection {
        self.requests.fetch_add(1, Ordering::Relaxed);
        open::ConnectionPool::next(&self.connection)
    }
}

/// Opens a store in this collection or behind this alias, set up as the documentation says. It has its own client.
pub async fn store(
    engine: Engine,
    address: &str,
    database: &str,
    place: &str,
) -> Result<(Arc<dyn Store>, Count)> {
    let requests = Count::default();
    let store: Arc<dyn Store> = match engine {
        Engine::Mongodb | Engine::Replset | Engine::Three => {
            let (handler, commands) = commands();
            let client = connect(address, database, Some(handler)).await?;
            let locks = client.database(database).collection(place);
            return Ok((Arc::new(mongo_store(&locks).await?), commands));
        }
        Engine::Elasticsearch => {
            let pool = Pool {
                connection: elastic::Connection::new(address.parse()?),
                requests: requests.clone(),
            };
            let transport = elastic::TransportBuilder::new(pool).build()?;
            let client = elasticsearch::Elasticsearch::new(transport);
            let store = ElasticsearchStore::new(client, place);
            store.prepare().await?;
            Arc::new(store)
        }
        Engine::Opensearch => {
            let pool = Pool {
                connection: open::SingleNodeConnectionPool::new(address.parse()?),
                requests: requests.clone(),
            };
            let transport = open::TransportBuilder::new(pool).build()?;
            let store = OpenSearchStore::new(opensearch::OpenSearch::new(transport), place);
            store.prepare().await?;
            Arc::new(store)
        }
    };
    Ok((store, requests))
}
