//! A proxy in front of a server, which can act as if the server were far off, or away: connections stay open, but no
//! data passes.

use std::{io, net::Ipv4Addr, time::Duration};

use anyhow::{Result, bail};
use mongodb::options::ServerAddress;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    net::{TcpListener, TcpStream, UnixStream},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
    try_join,
};

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Forwards all data, unless the server is away. It accepts no more connections after it was dropped.
pub struct Proxy {
    pub port: u16,
    away: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub async fn to(server: ServerAddress) -> Result<Self> {
        Self::with_delay(server, Duration::ZERO).await
    }

    /// A proxy that forwards all data with this delay, in either direction.
    pub async fn with_delay(server: ServerAddress, delay: Duration) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let (away, is_away) = watch::channel(false);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, is_away) = (server.clone(), is_away.clone());
                tokio::spawn(async move {
                    // Either side may end the connection.
                    let _ = pass(client, &server, delay, is_away).await;
                });
            }
        });
        Ok(Self {
            port,
            away,
            accepting,
        })
    }

    /// Makes the server be away, or be back. What is sent while it is away arrives afterwards.
    pub fn set_away(&self, away: bool) {
        self.away.send_replace(away);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(
    client: TcpStream,
    server: &ServerAddress,
    delay: Duration,
    away: watch::Receiver<bool>,
) -> Result<()> {
    let server: Box<dyn Stream> = match server {
        ServerAddress::Tcp { host, port } => {
            let server = TcpStream::connect((host.as_str(), port.unwrap_or(27_017))).await?;
            server.set_nodelay(true)?;
            Box::new(server)
        }
        ServerAddress::Unix { path } => Box::new(UnixStream::connect(path).await?),
        other => bail!("no way to {other}"),
    };
    client.set_nodelay(true)?;
    let (client_read, client_write) = split(client);
    let (server_read, server_write) = split(server);
    try_join!(
        forward(client_read, server_write, delay, away.clone()),
        forward(server_read, client_write, delay, away),
    )?;
    Ok(())
}

/// Forwards one direction. The end of the data is an error too, so that the other direction also ends.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
    mut away: watch::Receiver<bool>,
) -> io::Result<()> {
    let (sent, mut arriving) = mpsc::unbounded_channel();
    let reads = async {
        loop {
            let mut bytes = vec![0; 1 << 16];
            let count = from.read(&mut bytes).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes.truncate(count);
            // The receiver lives as long as this future.
            let _ = sent.send((Instant::now() + delay, bytes));
        }
    };
    let writes = async {
        while let Some((at, bytes)) = arriving.recv().await {
            if !delay.is_zero() {
                sleep_until(at).await;
            }
            // This fails if the proxy was dropped. The data is then forwarded.
            let _ = away.wait_for(|away| !away).await;
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    try_join!(reads, writes).map(|((), ())| ())
}
