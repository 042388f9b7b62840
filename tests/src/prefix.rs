//! A proxy that maps a prefix of the path to a server, as a web server does that passes `/es/` on to `/`: it decodes the
//! path, resolves `.` and `..`, joins double slashes, and encodes what is left. So an encoded slash in an id becomes a
//! slash of the path.

use std::{io, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// The prefix that the proxy takes away.
const PREFIX: &str = "/es";

/// The proxy. Its address is that of the server behind it, for a client.
#[derive(Clone)]
pub struct PrefixProxy {
    address: SocketAddr,
    passed: Arc<Mutex<Vec<String>>>,
}

impl PrefixProxy {
    pub async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            passed: Arc::default(),
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

    /// The URL of the server behind the proxy.
    pub fn url(&self) -> String {
        format!("http://{}{PREFIX}/", self.address)
    }

    /// The paths that the server got so far.
    pub fn paths(&self) -> Vec<String> {
        self.passed.lock().clone()
    }

    async fn pass(self, client: TcpStream, server: String) -> io::Result<()> {
        let server = TcpStream::connect(server).await?;
        let (mut client_reads, mut client_writes) = client.into_split();
        let (mut server_reads, mut server_writes) = server.into_split();
        let answers = tokio::spawn(async move {
            // The answers pass unchanged.
            tokio::io::copy(&mut server_reads, &mut client_writes).await
        });
        let mut read = Vec::new();
        while let Some(end) = head_end(&mut client_reads, &mut read).await? {
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let (line, headers) = head.split_once("\r\n").unwrap_or_default();
            let mut words = line.split(' ');
            let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let path = mapped(path);
            self.passed.lock().push(path.clone());
            let mark = if query.is_empty() { "" } else { "?" };
            let head = format!("{method} {path}{mark}{query} HTTP/1.1\r\n{headers}");
            let body = length(&head);
            while read.len() < end + body {
                if client_reads.read_buf(&mut read).await? == 0 {
                    return Ok(());
                }
            }
            server_writes.write_all(head.as_bytes()).await?;
            server_writes.write_all(&read[end..end + body]).await?;
            read.drain(..end + body);
        }
        answers.abort();
        Ok(())
    }
}

/// Reads until a head is complete, and returns its length. `None` at the end of the connection.
async fn head_end(
    client: &mut (impl AsyncRead + Unpin),
    read: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    loop {
        if let Some(at) = read.windows(4).position(|it| it == b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if client.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
}

fn length(head: &str) -> usize {
    let headers = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = headers.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    lengths
        .next()
        .map_or(0, |(_, it)| it.trim().parse().unwrap())
}

fn mapped(path: &str) -> String {
    let decoded = decoded(path);
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let rest = match segments.split_first() {
        Some((first, rest)) if *first == &PREFIX.as_bytes()[1..] => rest,
        _ => &segments[..],
    };
    let encoded = rest.iter().map(|segment| {
        let bytes = segment.iter().map(|byte| match byte {
            b' ' | b'%' | b'?' | b'#' | 0..=31 | 127.. => format!("%{byte:02X}"),
            plain => char::from(*plain).to_string(),
        });
        format!("/{}", bytes.collect::<String>())
    });
    encoded.collect()
}

fn decoded(path: &str) -> Vec<u8> {
    let (mut bytes, mut decoded) = (path.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        let pair = (byte == b'%').then(|| [bytes.next(), bytes.next()]);
        let pair = pair.map(|pair| pair.map(|it| char::from(it.unwrap_or(b'0'))));
        let code = pair.map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16));
        decoded.push(code.map_or(byte, |code| code.unwrap_or(b'?')));
    }
    decoded
}

#[test]
fn a_path_is_decoded_and_resolved() {
    for (sent, passed) in [
        ("/es/locks/_bulk", "/locks/_bulk"),
        (
            "/es/orders/_update/orders%2F..%2Fvictim",
            "/orders/_update/victim",
        ),
        (
            "/es/orders/_update/report%2F42",
            "/orders/_update/report/42",
        ),
        ("/es/a%2F%2Fb", "/a/b"),
        ("/es/a%20b%25", "/a%20b%25"),
        ("/es/..%2F..", ""),
    ] {
        assert_eq!(mapped(sent), passed);
    }
}
