//! A server that answers nonsense: from the beginning, or in the place of an engine to which it passed everything on
//! before.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::sleep,
};

/// The reply to a request, which is the argument.
pub type Lie = Arc<dyn Fn(&[u8]) -> Reply + Send + Sync>;

#[derive(Clone, Debug)]
pub enum Reply {
    Says(Vec<u8>),
    /// Sends this, and closes the connection.
    SaysAndGoes(Vec<u8>),
    /// Sends this, and then a byte now and then, for ever.
    SaysSlowly(Vec<u8>),
    Nothing,
    /// The answer of the engine.
    Honest,
}

/// The same reply to every request.
pub fn always(reply: Reply) -> Lie {
    Arc::new(move |_: &[u8]| reply.clone())
}

#[derive(Clone)]
pub struct Liar {
    pub address: SocketAddr,
    lie: Arc<Mutex<Option<Lie>>>,
}

impl Liar {
    /// Lies from the beginning.
    pub async fn saying(lie: Lie) -> Self {
        Self::before(None, Some(lie)).await
    }

    /// Passes everything on to this server and back, until it is told to [lie](Self::lie).
    pub async fn to(server: String) -> Self {
        Self::before(Some(server), None).await
    }

    /// Lies from now on, to new and old clients.
    pub fn lie(&self, lie: Lie) {
        *self.lie.lock() = Some(lie);
    }

    /// Passes everything on again from now on.
    pub fn repent(&self) {
        *self.lie.lock() = None;
    }

    async fn before(server: Option<String>, lie: Option<Lie>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let liar = Self {
            address: listener.local_addr().unwrap(),
            lie: Arc::new(Mutex::new(lie)),
        };
        let accepting = liar.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (liar, server) = (accepting.clone(), server.clone());
                tokio::spawn(async move {
                    // Either side may end the connection at any time.
                    let _ = liar.talk(client, server).await;
                });
            }
        });
        liar
    }

    async fn talk(&self, mut client: TcpStream, server: Option<String>) -> io::Result<()> {
        let mut server = match server {
            Some(server) => Some(TcpStream::connect(server).await?),
            None => None,
        };
        let (mut asked, mut told) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        // Whether the server answers the latest request.
        let mut honest = true;
        loop {
            let read = match &mut server {
                None => client.read(&mut asked).await?,
                Some(server) => tokio::select! {
                    read = client.read(&mut asked) => read?,
                    read = server.read(&mut told) => {
                        let told = &told[..read?];
                        if told.is_empty() {
                            return Ok(());
                        }
                        if honest {
                            client.write_all(told).await?;
                        }
                        continue;
                    }
                },
            };
            if read == 0 {
                return Ok(());
            }
            let lie = self.lie.lock().clone();
            let reply = lie.map_or(Reply::Honest, |lie| lie(&asked[..read]));
            honest = matches!(reply, Reply::Honest);
            match reply {
                Reply::Honest => {
                    if let Some(server) = &mut server {
                        server.write_all(&asked[..read]).await?;
                    }
                }
                Reply::Says(text) => client.write_all(&text).await?,
                Reply::SaysAndGoes(text) => return client.write_all(&text).await,
                Reply::SaysSlowly(text) => {
                    client.write_all(&text).await?;
                    loop {
                        client.write_all(b" ").await?;
                        sleep(Duration::from_millis(20)).await;
                    }
                }
                Reply::Nothing => {}
            }
        }
    }
}
