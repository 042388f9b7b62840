//! What the address of a search cluster says: a pure function of its text.

use std::{net::IpAddr, path::PathBuf};

#[cfg(feature = "elasticsearch")]
use elasticsearch::http::Url;
#[cfg(not(feature = "elasticsearch"))]
use opensearch::http::Url;
use percent_encoding::percent_decode_str;

use crate::{
    address::error::{AddressError, invalid},
    model::brief,
};

/// An address with all parts but options, for errors.
pub(super) const FORM: &str = "es+http://user:password@host:9200/alias";
/// How many hosts of a cluster are named.
const HOSTS_SHOWN: usize = 3;
/// The longest name of an option that an error repeats.
const MAX_NAME: usize = 40;

/// A search cluster, and where in it the locks are.
#[derive(Clone)]
pub(super) struct Cluster {
    /// The first node, with the user, the password and the prefix of its paths.
    pub(super) node: Url,
    /// The other nodes.
    pub(super) others: Vec<Url>,
    pub(super) alias: String,
    pub(super) stored_scripts: bool,
    /// The file of a certificate authority that is trusted besides those of the system.
    pub(super) ca_file: Option<PathBuf>,
    /// Instead of a user: base64 of `id:key`.
    pub(super) api_key: Option<String>,
}

impl Cluster {
    /// Parses `http[s]://[USER:PASSWORD@]HOST[:PORT][,HOST…][/PREFIX][/ALIAS][?OPTIONS]`. The last part of the path is
    /// the alias.
    pub(super) fn parse(address: &str) -> Result<Self, AddressError> {
        let (before, options) = match address.split_once('?') {
            Some((before, options)) => (before, Some(options)),
            None => (address, None),
        };
        let malformed = || invalid("HTTP", FORM);
        let (scheme, rest) = before.split_once("://").ok_or_else(malformed)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // Such a part may be the rest of a password that is not percent-encoded.
        if address.contains('#') || path.contains('@') || options.is_some_and(|it| it.contains('@'))
        {
            return Err(malformed());
        }
        let path = path.trim_matches('/');
        let (prefix, alias) = path.rsplit_once('/').unwrap_or(("", path));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let mut nodes = hosts.split(',').map(|host| {
            let node = Url::parse(&format!("{scheme}://{user}{host}/{prefix}"));
            node.map_err(|_| malformed())
        });
        let node = nodes.next().ok_or_else(malformed)??;
        let cluster = Self {
            others: nodes.collect::<Result<_, _>>()?,
            alias: if alias.is_empty() { "leasehold" } else { alias }.to_owned(),
            stored_scripts: false,
            ca_file: None,
            api_key: None,
            node,
        };
        cluster.with(options.unwrap_or_default())
    }

    /// The same cluster with these options.
    fn with(mut self, options: &str) -> Result<Self, AddressError> {
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = percent_decode_str(value).decode_utf8_lossy();
            // The driver of MongoDB, whose names these are where it has them, ignores case too.
            match name.to_ascii_lowercase().as_str() {
                "scripts" if value == "stored" => self.stored_scripts = true,
                "scripts" => return Err(self.refused("scripts is stored, or left out")),
                "tlscafile" if self.node.scheme() != "https" => {
                    return Err(self.refused("tlsCAFile is for https"));
                }
                "tlscafile" => self.ca_file = Some(PathBuf::from(value.into_owned())),
                "apikey" if !is_base64(&value) => {
                    return Err(self.refused(
                        "apiKey is the base64 text of id:key, which the cluster calls `encoded`",
                    ));
                }
                "apikey" if !self.node.username().is_empty() => {
                    return Err(self.refused("a user and an API key are one too many"));
                }
                "apikey" => self.api_key = Some(value.into_owned()),
                _ => {
                    let problem = format!(
                        "{} is no option of the address of a search cluster, which are apiKey, scripts \
                         and tlsCAFile",
                        brief(name, MAX_NAME)
                    );
                    return Err(self.refused(&problem));
                }
            }
        }
        Ok(self)
    }

    fn refused(&self, problem: &str) -> AddressError {
        AddressError::Invalid(format!("{}: {problem}", self.hosts()))
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Url> {
        std::iter::once(&self.node).chain(&self.others)
    }

    /// The schemes, hosts and ports of the first nodes, and how many more there are. It has no user and no password.
    pub(super) fn hosts(&self) -> String {
        let shown = self.nodes().take(HOSTS_SHOWN);
        let shown: Vec<_> = shown
            .map(|node| node.origin().ascii_serialization())
            .collect();
        match (self.others.len() + 1).saturating_sub(HOSTS_SHOWN) {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    }

    /// Whether each node is on this host.
    pub(super) fn is_loopback(&self) -> bool {
        self.nodes().all(|node| {
            let host = node.host_str().unwrap_or_default();
            let address = host.trim_start_matches('[').trim_end_matches(']');
            host == "localhost"
                || address
                    .parse()
                    .is_ok_and(|address: IpAddr| address.is_loopback())
        })
    }
}

/// Whether this can be a text in base64. Nothing else is sent as a key, because a header could not carry it.
fn is_base64(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+/-_=".contains(c);
    !text.is_empty() && text.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(address: &str) -> Cluster {
        Cluster::parse(address).unwrap()
    }

    #[test]
    fn the_last_part_of_the_path_is_the_alias() {
        for (address, node, alias) in [
            ("http://h:9200", "http://h:9200/", "leasehold"),
            ("http://h:9200/", "http://h:9200/", "leasehold"),
            ("http://h/locks/", "http://h/", "locks"),
            ("https://h/es/locks", "https://h/es", "locks"),
            ("https://h/a/b/locks", "https://h/a/b", "locks"),
            (
                "http://me:p%40ss@[::1]:9200/a",
                "http://me:p%40ss@[::1]:9200/",
                "a",
            ),
        ] {
            let cluster = parsed(address);
            assert_eq!((cluster.node.as_str(), &*cluster.alias), (node, alias));
        }
    }

    #[test]
    fn each_node_has_the_user_and_the_prefix() {
        let cluster = parsed("https://me:hunter2@a:1,b,c,d:4/es/locks");
        let nodes: Vec<_> = cluster.nodes().map(Url::as_str).collect();
        let expected = ["a:1", "b", "c", "d:4"].map(|it| format!("https://me:hunter2@{it}/es"));
        assert_eq!(nodes, expected);
        assert_eq!(
            cluster.hosts(),
            "https://a:1, https://b, https://c and 1 more"
        );
    }

    #[test]
    fn an_address_has_options() {
        let cluster =
            parsed("https://h/a?scripts=stored&tlscafile=%2Fetc%2Fca.crt&apiKey=aWQ6a2V5Cg==");
        assert!(cluster.stored_scripts);
        assert_eq!(cluster.ca_file, Some(PathBuf::from("/etc/ca.crt")));
        assert_eq!(cluster.api_key.as_deref(), Some("aWQ6a2V5Cg=="));
    }

    #[test]
    fn an_option_that_is_not_known_is_named_and_a_password_is_not() {
        for (address, told) in [
            ("http://h/a?script=stored", "script is no option"),
            ("http://h/a?tlsInsecure=hunter2", "tlsInsecure is no option"),
            ("http://h/a?scripts=inline", "scripts is stored"),
            ("http://h/a?tlsCAFile=/hunter2", "for https"),
            ("http://h/a?apiKey=hunter2%0a", "base64"),
            ("http://me:hunter2@h/a?apiKey=aWQ6", "one too many"),
            ("http://me:hun/ter2@h/a", "percent-encoded"),
            ("http://me:hun?hunter2@h/a", "percent-encoded"),
            ("http://me:hun#hunter2@h/a", "percent-encoded"),
            ("http://me:hunter2@", "percent-encoded"),
            ("http://me:hunter2@h,/a", "percent-encoded"),
            ("http://me:hunter2@h:99999/a", "percent-encoded"),
        ] {
            let error = Cluster::parse(address).err().unwrap().to_string();
            assert!(error.contains(told), "{address}: {error}");
            assert!(
                !error.contains("ter2") && !error.contains("hun?"),
                "{error}"
            );
        }
    }

    #[test]
    fn only_this_host_is_loopback() {
        for address in [
            "http://localhost",
            "https://127.0.0.3:1/a",
            "http://[::1]:9200",
            "http://127.0.0.1,localhost",
        ] {
            assert!(parsed(address).is_loopback(), "{address}");
        }
        for address in [
            "http://localhost.example",
            "http://10.0.0.1",
            "http://localhost,h",
        ] {
            assert!(!parsed(address).is_loopback(), "{address}");
        }
    }
}
