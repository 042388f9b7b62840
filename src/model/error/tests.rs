use chrono::{DateTime, TimeDelta};

use super::*;
use crate::model::{Holder, LeaseId};

#[test]
fn what_may_have_happened_can_be_tried_again() {
    let errors = [
        Error::Interrupted {
            store: "MongoDB",
            source: Cause::text("cut"),
        },
        Error::TimedOut {
            store: "the store".to_owned(),
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

/// The longest message.
const LONGEST: usize = 300;

/// A message has at most 300 characters and one line, however long the names are that it quotes. The sources have
/// lengths of their own, which the stores see to.
#[test]
fn a_message_is_a_sentence_whatever_it_quotes() {
    let text = "锁 ".repeat(128);
    let key = Key::new(&text).unwrap();
    assert_eq!(key.as_str().len(), MAX_KEY_BYTES);
    let store = "Elasticsearch";
    let source = || Cause::text("cut");
    let now = DateTime::from_timestamp_millis(1_700_000_000_123).unwrap();
    let lease = LeaseId::random();
    let granted = now + TimeDelta::days(365);
    let holder = Holder::exclusive(lease, (*text).into(), Fence::new(1), granted, granted);
    let tick = Tick::from(now);
    let done = Done::new(tick, (lease, (*text).into()), now, now);
    let waited = Duration::from_nanos(123_456_789_123);
    let errors = [
        Error::InvalidTick {
            text: "\u{1}".repeat(64),
        },
        Error::OtherTickKind {
            key: key.clone(),
            tick,
            done: tick,
        },
        Error::Done(done.clone()),
        Error::Superseded { tick, done },
        Error::TimedOut {
            store: format!("MongoDB ({text})"),
            operation: "the question where the locks are",
            limit: waited,
        },
        Error::NotTaken {
            key: key.clone(),
            ttl: waited,
        },
        Error::NotPrepared {
            store,
            problem: text.repeat(3),
        },
        Error::File {
            path: text.repeat(8).into(),
            source: source(),
        },
        Error::Contention { key: key.clone() },
        Error::UnsupportedSchema {
            key: key.clone(),
            found: text.clone(),
        },
        Error::NotALock {
            key: key.clone(),
            problem: text.clone(),
        },
        Error::NotALimiter {
            key: key.clone(),
            problem: text.clone(),
        },
        Error::WaitTimedOut {
            waited,
            held: Held::new(key.clone(), vec![holder], now),
        },
        Error::TooManyHolders { key: key.clone() },
        Error::LimitReached {
            key: key.clone(),
            waited,
            retry_in: waited,
            left: PermitsLeft {
                limit: 1,
                remaining: 0,
                reset_in: waited,
            },
        },
        Error::Lost {
            key: key.clone(),
            reason: LossReason::TakenOver,
        },
        Error::Lost {
            key: key.clone(),
            reason: LossReason::Unreachable(Box::new(Error::NotPrepared {
                store,
                problem: text.clone(),
            })),
        },
        Error::NotEnforceable {
            key,
            problem: "the lease is kept by another store than the one of the transaction",
        },
    ];
    for error in errors {
        let text = error.to_string();
        let length = text.chars().count();
        assert!(length <= LONGEST, "{length} characters: {text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

/// The page has a row for each error, with its name and with all the words of its message.
#[test]
fn each_error_is_in_the_troubleshooting() {
    let page = include_str!("../../../docs/troubleshooting.md");
    let source = include_str!("../error.rs");
    let (_, variants) = source.split_once("pub enum Error {").unwrap();
    let (variants, _) = variants.split_once("\n}").unwrap();
    let mut found = 0;
    for declaration in variants.split("#[error(").skip(1) {
        let mut lines = declaration.lines();
        let variant = lines.find_map(|line| {
            let name = line.strip_prefix("    ")?;
            name.starts_with(char::is_uppercase).then_some(name)
        });
        let name = variant.unwrap().split(|c: char| !c.is_alphanumeric());
        let name = name.into_iter().next().unwrap();
        let beginning = format!("| `Error::{name}`<br>");
        let row = page.lines().find(|line| line.starts_with(&beginning));
        let row = row.unwrap_or_else(|| panic!("{name} has no row"));
        let (message, _) = declaration[1 + declaration.find('"').unwrap()..]
            .split_once('"')
            .unwrap();
        // What is between braces stands for a value.
        for words in message.split(['{', '}']).step_by(2) {
            assert!(row.contains(words), "{name}: {words}");
        }
        found += 1;
    }
    assert!(found > 30, "{found}");
}
