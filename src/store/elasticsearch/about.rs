//! Asks a cluster what it is.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use super::{
    nodes::Nodes,
    statements::{Body, HttpRequest, Method},
    transport::{SealedRequest, Transport},
};
use crate::model::Error;

/// The host, the status and the body of the answer about the cluster. A body that is not JSON is null. The answer of each
/// node may take this long.
pub(crate) async fn about<C: Transport>(
    client: &C,
    nodes: &Nodes,
    limit: Duration,
) -> Result<(Arc<str>, u16, Value), Error> {
    let request = HttpRequest::new(Method::Get, "/".to_owned(), Body::None);
    let mut others = nodes.count();
    loop {
        others = others.saturating_sub(1);
        match nodes.send(client, SealedRequest(&request, limit)).await {
            // The question may be asked twice.
            Err(Error::Interrupted { .. }) if others > 0 => {}
            Err(error) => return Err(error),
            Ok((host, status, body)) => {
                let body = serde_json::from_slice(&body).unwrap_or_default();
                return Ok((host, status, body));
            }
        }
    }
}
