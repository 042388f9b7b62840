//! The data that the locks protect: a number for each key, which a holder reads, and writes back increased by one. The
//! ledger accepts a write only with the greatest fence that was shown for the key. It does not check leases.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::broken::Wrong;

#[derive(Clone, Default)]
pub struct Ledger {
    accounts: Arc<Mutex<Accounts>>,
    /// Whether the ledger accepts every write.
    blind: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Accounts {
    numbers: HashMap<String, (i64, u64)>,
    pub written: u64,
    /// Refused writes of holders whose key was taken over.
    pub refused: u64,
    /// Writes that undid another write.
    pub lost: u64,
}

impl Ledger {
    /// A new ledger for this experiment.
    pub fn of(wrong: Wrong) -> Self {
        Self {
            blind: wrong == Wrong::LooksAtNoFence,
            ..Self::default()
        }
    }

    /// Shows the fence and reads the number; `None` if a greater fence was shown before.
    pub fn read(&self, key: &str, fence: i64) -> Option<u64> {
        let mut accounts = self.accounts.lock();
        let (shown, number) = accounts.numbers.entry(key.to_owned()).or_default();
        if fence < *shown && !self.blind {
            accounts.refused += 1;
            return None;
        }
        *shown = fence;
        Some(*number)
    }

    /// Writes the number, and returns whether it was accepted.
    pub fn write(&self, key: &str, fence: i64, value: u64) -> bool {
        let mut accounts = self.accounts.lock();
        let (shown, number) = accounts.numbers.entry(key.to_owned()).or_default();
        if fence != *shown && !self.blind {
            accounts.refused += 1;
            return false;
        }
        let lost = value != *number + 1;
        *number = value;
        accounts.lost += u64::from(lost);
        accounts.written += 1;
        true
    }

    pub fn accounts(&self) -> Accounts {
        self.accounts.lock().clone()
    }

    /// Serves the ledger to other processes.
    pub async fn serve(&self) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let ledger = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let ledger = ledger.clone();
                // A client may be killed at any time.
                tokio::spawn(async move { ledger.answer(stream).await });
            }
        });
        Ok(address)
    }

    async fn answer(&self, stream: TcpStream) -> Result<()> {
        let (requests, mut answers) = stream.into_split();
        let mut requests = BufReader::new(requests).lines();
        while let Some(request) = requests.next_line().await? {
            let answer = match *request.split(' ').collect::<Vec<_>>() {
                ["read", key, fence] => match self.read(key, fence.parse()?) {
                    Some(number) => number.to_string(),
                    None => "refused".to_owned(),
                },
                ["write", key, fence, value] => {
                    self.write(key, fence.parse()?, value.parse()?).to_string()
                }
                _ => bail!("no request: {request:?}"),
            };
            answers.write_all(format!("{answer}\n").as_bytes()).await?;
        }
        Ok(())
    }
}

/// A worker's access to the ledger, in its own process or in another one.
pub enum Account {
    Here(Ledger),
    There(Box<BufReader<TcpStream>>),
}

impl Account {
    pub async fn at(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::There(Box::new(BufReader::new(stream))))
    }

    pub async fn read(&mut self, key: &str, fence: i64) -> Result<Option<u64>> {
        match self {
            Self::Here(ledger) => Ok(ledger.read(key, fence)),
            Self::There(stream) => {
                let answer = ask(stream, format!("read {key} {fence}\n")).await?;
                Ok(answer.parse().ok())
            }
        }
    }

    pub async fn write(&mut self, key: &str, fence: i64, value: u64) -> Result<bool> {
        match self {
            Self::Here(ledger) => Ok(ledger.write(key, fence, value)),
            Self::There(stream) => {
                let answer = ask(stream, format!("write {key} {fence} {value}\n")).await?;
                Ok(answer == "true")
            }
        }
    }
}

async fn ask(stream: &mut BufReader<TcpStream>, request: String) -> Result<String> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    let read = stream.read_line(&mut answer).await?;
    (read > 0).then_some(()).context("the ledger is gone")?;
    Ok(answer.trim_end().to_owned())
}
