//! Asks a cluster what it is.

use std::time::Duration;

use serde_json::Value;

use super::{
    statements::{Body, HttpRequest, Method},
    transport::{SealedRequest, Transport},
};
use crate::model::Error;

/// The status and the body of the answer about the cluster. A body that is not JSON is null.
pub(crate) async fn about<C: Transport>(
    client: &C,
    limit: Duration,
) -> Result<(u16, Value), Error> {
    let request = HttpRequest::new(Method::Get, "/".to_owned(), Body::None);
    let (_, status, body) = client.send(SealedRequest(&request, limit)).await?;
    Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
}
