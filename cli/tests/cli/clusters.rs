//! Tests of the addresses of search clusters: TLS, API keys, several nodes, a prefix and a proxy, each before a real
//! server with accounts.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
};

use leasehold::store::LeaseId;
use leasehold_tests::engine::Engine;
use serde_json::json;

use super::{Ended, Going, Place, places::ask, run, scratch};

const SECURED: [Engine; 2] = [Engine::ElasticsearchSecured, Engine::OpenSearchSecured];

/// A certificate authority, and a certificate of a node that it has signed: for 127.0.0.1 and `search.test`.
struct Certificates {
    authority: PathBuf,
    key: PathBuf,
    node: PathBuf,
}

impl Certificates {
    fn new() -> Self {
        let folder = scratch().join(format!("certificates-{}", LeaseId::random()));
        fs::create_dir(&folder).unwrap();
        let names = "basicConstraints=CA:FALSE\nsubjectAltName=DNS:search.test,IP:127.0.0.1\n";
        fs::write(folder.join("names"), names).unwrap();
        let script = "set -e
            openssl req -x509 -newkey rsa:2048 -nodes -days 36500 -subj '/CN=the authority' \
                -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.pem
            openssl req -newkey rsa:2048 -nodes -subj /CN=node -keyout node.key -out node.csr
            openssl x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 36500 \
                -extfile names -out node.pem";
        let made = Command::new("sh")
            .args(["-c", script])
            .current_dir(&folder)
            .output();
        let made = made.unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        Self {
            authority: folder.join("ca.pem"),
            key: folder.join("node.key"),
            node: folder.join("node.pem"),
        }
    }
}

/// What stands before the server: `front.js`.
struct Front {
    port: String,
    _process: Going,
}

impl Front {
    fn new(host: &str, words: &[&Path]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/front.js");
        let mut command = Command::new("node");
        command.arg(script).arg(host).args(words);
        let mut process = Going::of(command);
        Self {
            port: process.line(),
            _process: process,
        }
    }

    fn tls(host: &str, certificates: &Certificates) -> Self {
        Self::new(
            host,
            &[Path::new("tls"), &certificates.key, &certificates.node],
        )
    }
}

/// The parts of the address of a place on an engine: the scheme with its plus sign, the user with the password, the host
/// and port, and the alias.
fn parts(place: &Place) -> [String; 4] {
    let (scheme, rest) = place.0.split_once("http://").unwrap();
    let (user, rest) = rest.rsplit_once('@').unwrap();
    let (host, alias) = rest.split_once('/').unwrap();
    [scheme, user, host, alias].map(str::to_owned)
}

/// A host and a port on which no server listens.
fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Runs the command on this store with one more variable.
fn with(
    place: &Place,
    variable: &str,
    value: impl AsRef<std::ffi::OsStr>,
    words: &[&str],
) -> Ended {
    let mut command = place.command(words);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.env(variable, value);
    run(command)
}

const RUN: [&str; 5] = ["run", "job", "--", "echo", "ran"];

#[test]
fn a_certificate_of_a_private_authority() {
    let certificates = Certificates::new();
    for engine in SECURED {
        let [scheme, user, host, alias] = parts(&Place::on(engine));
        let front = Front::tls(&host, &certificates);
        let plain = Place(format!(
            "{scheme}https://{user}@127.0.0.1:{}/{alias}?scripts=stored",
            front.port
        ));
        let refused = plain.leasehold(["prepare"]);
        let said = refused.saying(69);
        assert!(
            said.contains("UnknownIssuer") && said.contains("tlsCAFile"),
            "{said}"
        );

        // The system's certificates are those of this file.
        with(
            &plain,
            "SSL_CERT_FILE",
            &certificates.authority,
            &["prepare"],
        )
        .with(0);
        let authority = certificates.authority.display();
        let place = Place(format!("{}&tlsCAFile={authority}", plain.0));
        assert_eq!(place.leasehold(RUN).with(0), "ran");
        place.leasehold(["doctor"]).with(0);

        let missing = Place(format!("{}&tlsCAFile=/no%20such/ca.pem", plain.0));
        let said = missing.leasehold(["ls"]);
        assert!(said.saying(2).contains("/no such/ca.pem"), "{}", said.all());
        let key = Place(format!(
            "{}&tlsCAFile={}",
            plain.0,
            certificates.key.display()
        ));
        let said = key.leasehold(["ls"]);
        assert!(said.saying(2).contains("no certificate"), "{}", said.all());
    }
}

#[test]
fn an_api_key_is_enough() {
    let place = Place::on(Engine::ElasticsearchSecured);
    let stored = Place(format!("{}?scripts=stored", place.0));
    stored.leasehold(["prepare"]).with(0);
    let [scheme, _, host, alias] = parts(&place);
    let made = ask(
        Engine::ElasticsearchSecured,
        elasticsearch::http::Method::Post,
        "_security/api_key",
        &json!({ "name": alias, "role_descriptors": { "locks": { "indices": [{
            "names": [format!("{alias}*")],
            "privileges": ["read", "write", "view_index_metadata", "maintenance"],
        }] } } }),
    );
    let key = made["encoded"].as_str().unwrap();
    let with_key = |key: &str| {
        Place(format!(
            "{scheme}http://{host}/{alias}?scripts=stored&apiKey={key}"
        ))
    };
    assert_eq!(with_key(key).leasehold(RUN).with(0), "ran");
    let ended = with_key("d3Jvbmc6aHVudGVyMg==").leasehold(RUN);
    let said = ended.saying(77);
    assert!(said.contains("apiKey") && !said.contains("d3Jv"), "{said}");
    Place(format!("{scheme}http://{host}/{alias}"))
        .leasehold(["ls"])
        .saying(77);
}

/// Which node is used first is random, so the command runs some times. The doctor sends some twenty requests.
#[test]
fn a_node_that_is_down_fails_nothing() {
    for engine in SECURED {
        let [scheme, user, host, alias] = parts(&Place::on(engine));
        let place = Place(format!(
            "{scheme}http://{user}@{},{host}/{alias}?scripts=stored",
            closed()
        ));
        place.leasehold(["prepare"]).with(0);
        for _ in 0..4 {
            assert_eq!(place.leasehold(RUN).with(0), "ran");
            place.leasehold(["ls", "--all"]).with(0);
        }
        place.leasehold(["doctor"]).with(0);
        let none = Place(format!("{scheme}http://{},{}/{alias}", closed(), closed()));
        let ended = none.leasehold(["ls"]);
        let said = ended.saying(69);
        assert!(said.matches("http://127.0.0.1:").count() == 2, "{said}");
    }
}

#[test]
fn a_cluster_below_a_prefix() {
    for engine in SECURED {
        let [scheme, user, host, alias] = parts(&Place::on(engine));
        let front = Front::new(&host, &[Path::new("prefix")]);
        let place = Place(format!(
            "{scheme}http://{user}@127.0.0.1:{}/es/{alias}?scripts=stored",
            front.port
        ));
        place.leasehold(["prepare"]).with(0);
        assert_eq!(place.leasehold(RUN).with(0), "ran");
        let above = Place(place.0.replace("/es/", "/"));
        let ended = above.leasehold(["ls"]);
        assert!(ended.saying(69).contains("path ends"), "{}", ended.all());
    }
}

#[test]
fn a_proxy_is_used_and_named_but_not_on_the_way_to_this_host() {
    let certificates = Certificates::new();
    for engine in SECURED {
        let [scheme, user, host, alias] = parts(&Place::on(engine));
        let at = |server: &str| Place(format!("{scheme}{server}/{alias}?scripts=stored"));
        let remote = at(&format!("http://{user}@search.test:9200"));
        let front = Front::new(&host, &[Path::new("proxy")]);
        let proxy = format!("http://127.0.0.1:{}", front.port);
        with(&remote, "HTTP_PROXY", &proxy, &["prepare"]).with(0);
        assert_eq!(with(&remote, "HTTP_PROXY", &proxy, &RUN).with(0), "ran");

        // By CONNECT.
        let tls = Front::tls(&host, &certificates);
        let connect = Front::new(&format!("127.0.0.1:{}", tls.port), &[Path::new("proxy")]);
        let proxy = format!("http://127.0.0.1:{}", connect.port);
        let authority = certificates.authority.display();
        let secured = at(&format!("https://{user}@search.test"));
        let secured = Place(format!("{}&tlsCAFile={authority}", secured.0));
        assert_eq!(with(&secured, "HTTPS_PROXY", &proxy, &RUN).with(0), "ran");

        let nobody = closed();
        let proxy = format!("http://me:hunter2@{nobody}");
        let ended = with(&remote, "HTTP_PROXY", &proxy, &["ls"]);
        let said = ended.saying(69);
        assert!(
            said.contains("HTTP_PROXY") && said.contains(&nobody),
            "{said}"
        );
        assert!(!said.contains("hunter2"), "{said}");
        let local = at(&format!("http://{user}@{host}"));
        with(&local, "HTTP_PROXY", &proxy, &["ls"]).with(0);
    }
}
