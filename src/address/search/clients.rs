//! The clients of a cluster, as its address says.

use super::cluster::Cluster;
use crate::address::error::AddressError;

/// This is a macro because the two clients have the same methods, on types of the same names, in different crates.
macro_rules! client {
    ($crate_name:ident, $client:ident) => {
        pub(super) fn $crate_name(cluster: &Cluster) -> Result<$crate_name::$client, AddressError> {
            use $crate_name::http::transport::{SingleNodeConnectionPool, TransportBuilder};

            // Not `Transport::single_node`, which would send a percent-encoded password as it is written.
            let nodes = SingleNodeConnectionPool::new(cluster.url.clone());
            let transport = TransportBuilder::new(nodes).build();
            let transport = transport.map_err(|_| {
                let host = cluster.host();
                AddressError::Invalid(format!("{host} cannot be used: check the address"))
            })?;
            Ok($crate_name::$client::new(transport))
        }
    };
}

#[cfg(feature = "elasticsearch")]
client!(elasticsearch, Elasticsearch);
#[cfg(feature = "opensearch")]
client!(opensearch, OpenSearch);
