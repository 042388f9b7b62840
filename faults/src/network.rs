//! The network of a run: proxies between clients and servers, and between servers. Each client, and each pair of
//! servers, has its own weather. Where clients and servers connect to one port, because servers tell clients the
//! addresses of other servers, a proxy identifies a connection by the process at its other end.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::spawn_blocking};

use crate::{
    sockets,
    weather::{Altered, Weather},
};

/// The sender of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    Client(usize),
    Server(usize),
    Laboratory,
}

/// How often a connection is looked up in the system's table of all connections.
const LOOKS: u32 = 5;

#[derive(Clone, Default)]
pub struct Network(Arc<State>);

#[derive(Default)]
struct State {
    /// The parties, by their process. Its descendants belong to the party too.
    parties: Mutex<BTreeMap<i32, Party>>,
    /// The processes that have connected.
    connected: Mutex<BTreeSet<i32>>,
    clients: Mutex<BTreeMap<usize, Weather>>,
    between: Mutex<BTreeMap<(usize, usize), Weather>>,
    /// How the writes of clients are altered.
    altered: Mutex<Altered>,
}

impl Network {
    /// Registers the party of a process and of all processes that it starts.
    pub fn knows(&self, process: i32, party: Party) {
        self.0.parties.lock().insert(process, party);
    }

    /// The weather of a client's connections.
    pub fn client(&self, client: usize) -> Weather {
        self.0.clients.lock().entry(client).or_default().clone()
    }

    /// The weather between two servers.
    fn between(&self, one: usize, other: usize) -> Weather {
        let pair = (one.min(other), one.max(other));
        self.0.between.lock().entry(pair).or_default().clone()
    }

    /// Passes nothing between this server and the others for this long. `servers` is the number of all servers.
    pub fn cuts_off(&self, server: usize, servers: usize, lasts: Duration) {
        for other in (0..servers).filter(|other| *other != server) {
            self.between(server, other).is_dark(lasts);
        }
    }

    /// Delays everything between two of this many servers from now on.
    pub fn set_distance(&self, servers: usize, by: Duration) {
        for server in 0..servers {
            for other in 0..server {
                self.between(server, other).set_distance(by);
            }
        }
    }

    /// Alters every write of a client on new connections from now on. For `Altered::MajorityToOne` the set must
    /// define the write concern `just_one`.
    pub fn alters(&self, altered: Altered) {
        *self.0.altered.lock() = altered;
    }

    pub fn is_fair(&self) {
        let clients = self.0.clients.lock();
        let between = self.0.between.lock();
        clients
            .values()
            .chain(between.values())
            .for_each(Weather::is_fair);
    }

    /// Cuts every connection of the clients, and drops the data on its way.
    pub fn cuts_clients(&self) {
        self.0.clients.lock().values().for_each(Weather::cut);
    }

    /// A port for one client that leads to any server that is up. Each target is a host and a port, or the path of a
    /// Unix socket.
    pub async fn port_of(&self, client: usize, targets: Vec<String>) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (network, weather) = (self.clone(), self.client(client));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let altered = *network.0.altered.lock();
                tokio::spawn(weather.clone().pass(stream, targets.clone(), altered));
            }
        });
        Ok(address)
    }

    /// A port for clients and servers that leads to this server.
    pub async fn port_to(&self, server: usize, target: String) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let network = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let (network, target) = (network.clone(), target.clone());
                tokio::spawn(async move {
                    let asked = network.clone();
                    let party =
                        spawn_blocking(move || asked.party(peer.port(), address.port())).await;
                    // An unknown process has no weather, so its connection is refused. It may try again.
                    let Some(party) = party.ok().flatten() else {
                        return;
                    };
                    let weather = network.weather(party, server);
                    let altered = match party {
                        Party::Client(_) => *network.0.altered.lock(),
                        _ => Altered::Nothing,
                    };
                    weather.pass(stream, vec![target], altered).await;
                });
            }
        });
        Ok(address)
    }

    fn weather(&self, from: Party, to: usize) -> Weather {
        match from {
            Party::Client(client) => self.client(client),
            Party::Server(from) if from != to => self.between(from, to),
            // The laboratory itself, or a server that connects to itself.
            _ => Weather::default(),
        }
    }

    /// The party with a connection from this port to that port; `None` if the connection has ended.
    fn party(&self, from: u16, to: u16) -> Option<Party> {
        let likely = self.0.connected.lock().clone();
        let looks = (0..LOOKS).map(|_| sockets::process_at(from, Some(to), &likely));
        let process = looks.flatten().next()?;
        let known = |process| match self.0.parties.lock().get(&process) {
            None if process == std::process::id() as i32 => Some(Party::Laboratory),
            party => party.copied(),
        };
        let ancestor = sockets::ancestor_in(process, |it| known(it).is_some())?;
        self.0.connected.lock().insert(process);
        known(ancestor)
    }
}
