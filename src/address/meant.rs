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

/// The address that was probably meant. `None` if that is not clear, or if the text may contain a password: with a user, or
/// in an option.
pub(super) fn meant(text: &str) -> Option<String> {
    if text.contains(['@', '?', '\n']) || text.len() > 100 {
        return None;
    }
    let renamed = |(wrong, right): &(&str, &str)| {
        let rest = text.strip_prefix(wrong)?;
        Some(format!("{right}{rest}"))
    };
    if let Some(renamed) = SCHEMES.iter().find_map(renamed) {
        return Some(renamed);
    }
    if text.contains("://") {
        return None;
    }
    let begins_like_a_path = ["/", "./", "../", "~/"]
        .iter()
        .any(|it| text.starts_with(it));
    if begins_like_a_path || FILES.iter().any(|it| text.ends_with(it)) {
        return Some(format!("file:{text}"));
    }
    let (host, rest) = text.split_once(':')?;
    let port = rest.split(['/', ',']).next()?;
    let (_, scheme) = PORTS.iter().find(|(known, _)| *known == port)?;
    (!host.is_empty()).then(|| format!("{scheme}{text}"))
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
        ] {
            assert_eq!(meant(text), None, "{text}");
        }
    }
}
