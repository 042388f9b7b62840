//! The proxy that the environment names, for messages. The clients read the same variables by the same library.

use std::env;

use hyper_util::client::proxy::matcher::Matcher;

/// Tells of the proxy by which a request to this URL goes: its host and the variable that names it. `None` if there is
/// none.
pub(super) fn told(url: &str) -> Option<String> {
    let url = url.parse().ok()?;
    let proxy = Matcher::from_env().intercept(&url)?;
    let own = match url.scheme_str() {
        Some("https") => ["HTTPS_PROXY", "https_proxy"],
        _ => ["HTTP_PROXY", "http_proxy"],
    };
    let variables = own.into_iter().chain(["ALL_PROXY", "all_proxy"]);
    let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let variable = variables.into_iter().find(is_set)?;
    let host = proxy.uri().authority()?;
    // The matcher has taken the user and the password out.
    Some(format!("the proxy {host} of {variable}"))
}
