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
