//! A proxy in front of a server, which can act as if the server were away: connections stay open, but no data passes.

use std::{io, net::Ipv4Addr};

use anyhow::{Result, bail};
use mongodb::options::ServerAddress;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
    task::JoinHandle,
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let (away, is_away) = watch::channel(false);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, is_away) = (server.clone(), is_away.clone());
                tokio::spawn(async move {
                    // Either side may end the connection.
                    let _ = pass(client, &server, is_away).await;
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
        forward(client_read, server_write, away.clone()),
        forward(server_read, client_write, away),
    )?;
    Ok(())
}

/// Forwards one direction. The end of the data is an error too, so that the other direction also ends.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut away: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // This fails if the proxy was dropped. The data is then forwarded.
        let _ = away.wait_for(|away| !away).await;
        to.write_all(&bytes[..count]).await?;
    }
}
