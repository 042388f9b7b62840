//! The kind of store that an address names.

/// Whether a missing file is created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    IfMissing,
    Never,
}

/// The kind of a search engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Elasticsearch,
    OpenSearch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    File,
    /// In the classic dialect, or by pipelines.
    MongoDb {
        classic: bool,
    },
    /// This engine, or the one that answers.
    Search(Option<Engine>),
}

impl Scheme {
    /// The feature that this kind of store needs.
    #[allow(dead_code, reason = "with the features of all stores none is missing")]
    pub(super) fn feature(self) -> &'static str {
        match self {
            Self::File => "sqlite",
            Self::MongoDb { .. } => "mongodb",
            Self::Search(Some(engine)) => engine.feature(),
            Self::Search(None) => "elasticsearch or opensearch",
        }
    }
}

impl Engine {
    /// The feature that its store needs.
    pub(super) fn feature(self) -> &'static str {
        match self {
            Self::Elasticsearch => "elasticsearch",
            Self::OpenSearch => "opensearch",
        }
    }
}

/// The scheme of an address, and the address as a driver knows it: without what only this crate has before it. For a
/// file it is the path.
pub(super) fn of(address: &str) -> Option<(Scheme, &str)> {
    if let Some(path) = address.strip_prefix("file:") {
        return Some((Scheme::File, path));
    }
    let (before, _) = address.split_once("://")?;
    // A password may contain a plus sign, but the scheme comes first.
    let (prefix, known) = match before.split_once('+') {
        Some((prefix @ ("classic" | "es" | "opensearch"), known)) => (Some(prefix), known),
        _ => (None, before),
    };
    let scheme = match (prefix, known) {
        (None, "mongodb" | "mongodb+srv") => Scheme::MongoDb { classic: false },
        (Some("classic"), "mongodb" | "mongodb+srv") => Scheme::MongoDb { classic: true },
        (None, "http" | "https") => Scheme::Search(None),
        (Some("es"), "http" | "https") => Scheme::Search(Some(Engine::Elasticsearch)),
        (Some("opensearch"), "http" | "https") => Scheme::Search(Some(Engine::OpenSearch)),
        _ => return None,
    };
    let start = prefix.map_or(0, |prefix| prefix.len() + 1);
    Some((scheme, address.get(start..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_store_first() {
        let search = |engine| Scheme::Search(Some(engine));
        for (address, scheme, rest) in [
            ("file:a+b://c", Scheme::File, "a+b://c"),
            (
                "mongodb+srv://me:a+b@h",
                Scheme::MongoDb { classic: false },
                "mongodb+srv://me:a+b@h",
            ),
            (
                "classic+mongodb://h",
                Scheme::MongoDb { classic: true },
                "mongodb://h",
            ),
            ("https://h/a", Scheme::Search(None), "https://h/a"),
            ("es+http://h", search(Engine::Elasticsearch), "http://h"),
            (
                "opensearch+https://h",
                search(Engine::OpenSearch),
                "https://h",
            ),
        ] {
            assert_eq!(of(address), Some((scheme, rest)), "{address}");
        }
        for address in ["", "h", "es+mongodb://h", "classic+http://h", "es://h"] {
            assert_eq!(of(address), None, "{address}");
        }
    }
}
