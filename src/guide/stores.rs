//! Which database keeps the locks, and what it guarantees.
//!
//! A store keeps each lock as one record. Each operation on a key is one atomic change of its record, on the clock
//! that the table names. [`Leases`](crate::Leases) takes any [`Store`](crate::Store). One that is chosen when the program
//! runs is an `Arc<dyn Store>`: [`address::open`](crate::address::open) makes it from an address such as
//! `mongodb://db.example/app`, and [`Store`](crate::Store) shows how else.
//!
//! | store | for | what an acknowledged grant means | whose clock |
//! |---|---|---|---|
//! | [`MemoryStore`](crate::MemoryStore) | tests, examples, a single process | no other holder in this process has the lock | tokio's |
//! | [`SqliteStore`](crate::SqliteStore) | several processes of one host, without a server | the grant is on the disk | the host's, counted from its boot |
//! | [`MongoStore`](crate::MongoStore) | several processes that share a MongoDB | a majority of the replica set, or the standalone server, has the grant in its journal: the grant survives a failover, and a crash | the primary's; on a sharded cluster the shard's |
//! | [`ElasticsearchStore`](crate::ElasticsearchStore) | several processes that share an Elasticsearch | the grant is on the disk of the primary shard and of every replica in sync at that moment | that of the node with the primary shard |
//! | [`OpenSearchStore`](crate::OpenSearchStore) | several processes that share an OpenSearch | the same as on Elasticsearch | the same |
//! | [`MongoDistributedLock`](crate::MongoDistributedLock) | sharing locks with Java services that run the class of that name | what that class guarantees; there is no fence | for leasehold the server's; for each Java service its own |
//!
//! The documentation of each store says more. After a failover another server's clock decides when a lease expires.
//! So a holder on MongoDB, Elasticsearch or OpenSearch stops counting on its lease 100 ms before the expiry
//! ([`LeasesBuilder::clock_margin`](crate::LeasesBuilder::clock_margin)).
//!
//! # The databases' own clients
//!
//! A store takes the client that the application has already, so both must depend on the same major version:
//!
//! | feature | crate | versions |
//! |---|---|---|
//! | `mongodb` | `mongodb` | 3, from 3.9 on |
//! | `elasticsearch` | `elasticsearch` | 9.1.0-alpha.1 or a later one of 9.1.0, or 9.1 and newer |
//! | `opensearch` | `opensearch` | 2, from 2.4 on |
//!
//! - leasehold asks for `mongodb` with the features `rustls-tls` and `bson-2`. Features that the application chooses
//!   for its own dependency (`dns-resolver` for `mongodb+srv` addresses, `bson-3`, `openssl-tls`, compression) apply
//!   to leasehold as well.
//! - leasehold asks for `elasticsearch` and `opensearch` without TLS: choose `native-tls` or `rustls-tls` for your
//!   own dependency. (For [addresses](crate::address) the feature `address-tls` chooses `rustls-tls`.)
//! - The feature `sqlite` compiles SQLite in.
