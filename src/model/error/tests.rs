use super::*;

#[test]
fn what_may_have_happened_can_be_tried_again() {
    let errors = [
        Error::Interrupted {
            store: "MongoDB",
            source: Cause::text("cut"),
        },
        Error::TimedOut {
            operation: "acquire",
            limit: Duration::from_secs(1),
        },
    ];
    for error in errors {
        assert!(error.is_ambiguous() && error.is_retryable(), "{error}");
    }
    let refused = Error::InvalidKey { bytes: 0 };
    assert!(!refused.is_ambiguous() && !refused.is_retryable());
}

#[test]
fn who_is_fenced_off_is_told_to_stop() {
    let fenced = |seen| Error::Fenced {
        fence: Fence::new(7),
        seen,
    };
    let text = fenced(Some(Fence::new(8))).to_string();
    assert!(
        text.contains("fence 7 is over") && text.contains("has seen 8: stop"),
        "{text}"
    );
    assert!(fenced(None).to_string().contains("has seen a newer one"));
    assert!(!fenced(None).is_retryable() && !fenced(None).is_ambiguous());
}

#[test]
fn an_error_crosses_threads() {
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<Error>();
}

/// The page has an entry for each error, under its name.
#[test]
fn each_error_is_in_the_troubleshooting() {
    let page = include_str!("../../../docs/troubleshooting.md");
    let source = include_str!("../error.rs");
    let (_, variants) = source.split_once("pub enum Error {").unwrap();
    let (variants, _) = variants.split_once("\n}").unwrap();
    let names = variants.lines().filter_map(|line| {
        let name = line.strip_prefix("    ")?;
        name.starts_with(char::is_uppercase).then_some(())?;
        name.split(|c: char| !c.is_alphanumeric()).next()
    });
    let names: Vec<_> = names.collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let heading = format!("\n### `Error::{name}`\n");
        assert!(page.contains(&heading), "{name} has no entry");
    }
}
