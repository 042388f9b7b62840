//! Which address was meant by a text that is none. This file is pure.

/// Names of schemes that people write, and those of this crate.
const SCHEMES: [(&str, &str); 9] = [
    ("mongo://", "mongodb://"),
    ("mongo+srv://", "mongodb+srv://"),
    ("elastic://", "es+http://"),
    ("elasticsearch://", "es+http://"),
    ("es://", "es+http://"),
    ("opensearch://", "opensearch+http://"),
    ("sqlite://", "file:"),
    ("sqlite:", "file:"),
    ("sqlite3:", "file:"),
];
/// The usual ports of the databases.
const PORTS: [(&str, &str); 2] = [("27017", "mongodb://"), ("9200", "http://")];
/// The usual endings of the names of files.
const FILES: [&str; 3] = [".db", ".sqlite", ".sqlite3"];

/// The address that was probably meant. `None` if that is not clear, or if the text may contain a password: with a user, in
/// an option, or where a port should be.
pub(super) fn meant(text: &str) -> Option<String> {
    let may_be_secret = |c: char| !(c.is_alphanumeric() || "/.:,-_+[] ".contains(c));
    if text.contains(may_be_secret) || text.len() > 100 {
        return None;
    }
    let renamed = |(wrong, right): &(&str, &str)| {
        let rest = text.strip_prefix(wrong)?;
        let is_plain = match *right {
            "file:" => !rest.contains(':'),
            _ => has_ports(rest),
        };
        is_plain.then(|| format!("{right}{rest}"))
    };
    if let Some(renamed) = SCHEMES.iter().find_map(renamed) {
        return Some(renamed);
    }
    if text.contains("://") {
        return None;
    }
    let begins_like_a_path = ["/", "./", "../"].iter().any(|it| text.starts_with(it));
    if begins_like_a_path || FILES.iter().any(|it| text.ends_with(it)) {
        return (!text.contains(':')).then(|| format!("file:{text}"));
    }
    let (host, rest) = text.split_once(':')?;
    let port = rest.split(['/', ',']).next()?;
    let (_, scheme) = PORTS.iter().find(|(known, _)| *known == port)?;
    (!host.is_empty() && has_ports(text)).then(|| format!("{scheme}{text}"))
}

/// Whether nothing but the numbers of ports follows the hosts of `HOST[:PORT],…/…`: no password.
fn has_ports(rest: &str) -> bool {
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_port = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let is_host = |host: &str| {
        let after_ipv6 = host.rsplit_once(']').map_or(host, |(_, port)| port);
        after_ipv6
            .split_once(':')
            .is_none_or(|(_, port)| is_port(port))
    };
    !path.contains(':') && hosts.split(',').all(is_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_clear_from_a_port_a_path_or_another_name() {
        for (text, address) in [
            ("localhost:27017", "mongodb://localhost:27017"),
            ("db.example:27017/app", "mongodb://db.example:27017/app"),
            ("localhost:9200", "http://localhost:9200"),
            ("mongo://db/app", "mongodb://db/app"),
            ("elasticsearch://es:9200", "es+http://es:9200"),
            ("sqlite:///var/lib/locks.db", "file:/var/lib/locks.db"),
            ("./locks.db", "file:./locks.db"),
            ("/var/lib/locks", "file:/var/lib/locks"),
            ("locks.db", "file:locks.db"),
        ] {
            assert_eq!(meant(text).as_deref(), Some(address));
        }
        for unclear in [
            "",
            "locks",
            "localhost",
            "localhost:5432",
            ":27017",
            "redis://db",
        ] {
            assert_eq!(meant(unclear), None, "{unclear}");
        }
    }

    #[test]
    fn a_text_that_may_have_a_password_is_not_repeated() {
        for text in [
            "mongo://me:hunter2@db",
            "me:hunter2@db:27017",
            "es://db:9200/locks?apiKey=hunter2",
            "db:9200/locks?apiKey=hunter2",
            "mongo://db/app?tlsCertificateKeyFilePassword=hunter2",
            "mongo://me:hunter2%40db/app",
            "mongo://me:hunter2/locks.db",
            "elastic://me:hunter2/locks.db",
            "me:hunter2/locks.db",
            "sqlite:me:hunter2",
            "mongo://h/a#k=hunter2",
            "mongo://h/me:hunter2",
            "h:27017,me:hunter2",
            "~/hunter2.db",
        ] {
            assert_eq!(meant(text), None, "{text}");
        }
    }
}
