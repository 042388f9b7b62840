//! A TCP proxy that can keep an answer back after the server has carried out the request.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Passes everything on, unless it is told to cut.
#[derive(Clone)]
pub struct Proxy {
    pub address: SocketAddr,
    cut: Arc<Mutex<Option<Cut>>>,
    cuts: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone, Copy)]
struct Cut {
    word: &'static str,
    before: bool,
}

impl Proxy {
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            cut: Arc::default(),
            cuts: Arc::default(),
            seen: Arc::default(),
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

    /// Cuts the connection of the next request with this word in it: the server carries it out, and
    /// its answer is lost.
    pub fn lose_the_answer_to(&self, word: &'static str) {
        *self.cut.lock() = Some(Cut {
            word,
            before: false,
        });
    }

    /// Cuts the connection instead of passing on the next request with this word in it.
    pub fn lose_the_request(&self, word: &'static str) {
        *self.cut.lock() = Some(Cut { word, before: true });
    }

    /// How often a connection was cut.
    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }

    /// The first lines of the HTTP requests since the last time.
    pub fn http_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock())
    }

    /// Clients send one request after the other on a connection, so each begins a read.
    fn note(&self, request: &[u8]) {
        let line = request
            .split(|byte| *byte == b'\r')
            .next()
            .unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        if line.ends_with("HTTP/1.1") {
            self.seen.lock().push(line);
        }
    }

    /// The cut that is meant for this request.
    fn cut_for(&self, request: &[u8]) -> Option<Cut> {
        self.cut.lock().take_if(|cut| {
            let word = cut.word.as_bytes();
            request.windows(word.len()).any(|part| part == word)
        })
    }

    async fn pass(&self, mut client: TcpStream, server: String) -> std::io::Result<()> {
        let mut server = TcpStream::connect(server).await?;
        let (mut request, mut answer) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let mut lose = false;
        loop {
            tokio::select! {
                read = client.read(&mut request) => {
                    let read = read?;
                    if read == 0 {
                        return Ok(());
                    }
                    self.note(&request[..read]);
                    let cut = self.cut_for(&request[..read]);
                    lose |= cut.is_some();
                    if cut.is_some_and(|cut| cut.before) {
                        self.cuts.fetch_add(1, Ordering::SeqCst);
                        return Ok(());
                    }
                    server.write_all(&request[..read]).await?;
                }
                read = server.read(&mut answer) => {
                    let read = read?;
                    if read == 0 {
                        return Ok(());
                    }
                    if lose {
                        self.cuts.fetch_add(1, Ordering::SeqCst);
                        return Ok(());
                    }
                    client.write_all(&answer[..read]).await?;
                }
            }
        }
    }
}
