//! The network between one client and the server: a TCP proxy that is slow, loses answers, cuts
//! connections, or passes nothing on for a while.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::sleep,
};

/// Between two looks at whether the weather is better.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Clone)]
pub struct Weather {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// By how many milliseconds answers are late.
    late: AtomicU64,
    /// How many of a hundred answers are lost, with their connection.
    lost: AtomicU32,
    /// Nothing passes, and nothing is lost.
    dark: AtomicBool,
    cuts: watch::Sender<()>,
}

impl Weather {
    /// Fair weather to this server, which may come and go.
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let weather = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::new(State {
                late: AtomicU64::new(0),
                lost: AtomicU32::new(0),
                dark: AtomicBool::new(false),
                cuts: watch::Sender::new(()),
            }),
        };
        let accepting = weather.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(accepting.clone().pass(client, server.clone()));
            }
        });
        weather
    }

    pub fn is_late(&self, by: Duration) {
        self.state.late.store(by.as_millis() as u64, Relaxed);
    }

    pub fn loses(&self, percent: u32) {
        self.state.lost.store(percent, Relaxed);
    }

    pub fn is_dark(&self, dark: bool) {
        self.state.dark.store(dark, Relaxed);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.state.cuts.send_replace(());
    }

    pub fn is_fair(&self) {
        self.is_late(Duration::ZERO);
        self.loses(0);
        self.is_dark(false);
    }

    async fn pass(self, client: TcpStream, server: String) {
        let mut cuts = self.state.cuts.subscribe();
        let both = async {
            self.daylight().await;
            let server = TcpStream::connect(server).await?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            let ((requests, to_client), (answers, to_server)) =
                (client.into_split(), server.into_split());
            tokio::select! {
                ended = self.pump(requests, to_server, false) => ended,
                ended = self.pump(answers, to_client, true) => ended,
            }
        };
        tokio::select! {
            // Either side may end the connection at any time.
            _ = both => {}
            _ = cuts.changed() => {}
        }
    }

    async fn pump(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        answers: bool,
    ) -> io::Result<()> {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut bytes).await?;
            if read == 0 {
                return Ok(());
            }
            if answers {
                if fastrand::u32(..100) < self.state.lost.load(Relaxed) {
                    return Ok(());
                }
                sleep(Duration::from_millis(self.state.late.load(Relaxed))).await;
            }
            self.daylight().await;
            to.write_all(&bytes[..read]).await?;
        }
    }

    async fn daylight(&self) {
        while self.state.dark.load(Relaxed) {
            sleep(LOOK).await;
        }
    }
}
