//! What the address of a search cluster says: a pure function of its text.

#[cfg(feature = "elasticsearch")]
use elasticsearch::http::Url;
#[cfg(not(feature = "elasticsearch"))]
use opensearch::http::Url;

use crate::address::error::{AddressError, invalid};

/// An address with all parts, for errors.
pub(super) const FORM: &str = "es+http://user:password@host:9200/alias";
/// The option of an address for clusters that forbid inline scripts.
const STORED_SCRIPTS: &str = "scripts=stored";

/// A search cluster, and where in it the locks are.
pub(super) struct Cluster {
    /// With the user and the password.
    pub(super) url: Url,
    pub(super) alias: String,
    pub(super) stored_scripts: bool,
}

impl Cluster {
    pub(super) fn parse(address: &str) -> Result<Self, AddressError> {
        let mut url = Url::parse(address).map_err(|_| invalid("HTTP", FORM))?;
        let alias = match url.path().trim_matches('/') {
            "" => "leasehold".to_owned(),
            path => path.to_owned(),
        };
        let stored_scripts = url.query() == Some(STORED_SCRIPTS);
        // Such a part may be the rest of a password that is not percent-encoded.
        let has_more = url.query().is_some() && !stored_scripts || url.fragment().is_some();
        if has_more || alias.contains(['/', '@']) {
            return Err(invalid("HTTP", FORM));
        }
        url.set_path("");
        url.set_query(None);
        Ok(Self {
            url,
            alias,
            stored_scripts,
        })
    }

    /// Its scheme, host and port, without the user and the password.
    pub(super) fn host(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}
