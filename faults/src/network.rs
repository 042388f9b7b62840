//! The network of a run: proxies between clients and servers, and between servers. Each client, and each
//! pair of servers, has a weather of its own. Where all of them come to one port, because servers tell
//! each other's addresses, a proxy knows whose connection it has by the process at the other end.

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

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    Client(usize),
    Server(usize),
    Laboratory,
}

/// How often a connection is looked for in what the system tells of all of them.
const LOOKS: u32 = 5;

#[derive(Clone, Default)]
pub struct Network(Arc<State>);

#[derive(Default)]
struct State {
    /// By the process, or an ancestor of it.
    parties: Mutex<BTreeMap<i32, Party>>,
    /// Processes that have connected.
    connected: Mutex<BTreeSet<i32>>,
    clients: Mutex<BTreeMap<usize, Weather>>,
    between: Mutex<BTreeMap<(usize, usize), Weather>>,
    /// What is made of what clients send.
    altered: Mutex<Altered>,
}

impl Network {
    /// Who this process is, and every process that it starts.
    pub fn knows(&self, process: i32, party: Party) {
        self.0.parties.lock().insert(process, party);
    }

    /// What a client's connections go through.
    pub fn client(&self, client: usize) -> Weather {
        self.0.clients.lock().entry(client).or_default().clone()
    }

    /// What goes between two servers.
    fn between(&self, one: usize, other: usize) -> Weather {
        let pair = (one.min(other), one.max(other));
        self.0.between.lock().entry(pair).or_default().clone()
    }

    /// Nothing passes between this server and the others, of so many, for this long.
    pub fn cuts_off(&self, server: usize, servers: usize, lasts: Duration) {
        for other in (0..servers).filter(|other| *other != server) {
            self.between(server, other).is_dark(lasts);
        }
    }

    /// From now on what one of so many servers tells another takes this long.
    pub fn set_distance(&self, servers: usize, by: Duration) {
        for server in 0..servers {
            for other in 0..server {
                self.between(server, other).set_distance(by);
            }
        }
    }

    /// From now on every write of a client, on new connections, is altered like this. For
    /// [`Altered::MajorityToOne`] the set has to know the name `just_one`.
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

    /// Cuts every connection of a client, with what is on its way in it.
    pub fn cuts_clients(&self) {
        self.0.clients.lock().values().for_each(Weather::cut);
    }

    /// A port for one client that leads to any server that is there. The addresses are a host and a port,
    /// or the path of a Unix socket.
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

    /// A port that leads to that server, for clients and servers.
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
                    // Nobody's weather would be that of a client or a server. It may try again.
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
            // The laboratory itself, or a server that looks for itself.
            _ => Weather::default(),
        }
    }

    /// Who has a connection from this port to that one. `None` if it has ended.
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
