//! Tests of the proxy that the suites on real engines use.

use std::{sync::Arc, time::Duration};

use leasehold_tests::proxy::Proxy;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, timeout},
};

/// Long enough for an answer that is on its way.
const WHILE: Duration = Duration::from_millis(200);
/// A limit that only ends a hang.
const PATIENCE: Duration = Duration::from_secs(180);

/// A server that carries out lines, and answers each with the line itself. It gives a slow line up
/// if its client goes meanwhile.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Vec<String>>>);

impl Server {
    async fn behind_proxy() -> (Self, Proxy) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self::default();
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(connection));
            }
        });
        (server, Proxy::to(address.to_string()).await)
    }

    async fn serve(self, connection: TcpStream) {
        let mut connection = BufReader::new(connection);
        let mut line = String::new();
        while let Ok(1..) = connection.read_line(&mut line).await {
            let slow = line.contains("slow");
            let gone = slow && timeout(WHILE, connection.fill_buf()).await.is_ok();
            if gone || !line.ends_with('\n') {
                return;
            }
            self.0.lock().push(line.trim_end().to_owned());
            let _ = connection.write_all(line.as_bytes()).await;
            line.clear();
        }
    }

    fn did(&self, line: &str) -> bool {
        self.0.lock().iter().any(|done| done == line)
    }

    async fn until_did(&self, line: &str) {
        let start = Instant::now();
        while !self.did(line) {
            assert!(start.elapsed() < PATIENCE, "not done");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

struct Client(BufReader<TcpStream>);

#[derive(Debug, PartialEq)]
enum Heard {
    Answer,
    Cut,
    Nothing,
}

use Heard::{Answer, Cut, Nothing};

impl Client {
    async fn of(proxy: &Proxy) -> Self {
        let connection = TcpStream::connect(proxy.address).await.unwrap();
        Self(BufReader::new(connection))
    }

    async fn send(&mut self, line: &str) {
        let line = format!("{line}\n");
        self.0.write_all(line.as_bytes()).await.unwrap();
    }

    /// What the client hears in this time. An answer is the line that was sent.
    async fn hear(&mut self, line: &str, meanwhile: Duration) -> Heard {
        match timeout(meanwhile, self.0.fill_buf()).await {
            Err(_) => Nothing,
            Ok(Ok([]) | Err(_)) => Cut,
            Ok(Ok(_)) => {
                let mut answer = String::new();
                self.0.read_line(&mut answer).await.unwrap();
                assert!(answer.trim_end() == line, "the answer to another request");
                Answer
            }
        }
    }

    async fn ask(&mut self, line: &str) -> Heard {
        self.send(line).await;
        self.hear(line, PATIENCE).await
    }
}

/// A request that takes many reads, as its answer does.
fn big(word: &str) -> String {
    let half = "x".repeat(2 << 20);
    format!("{half}{word}{half}")
}

#[tokio::test]
async fn everything_is_passed_on() {
    let (server, proxy) = Server::behind_proxy().await;
    let mut client = Client::of(&proxy).await;
    for line in ["a", &big("b"), "c"] {
        assert_eq!(client.ask(line).await, Answer);
        assert!(server.did(line));
    }
    assert_eq!((proxy.cuts(), proxy.lost()), (0, 0));
}

#[tokio::test]
async fn http_requests_are_noted() {
    let (_, proxy) = Server::behind_proxy().await;
    let mut client = Client::of(&proxy).await;
    client.send("GET / HTTP/1.1\r").await;
    assert_eq!(client.hear("GET / HTTP/1.1", PATIENCE).await, Answer);
    assert_eq!(client.ask("something else").await, Answer);
    assert_eq!(proxy.http_requests(), ["GET / HTTP/1.1"]);
    assert!(proxy.http_requests().is_empty());
}

#[tokio::test]
async fn a_lost_answer_is_to_a_request_that_was_carried_out() {
    for line in ["a word", &big("word")] {
        let (server, proxy) = Server::behind_proxy().await;
        proxy.lose_the_answer_to("word");
        let mut client = Client::of(&proxy).await;
        assert_eq!(client.ask("another").await, Answer);
        assert_eq!(client.ask(line).await, Cut);
        assert!(server.did(line));
        // The proxy does this only once.
        assert_eq!(Client::of(&proxy).await.ask(line).await, Answer);
        assert_eq!((proxy.cuts(), proxy.lost()), (1, 1));
    }
}

#[tokio::test]
async fn a_lost_request_is_not_carried_out() {
    for line in ["a word", &big("word")] {
        let (server, proxy) = Server::behind_proxy().await;
        proxy.lose_the_request("word");
        let mut client = Client::of(&proxy).await;
        assert_eq!(client.ask("another").await, Answer);
        // If the connection is cut in the middle of the request, writing it may fail.
        let _ = client.0.write_all(format!("{line}\n").as_bytes()).await;
        assert_eq!(client.hear(line, PATIENCE).await, Cut);
        sleep(WHILE).await;
        assert!(!server.did(line));
        assert_eq!((proxy.cuts(), proxy.lost()), (1, 0));
    }
}

#[tokio::test]
async fn a_word_may_come_in_parts_and_more_than_once() {
    let (server, proxy) = Server::behind_proxy().await;
    proxy.lose_the_answer_to("word");
    proxy.lose_the_answer_to("word");
    for _ in 0..2 {
        let mut client = Client::of(&proxy).await;
        client.0.write_all(b"a wo").await.unwrap();
        sleep(WHILE).await;
        assert_eq!(client.ask("rd").await, Cut);
    }
    assert!(server.did("a word"));
    assert_eq!(Client::of(&proxy).await.ask("a word").await, Answer);
    assert_eq!(proxy.cuts(), 2);
}

#[tokio::test]
async fn a_held_answer_waits_after_the_server_has_carried_out_the_request() {
    for line in ["a word", &big("word")] {
        let (server, proxy) = Server::behind_proxy().await;
        let gate = proxy.hold_the_answer_to("word");
        let mut client = Client::of(&proxy).await;
        client.send(line).await;
        gate.reached().await;
        assert!(server.did(line));
        assert_eq!(client.hear(line, WHILE).await, Nothing);
        assert_eq!(Client::of(&proxy).await.ask(line).await, Answer);
        gate.open();
        assert_eq!(client.hear(line, PATIENCE).await, Answer);
        assert_eq!(client.ask(line).await, Answer);
        assert_eq!((proxy.cuts(), proxy.lost()), (0, 0));
    }
}

#[tokio::test]
async fn a_held_request_waits_before_the_server_has_seen_it() {
    for line in ["a word", &big("word")] {
        let (server, proxy) = Server::behind_proxy().await;
        let gate = proxy.hold_the_request("word");
        let mut client = Client::of(&proxy).await;
        client.send(line).await;
        gate.reached().await;
        assert_eq!(client.hear(line, WHILE).await, Nothing);
        assert!(!server.did(line));
        assert_eq!(Client::of(&proxy).await.ask("another word").await, Answer);
        gate.open();
        assert_eq!(client.hear(line, PATIENCE).await, Answer);
        assert!(server.did(line));
        assert_eq!(proxy.late(), 1);
        assert_eq!(client.ask(line).await, Answer);
        assert_eq!(proxy.late(), 1);
    }
}

#[tokio::test]
async fn a_held_request_is_carried_out_after_its_client_has_gone() {
    // This is more than the system buffers for a reader that waits.
    let long = format!("a slow word {}", "x".repeat(16 << 20));
    for line in ["a slow word", &long] {
        let (server, proxy) = Server::behind_proxy().await;
        let gate = proxy.hold_the_request("word");
        let mut client = Client::of(&proxy).await;
        client.send(line).await;
        gate.reached().await;
        drop(client);
        sleep(WHILE).await;
        assert!(!server.did(line));
        assert_eq!(proxy.late(), 0);
        gate.open();
        server.until_did(line).await;
    }
}

#[tokio::test]
async fn a_gate_opens_when_it_is_dropped_and_by_itself() {
    let (_, proxy) = Server::behind_proxy().await;
    let mut client = Client::of(&proxy).await;
    let gates = [Proxy::hold_the_answer_to, Proxy::hold_the_request];
    for held in gates {
        drop(held(&proxy, "word"));
        assert_eq!(client.ask("a word").await, Answer);

        held(&proxy, "word").open_after(WHILE);
        let start = Instant::now();
        assert_eq!(client.ask("a word").await, Answer);
        assert!(start.elapsed() >= WHILE);
    }
}

#[tokio::test]
async fn a_gate_can_cut() {
    let (server, proxy) = Server::behind_proxy().await;
    let gate = proxy.hold_the_answer_to("word");
    gate.cut();
    assert_eq!(Client::of(&proxy).await.ask("a word").await, Cut);
    assert!(server.did("a word"));
    assert_eq!((proxy.cuts(), proxy.lost()), (1, 1));

    let gate = proxy.hold_the_request("word");
    let mut client = Client::of(&proxy).await;
    client.send("another word").await;
    gate.reached().await;
    gate.cut();
    assert_eq!(client.hear("", PATIENCE).await, Cut);
    sleep(WHILE).await;
    assert!(!server.did("another word"));
    assert_eq!((proxy.cuts(), proxy.lost()), (2, 1));
}

#[tokio::test]
async fn after_a_swallowed_answer_the_connection_is_silent() {
    for line in ["a word", &big("word")] {
        let (server, proxy) = Server::behind_proxy().await;
        proxy.swallow_the_answer_to("word");
        let mut client = Client::of(&proxy).await;
        client.send(line).await;
        server.until_did(line).await;
        assert_eq!(client.hear(line, WHILE).await, Nothing);
        client.send("more").await;
        assert_eq!(client.hear("more", WHILE).await, Nothing);
        assert!(!server.did("more"));
        assert_eq!(Client::of(&proxy).await.ask(line).await, Answer);
        assert_eq!((proxy.cuts(), proxy.lost()), (0, 1));
    }
}

/// What a client hears that sends the line this many times, and how many answers were lost.
async fn in_chaos(seed: u64, times: usize, line: &str) -> (Vec<Heard>, usize) {
    let (server, proxy) = Server::behind_proxy().await;
    proxy.lose_share_of_answers(0.1, seed, &["find", "update"]);
    let mut client = Client::of(&proxy).await;
    let mut heard = Vec::new();
    for _ in 0..times {
        let (cuts, lost) = (proxy.cuts(), proxy.lost());
        client.send(line).await;
        let outcome = loop {
            match client.hear(line, Duration::from_millis(1)).await {
                Nothing if proxy.lost() == lost || proxy.cuts() > cuts => {}
                outcome => break outcome,
            }
        };
        if outcome != Answer {
            client = Client::of(&proxy).await;
        }
        heard.push(outcome);
        assert_eq!(client.ask("hello").await, Answer);
    }
    assert_eq!(server.0.lock().len(), 2 * times, "all are carried out");
    (heard, proxy.lost())
}

#[tokio::test]
async fn chaos_loses_its_share_of_the_answers() {
    let (heard, lost) = in_chaos(7, 1_000, "a find").await;
    let count = |what| heard.iter().filter(|heard| **heard == what).count();
    assert_eq!(count(Cut) + count(Nothing), lost);
    assert!((60..140).contains(&lost), "{lost}");
    assert!(count(Cut) > lost / 4 && count(Nothing) > lost / 4);
}

/// The proxy decides once on each request, whether it comes in one read or in many.
#[tokio::test]
async fn chaos_is_the_same_for_the_same_seed() {
    let chaos = in_chaos(7, 200, "a find").await;
    assert_eq!(in_chaos(7, 200, "an update").await, chaos);
    assert_eq!(in_chaos(7, 200, &"find".repeat(1 << 16)).await, chaos);
    assert_ne!(in_chaos(8, 200, "a find").await.0, chaos.0);
}

#[tokio::test]
async fn a_proxy_that_behaves_forgets_what_it_was_told() {
    let (_, proxy) = Server::behind_proxy().await;
    proxy.lose_share_of_answers(1.0, 7, &["word"]);
    proxy.lose_the_request("word");
    proxy.behave();
    assert_eq!(Client::of(&proxy).await.ask("a word").await, Answer);
    assert_eq!((proxy.cuts(), proxy.lost()), (0, 0));
}
