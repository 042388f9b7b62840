//! The weather between two parties, which is the state of the network between them: it can be slow, lose answers, cut
//! connections, or pass nothing on for a while.

use std::{io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    net::{TcpStream, UnixStream},
    sync::watch,
    time::{Instant, sleep},
};

/// The pause between two checks whether the weather is better.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Clone, Default)]
pub struct Weather(Arc<State>);

#[derive(Default)]
struct State {
    /// The delay from one party to the other, also in good weather.
    distance: Mutex<Duration>,
    bad: Mutex<Bad>,
    cuts: watch::Sender<()>,
}

/// What is wrong with the network, and until when.
#[derive(Clone, Copy, Default)]
struct Bad {
    /// How late answers are.
    late: Option<(Duration, Instant)>,
    /// The percentage of answers that are lost, together with their connection.
    lost: Option<(u32, Instant)>,
    /// Nothing passes, but nothing is lost.
    dark: Option<Instant>,
}

impl Weather {
    pub fn is_late(&self, by: Duration, lasts: Duration) {
        self.0.bad.lock().late = Some((by, Instant::now() + lasts));
    }

    pub fn loses(&self, percent: u32, lasts: Duration) {
        self.0.bad.lock().lost = Some((percent, Instant::now() + lasts));
    }

    /// Delays everything by this long, in each direction.
    pub fn set_distance(&self, by: Duration) {
        *self.0.distance.lock() = by;
    }

    /// Passes nothing on for this long. A longer darkness is not shortened.
    pub fn is_dark(&self, lasts: Duration) {
        let mut bad = self.0.bad.lock();
        bad.dark = bad.dark.max(Some(Instant::now() + lasts));
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.0.cuts.send_replace(());
    }

    pub fn is_fair(&self) {
        *self.0.bad.lock() = Bad::default();
    }

    /// Connects the client with the first of these servers that is up.
    pub async fn pass(self, client: TcpStream, targets: Vec<String>, altered: Altered) {
        let mut cuts = self.0.cuts.subscribe();
        tokio::select! {
            // Either side may end the connection at any time.
            _ = self.connect(client, targets, altered) => {}
            _ = cuts.changed() => {}
        }
    }

    async fn connect(
        &self,
        client: TcpStream,
        mut targets: Vec<String>,
        altered: Altered,
    ) -> io::Result<()> {
        self.daylight().await;
        client.set_nodelay(true)?;
        fastrand::shuffle(&mut targets);
        for target in targets {
            if target.starts_with('/') {
                if let Ok(server) = UnixStream::connect(target).await {
                    return self.both(client, server, altered).await;
                }
            } else if let Ok(server) = TcpStream::connect(target).await {
                server.set_nodelay(true)?;
                return self.both(client, server, altered).await;
            }
        }
        Ok(())
    }

    async fn both<S>(&self, client: TcpStream, server: S, altered: Altered) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite,
    {
        let ((requests, to_client), (answers, to_server)) = (split(client), split(server));
        tokio::select! {
            ended = self.requests(requests, to_server, altered) => ended,
            ended = self.answers(answers, to_client) => ended,
        }
    }

    async fn requests(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        altered: Altered,
    ) -> io::Result<()> {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut bytes).await.unwrap_or(0);
            if read == 0 {
                // The end of a connection is also held back.
                self.daylight().await;
                return Ok(());
            }
            altered.alter(&mut bytes[..read]);
            self.distance().await;
            self.daylight().await;
            to.write_all(&bytes[..read]).await?;
        }
    }

    async fn answers(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut bytes).await.unwrap_or(0);
            if read == 0 || fastrand::u32(..100) < self.lost() {
                self.daylight().await;
                return Ok(());
            }
            sleep(self.late()).await;
            self.distance().await;
            self.daylight().await;
            to.write_all(&bytes[..read]).await?;
        }
    }

    fn late(&self) -> Duration {
        let late = self.0.bad.lock().late;
        still(late).unwrap_or_default()
    }

    fn lost(&self) -> u32 {
        let lost = self.0.bad.lock().lost;
        still(lost).unwrap_or_default()
    }

    async fn distance(&self) {
        let distance = *self.0.distance.lock();
        if !distance.is_zero() {
            sleep(distance).await;
        }
    }

    async fn daylight(&self) {
        // This checks repeatedly, because the darkness may be ended early.
        while self.0.bad.lock().dark > Some(Instant::now()) {
            sleep(LOOK).await;
        }
    }
}

fn still<T>(bad: Option<(T, Instant)>) -> Option<T> {
    bad.filter(|(_, until)| Instant::now() < *until)
        .map(|(what, _)| what)
}

/// How a write of a MongoDB client is altered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Altered {
    #[default]
    Nothing,
    /// A write with the write concern `majority` becomes one that a single member acknowledges.
    MajorityToOne,
    /// A write that waits for the journal becomes one that does not wait.
    Unjournaled,
}

/// The BSON string `w`, and a replacement of the same length.
const MAJORITY: &[u8] = b"\x02w\0\x09\0\0\0majority\0";
const JUST_ONE: &[u8] = b"\x02w\0\x09\0\0\0just_one\0";
/// The BSON boolean `j`, and its opposite.
const JOURNALED: &[u8] = b"\x08j\0\x01";
const UNJOURNALED: &[u8] = b"\x08j\0\0";

impl Altered {
    fn alter(self, bytes: &mut [u8]) {
        let (from, to) = match self {
            Self::Nothing => return,
            Self::MajorityToOne => (MAJORITY, JUST_ONE),
            Self::Unjournaled => (JOURNALED, UNJOURNALED),
        };
        for at in 0..bytes.len().saturating_sub(from.len() - 1) {
            if bytes[at..].starts_with(from) {
                bytes[at..at + to.len()].copy_from_slice(to);
            }
        }
    }
}

#[test]
fn what_is_sent_is_altered() {
    let concern = |w, j| mongodb::bson::doc! { "writeConcern": { "w": w, "j": j, "wtimeout": 5 } };
    let alter = |altered: Altered| {
        let mut bytes = mongodb::bson::to_vec(&concern("majority", true)).unwrap();
        altered.alter(&mut bytes);
        mongodb::bson::from_slice::<mongodb::bson::Document>(&bytes).unwrap()
    };
    assert_eq!(alter(Altered::Nothing), concern("majority", true));
    assert_eq!(alter(Altered::MajorityToOne), concern("just_one", true));
    assert_eq!(alter(Altered::Unjournaled), concern("majority", false));
}
