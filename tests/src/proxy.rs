//! A TCP proxy that can lose or hold back requests, and also answers to requests that the server has carried out.
//!
//! A test names a request by a word that occurs anywhere in its bytes. Clients send one request after the other on a
//! connection, so everything that a client sends before an answer comes is one request.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    time::{sleep, timeout},
};

/// A limit that only ends a hang: whatever is waited for comes sooner.
const PATIENCE: Duration = Duration::from_secs(300);

/// Passes everything on, unless it is told otherwise.
#[derive(Clone)]
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// What will happen to the next request with the word.
    next: Vec<(&'static str, Fate)>,
    chaos: Option<Chaos>,
    cuts: usize,
    lost: usize,
    late: usize,
    seen: Vec<String>,
    /// Ends the connections whose answers were swallowed.
    hang_up: watch::Sender<()>,
}

/// What happens to a request.
enum Fate {
    Passed,
    RequestCut,
    RequestHeld(Hold),
    /// The request was held, and is with the server now.
    RequestLate,
    AnswerCut,
    AnswerSwallowed,
    AnswerHeld(Hold),
}

/// Loses a share of the answers to requests with one of the words.
struct Chaos {
    share: f64,
    random: fastrand::Rng,
    words: &'static [&'static str],
}

impl Chaos {
    fn fate(&mut self) -> Fate {
        if self.random.f64() >= self.share {
            Fate::Passed
        } else if self.random.bool() {
            Fate::AnswerCut
        } else {
            Fate::AnswerSwallowed
        }
    }
}

impl Proxy {
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::default(),
        };
        let accepting = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (proxy, server) = (accepting.clone(), server.clone());
                tokio::spawn(async move {
                    // Either side may end the connection at any time.
                    let _ = proxy.pass(client, server).await;
                });
            }
        });
        proxy
    }

    /// Cuts the connection of the next request with this word in it: the server carries the request out, and its answer
    /// is lost. If this is called twice, it happens to the next two requests. The same is true of the methods below.
    pub fn lose_the_answer_to(&self, word: &'static str) {
        self.next(word, Fate::AnswerCut);
    }

    /// Cuts the connection instead of passing on the next request with this word in it.
    pub fn lose_the_request(&self, word: &'static str) {
        self.next(word, Fate::RequestCut);
    }

    /// The server carries out the next request with this word in it, and the client gets no answer, nor any other on
    /// this connection, which stays open until the client closes it.
    pub fn swallow_the_answer_to(&self, word: &'static str) {
        self.next(word, Fate::AnswerSwallowed);
    }

    /// The server carries out the next request with this word in it. Its answer waits at the gate.
    pub fn hold_the_answer_to(&self, word: &'static str) -> Gate {
        let (gate, hold) = gate(word);
        self.next(word, Fate::AnswerHeld(hold));
        gate
    }

    /// The next request with this word in it waits at the gate. When the gate opens, the request is carried out, even
    /// if its client has gone.
    pub fn hold_the_request(&self, word: &'static str) -> Gate {
        let (gate, hold) = gate(word);
        self.next(word, Fate::RequestHeld(hold));
        gate
    }

    /// From now on this share of the answers to requests with one of these words is lost: cut or swallowed, each as
    /// often as the other.
    pub fn lose_share_of_answers(&self, share: f64, seed: u64, words: &'static [&'static str]) {
        self.state.lock().chaos = Some(Chaos {
            share,
            random: fastrand::Rng::with_seed(seed),
            words,
        });
    }

    /// Forgets everything that it was told. What was decided about requests under way still happens.
    pub fn behave(&self) {
        let mut state = self.state.lock();
        state.next.clear();
        state.chaos = None;
    }

    /// Cuts the connections whose answers were swallowed so far. A client without a time limit would keep them, and all
    /// that belongs to them, for ever.
    pub fn hang_up(&self) {
        self.state.lock().hang_up.send_replace(());
    }

    /// How many connections were cut.
    pub fn cuts(&self) -> usize {
        self.state.lock().cuts
    }

    /// How many answers were cut or swallowed.
    pub fn lost(&self) -> usize {
        self.state.lock().lost
    }

    /// How many requests were answered after they had been held.
    pub fn late(&self) -> usize {
        self.state.lock().late
    }

    /// The first lines of the HTTP requests since the last call of this method.
    pub fn http_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().seen)
    }

    fn next(&self, word: &'static str, fate: Fate) {
        self.state.lock().next.push((word, fate));
    }

    /// Notes the first line of a request. Each request begins with a new read.
    fn note(&self, read: &[u8]) {
        let line = read.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        if line.ends_with("HTTP/1.1") {
            self.state.lock().seen.push(line);
        }
    }

    /// What has to happen to this request. The first `before` bytes of it were looked at already.
    fn fate_of(&self, request: &[u8], before: usize) -> Option<Fate> {
        let has = |word: &str| {
            // The word may have come in two reads.
            let new = &request[before.saturating_sub(word.len() - 1)..];
            new.windows(word.len()).any(|part| part == word.as_bytes())
        };
        let state = &mut *self.state.lock();
        if let Some(at) = state.next.iter().position(|(word, _)| has(word)) {
            return Some(state.next.remove(at).1);
        }
        let chaos = state.chaos.as_mut()?;
        let meant = chaos.words.iter().any(|word| has(word));
        meant.then(|| chaos.fate())
    }

    async fn pass(self, client: TcpStream, server: String) -> io::Result<()> {
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let connection = Connection {
            proxy: self,
            client,
            server,
            request: Vec::with_capacity(1 << 16),
            answer: Vec::with_capacity(1 << 16),
            fate: None,
        };
        connection.pass().await
    }
}

struct Connection {
    proxy: Proxy,
    client: TcpStream,
    server: TcpStream,
    /// What the client has sent since the last answer.
    request: Vec<u8>,
    /// What was read of the answer and not passed on yet.
    answer: Vec<u8>,
    /// What happens to the request. It is not known before the word is read, which may come late in the request.
    fate: Option<Fate>,
}

impl Connection {
    async fn pass(mut self) -> io::Result<()> {
        loop {
            let before = self.request.len();
            tokio::select! {
                read = self.client.read_buf(&mut self.request) => {
                    if read? == 0 {
                        return self.without_client().await;
                    }
                    self.pass_request(before).await?;
                }
                read = self.server.read_buf(&mut self.answer) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    self.pass_answer().await?;
                }
            }
        }
    }

    async fn pass_request(&mut self, before: usize) -> io::Result<()> {
        self.proxy.note(&self.request[before..]);
        if self.fate.is_none() {
            self.fate = self.proxy.fate_of(&self.request, before);
        }
        match self.fate.take() {
            Some(Fate::RequestCut) => return self.cut(0),
            Some(Fate::RequestHeld(hold)) => {
                let cut = hold.cuts(&mut self.client, &mut self.request).await;
                if cut {
                    return self.cut(0);
                }
                self.fate = Some(Fate::RequestLate);
            }
            fate => self.fate = fate,
        }
        self.server.write_all(&self.request[before..]).await
    }

    async fn pass_answer(&mut self) -> io::Result<()> {
        self.request.clear();
        match self.fate.take() {
            Some(Fate::AnswerCut) => return self.cut(1),
            Some(Fate::AnswerSwallowed) => return self.swallow().await,
            Some(Fate::AnswerHeld(hold)) => {
                let cut = hold.cuts(&mut self.server, &mut self.answer).await;
                if cut {
                    return self.cut(1);
                }
            }
            Some(Fate::RequestLate) => self.proxy.state.lock().late += 1,
            _ => {}
        }
        self.client.write_all(&self.answer).await?;
        self.answer.clear();
        Ok(())
    }

    /// A server may give up its work for a client that goes. A request that was held back has to be carried out, so the
    /// server does not learn that the client has gone until it has answered.
    async fn without_client(mut self) -> io::Result<()> {
        if matches!(self.fate, Some(Fate::RequestLate)) {
            let read = self.server.read_buf(&mut self.answer).await?;
            self.proxy.state.lock().late += usize::from(read > 0);
        }
        Ok(())
    }

    /// Counts the cut. The error ends the connection.
    fn cut(&self, lost: usize) -> io::Result<()> {
        let mut state = self.proxy.state.lock();
        state.cuts += 1;
        state.lost += lost;
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    /// Passes nothing more on to either side, until the client has closed the connection or the test hangs up.
    async fn swallow(&mut self) -> io::Result<()> {
        let mut hang_up = {
            let mut state = self.proxy.state.lock();
            state.lost += 1;
            state.hang_up.subscribe()
        };
        let mut nowhere = tokio::io::sink();
        tokio::select! {
            read = tokio::io::copy(&mut self.client, &mut nowhere) => drop(read?),
            _ = hang_up.changed() => {}
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

/// A gate at which a request or an answer waits until the test opens it. A gate that is dropped is open.
#[must_use = "a gate that is dropped is open"]
pub struct Gate {
    word: &'static str,
    reached: watch::Receiver<bool>,
    cut: oneshot::Sender<()>,
}

/// The proxy's side of a gate.
struct Hold {
    reached: watch::Sender<bool>,
    cut: oneshot::Receiver<()>,
}

fn gate(word: &'static str) -> (Gate, Hold) {
    let (at_gate, reached) = watch::channel(false);
    let (cut, cutting) = oneshot::channel();
    let hold = Hold {
        reached: at_gate,
        cut: cutting,
    };
    (Gate { word, reached, cut }, hold)
}

impl Gate {
    /// Waits until something has come to the gate. If that is an answer, the server has carried out the request.
    pub async fn reached(&self) {
        let came = timeout(PATIENCE, self.came()).await;
        assert_eq!(came, Ok(true), "nothing with {:?} has come", self.word);
    }

    /// Passes on what waits at the gate, or comes to it later.
    pub fn open(self) {}

    /// Opens the gate this long after something has come to it.
    pub fn open_after(self, late: Duration) {
        tokio::spawn(async move {
            if self.came().await {
                sleep(late).await;
            }
        });
    }

    /// Cuts the connection instead of opening the gate.
    pub fn cut(self) {
        // The connection may have ended by itself.
        let _ = self.cut.send(());
    }

    /// Waits until something has come to the gate, and returns true. Returns false once the proxy was told to behave,
    /// because nothing comes any more.
    async fn came(&self) -> bool {
        let mut reached = self.reached.clone();
        reached.wait_for(|reached| *reached).await.is_ok()
    }
}

impl Hold {
    /// Collects everything that comes from that side until the test has decided. Returns whether the connection is to
    /// be cut.
    async fn cuts(mut self, from: &mut TcpStream, held: &mut Vec<u8>) -> bool {
        self.reached.send_replace(true);
        let mut more = true;
        loop {
            tokio::select! {
                cut = &mut self.cut => return cut.is_ok(),
                read = from.read_buf(held), if more => more = matches!(read, Ok(1..)),
            }
        }
    }
}
