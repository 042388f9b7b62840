//! The clients of a cluster, as its address says.

use crate::{
    address::{error::AddressError, search::cluster::Cluster},
    store::elasticsearch::Nodes,
};

/// This is a macro because the two clients have the same methods, on types of the same names, in different crates.
macro_rules! client {
    ($crate_name:ident, $client:ident) => {
        pub(super) mod $crate_name {
            use std::fmt;

            use $crate_name::{
                http::{
                    headers::{AUTHORIZATION, HeaderValue},
                    transport::{Connection, ConnectionPool, TransportBuilder},
                },
                $client,
            };

            use super::{AddressError, Cluster, Nodes};

            /// Gives each request the node in use.
            #[derive(Clone)]
            struct Pool {
                nodes: Nodes,
                first: Connection,
                others: Vec<Connection>,
            }

            impl fmt::Debug for Pool {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    // The connections are left out, because they would show the credentials.
                    f.debug_tuple("Pool").field(&self.nodes).finish()
                }
            }

            impl ConnectionPool for Pool {
                fn next(&self) -> Connection {
                    let other = self.nodes.current().checked_sub(1);
                    let other = other.and_then(|number| self.others.get(number));
                    other.unwrap_or(&self.first).clone()
                }
            }

            /// Makes the client, without sending anything.
            pub(in crate::address::search) fn client(
                cluster: &Cluster,
                nodes: &Nodes,
            ) -> Result<$client, AddressError> {
                // The connections keep the user and the password, which are sent percent-decoded.
                let pool = Pool {
                    nodes: nodes.clone(),
                    first: Connection::new(cluster.node.clone()),
                    others: cluster
                        .others
                        .iter()
                        .cloned()
                        .map(Connection::new)
                        .collect(),
                };
                let unusable = |problem: &str| {
                    let hosts = cluster.hosts();
                    AddressError::Invalid(format!("{hosts} cannot be used: {problem}"))
                };
                let mut builder = TransportBuilder::new(pool);
                if cluster.is_loopback() {
                    builder = builder.disable_proxy();
                }
                if let Some(key) = &cluster.api_key {
                    let key = HeaderValue::from_str(&format!("ApiKey {key}"));
                    let mut key = key.map_err(|_| unusable("its API key is no base64"))?;
                    key.set_sensitive(true);
                    builder = builder.header(AUTHORIZATION, key);
                }
                #[cfg(feature = "address-tls")]
                if let Some(path) = &cluster.ca_file {
                    use $crate_name::cert::{Certificate, CertificateValidation};

                    let path_told = path.display();
                    let read = std::fs::read(path);
                    let read = read.map_err(|error| {
                        unusable(&format!(
                            "the tlsCAFile {path_told} cannot be read: {error}"
                        ))
                    })?;
                    let authority = Certificate::from_pem(&read).map_err(|_| {
                        unusable(&format!(
                            "the tlsCAFile {path_told} has no certificate in PEM"
                        ))
                    })?;
                    builder = builder.cert_validation(CertificateValidation::Full(authority));
                }
                let transport = builder.build();
                let transport = transport.map_err(|_| {
                    unusable("check the address, the certificates and the proxy in the environment")
                })?;
                Ok($client::new(transport))
            }
        }
    };
}

#[cfg(feature = "elasticsearch")]
client!(elasticsearch, Elasticsearch);
#[cfg(feature = "opensearch")]
client!(opensearch, OpenSearch);
