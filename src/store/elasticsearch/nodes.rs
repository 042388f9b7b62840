//! Which node of a cluster gets the next request, and what is sent again to another node.
//!
//! All requests go to one node until it fails: it cannot be connected to, its connection breaks, it does not answer for
//! 2 s, or something in between has lost it. Then they go to the next node. So a node that is down is met once, and not
//! by every second request.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::timeout;

use super::transport::{Response, SealedRequest, Transport};
use crate::model::Error;

/// After this time without an answer further requests go to the next node. The request itself is waited for.
const SLOW: Duration = Duration::from_secs(2);

/// The nodes that a client knows. By default there is one, or the client chooses.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    count: usize,
    /// The node in use, by its number. Clones share it.
    current: Arc<AtomicUsize>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            count: 1,
            current: Arc::default(),
        }
    }
}

impl Nodes {
    /// This many nodes, of which this one is used first.
    #[cfg(any(feature = "address", test))]
    pub(crate) fn new(count: usize, first: usize) -> Self {
        Self {
            count,
            current: Arc::new(AtomicUsize::new(first)),
        }
    }

    /// How many there are.
    #[cfg(feature = "address")]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The number of the node in use.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Goes on to the next node, unless another request has left this one already.
    fn leave(&self, node: usize) {
        let next = if node + 1 < self.count { node + 1 } else { 0 };
        let order = Ordering::Relaxed;
        // If it fails, another node is in use.
        let _ = self.current.compare_exchange(node, next, order, order);
    }

    /// Sends a request by this client. A node that cannot be connected to was sent nothing, so the request then goes to
    /// the next one, and to each at most once.
    pub(super) async fn send<C: Transport>(
        &self,
        client: &C,
        request: SealedRequest<'_>,
    ) -> Result<Response, Error> {
        if self.count == 1 {
            return client.send(request).await;
        }
        let mut others = self.count;
        loop {
            others = others.saturating_sub(1);
            let node = self.current();
            let mut sent = pin!(client.send(request));
            let answer = match timeout(SLOW, &mut sent).await {
                Ok(answer) => answer,
                Err(_) => {
                    self.leave(node);
                    sent.await
                }
            };
            match answer {
                Err(Error::Unreachable { .. }) if others > 0 => self.leave(node),
                Err(error) => {
                    self.leave(node);
                    return Err(error);
                }
                Ok(answer) => {
                    if matches!(answer.1, 502..=504) {
                        self.leave(node);
                    }
                    return Ok(answer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::{
        super::statements::{Body, HttpRequest, Method},
        *,
    };
    use crate::model::Cause;

    /// A node of a cluster, as a client meets it.
    #[derive(Clone, Copy)]
    enum Node {
        Answers(u16),
        IsClosed,
        Breaks,
        IsSilent,
    }

    /// A client that counts what it sends to each node.
    #[derive(Clone)]
    struct Client {
        nodes: Nodes,
        kinds: Arc<[Node]>,
        sent: Arc<Mutex<Vec<usize>>>,
    }

    #[async_trait]
    impl Transport for Client {
        const NAME: &'static str = "a cluster";

        async fn send(&self, _: SealedRequest<'_>) -> Result<Response, Error> {
            let node = self.nodes.current();
            self.sent.lock().push(node);
            let (store, source) = (Self::NAME, Cause::text("it failed"));
            match self.kinds[node] {
                Node::Answers(status) => Ok(("host".into(), status, Vec::new())),
                Node::IsClosed => Err(Error::Unreachable { store, source }),
                Node::Breaks => Err(Error::Interrupted { store, source }),
                Node::IsSilent => {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    Err(Error::Interrupted { store, source })
                }
            }
        }
    }

    impl Client {
        fn new(kinds: &[Node]) -> Self {
            Self {
                nodes: Nodes::new(kinds.len(), 0),
                kinds: kinds.into(),
                sent: Arc::default(),
            }
        }

        async fn ask(&self) -> Result<u16, Error> {
            let request = HttpRequest::new(Method::Get, "/".to_owned(), Body::None);
            let sealed = SealedRequest(&request, Duration::from_secs(60));
            let answer = self.nodes.send(self, sealed).await?;
            Ok(answer.1)
        }

        fn sent(&self) -> Vec<usize> {
            self.sent.lock().clone()
        }
    }

    #[tokio::test]
    async fn a_node_that_is_down_fails_no_request_and_is_met_once() {
        let client = Client::new(&[Node::IsClosed, Node::Answers(200)]);
        for _ in 0..4 {
            assert_eq!(client.ask().await.unwrap(), 200);
        }
        assert_eq!(client.sent(), [0, 1, 1, 1, 1]);
    }

    #[tokio::test]
    async fn each_node_is_tried_once_and_only_if_nothing_was_sent() {
        let client = Client::new(&[Node::IsClosed, Node::IsClosed, Node::IsClosed]);
        let error = client.ask().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert_eq!(client.sent(), [0, 1, 2]);

        let client = Client::new(&[Node::Breaks, Node::Answers(503), Node::Answers(200)]);
        assert!(client.ask().await.unwrap_err().is_ambiguous());
        assert_eq!(client.ask().await.unwrap(), 503);
        assert_eq!(client.ask().await.unwrap(), 200);
        assert_eq!(client.sent(), [0, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_go_round_a_node_that_does_not_answer() {
        let client = Client::new(&[Node::IsSilent, Node::Answers(200)]);
        let (slow, later) = tokio::join!(client.ask(), async {
            tokio::time::sleep(SLOW + Duration::from_millis(1)).await;
            client.ask().await
        });
        assert!(slow.unwrap_err().is_ambiguous());
        assert_eq!(later.unwrap(), 200);
        assert_eq!(
            client.nodes.current(),
            1,
            "the late error is of the other node"
        );
    }
}
