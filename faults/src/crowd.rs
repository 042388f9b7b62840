//! The clients of a run, and their faults.

use std::path::PathBuf;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use rustix::process::Signal;
use tokio::time::sleep;

use crate::{
    client::{Client, Task},
    network::{Network, Party},
    schedule::{Mishap, WHILE},
    work::TTL,
};

pub struct Crowd {
    /// The program that the clients run.
    program: PathBuf,
    task: Task,
    network: Network,
    /// The folder with a history file for each client.
    histories: PathBuf,
    /// The address of the servers for each client, and how many minutes its clock is off.
    places: Vec<(String, i32)>,
    clients: Vec<Option<Client>>,
    /// How many clients were started.
    started: u64,
}

impl Crowd {
    /// Starts a client for each of these addresses and clocks.
    pub fn start(
        program: PathBuf,
        task: Task,
        network: &Network,
        histories: PathBuf,
        places: Vec<(String, i32)>,
    ) -> Result<Self> {
        let clients = places.len();
        let mut crowd = Self {
            program,
            task,
            network: network.clone(),
            histories,
            places,
            clients: (0..clients).map(|_| None).collect(),
            started: 0,
        };
        for client in 0..clients {
            crowd.start_one(client)?;
        }
        Ok(crowd)
    }

    fn start_one(&mut self, number: usize) -> Result<()> {
        self.started += 1;
        let (address, clock) = self.places[number].clone();
        let task = Task {
            address,
            client: number,
            clock,
            seed: self.task.seed * 1_000_000 + self.started,
            history: self.histories.join(self.started.to_string()),
            ..self.task.clone()
        };
        let client = Client::start(&self.program, &task)?;
        // The network must know the process before it connects.
        self.network.knows(client.process()?, Party::Client(number));
        self.clients[number] = Some(client);
        Ok(())
    }

    pub async fn suffer(&mut self, number: usize, mishap: Mishap) -> Result<()> {
        // A client that has ended by itself has found a violation.
        self.clients
            .iter_mut()
            .flatten()
            .try_for_each(Client::runs)?;
        let weather = self.network.client(number);
        let client = self.clients[number].as_ref().context("no client")?;
        match mishap {
            Mishap::Late(by) => weather.is_late(by, WHILE),
            Mishap::Lost(percent) => weather.loses(percent, WHILE),
            Mishap::Cut => weather.cut(),
            Mishap::Dark(time) => weather.is_dark(time),
            Mishap::Kill => {
                let killed = self.clients[number].take().context("no client")?;
                killed.kill().await?;
                self.start_one(number)?;
            }
            Mishap::Pause(time) => {
                // One client is paused at a time, so that the others continue. With slow servers and longer leases, the
                // pause is longer too.
                let slower = self.task.pace.ttl.div_duration_f64(TTL);
                client.signal(Signal::STOP)?;
                sleep(time.mul_f64(slower)).await;
                client.signal(Signal::CONT)?;
            }
        }
        Ok(())
    }

    /// Tells all clients to close at the same time. Returns the histories of those that have closed.
    pub async fn close(&mut self) -> Result<Vec<PathBuf>> {
        let clients = self.clients.iter_mut().filter_map(Option::take);
        try_join_all(clients.map(Client::close)).await
    }
}
