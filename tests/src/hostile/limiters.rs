//! Documents of limiters that are damaged, of another version or of another application, and requests for permits on
//! each of them.

use std::{fmt::Debug, sync::Arc, time::Duration};

use chrono::Utc;
use leasehold::{
    Error, Key, Store,
    limits::MAX_WINDOW,
    store::{GiveBackRequest, PermitAnswer, PermitId, PermitRequest, Quota},
};
use serde_json::{Value, json};

use super::{
    KEY,
    shapes::{at, with, without},
};

const LIMIT: u32 = 10;
/// The id of the newest grant in all documents, and how many permits it has.
const LAST: &str = "33333333-3333-4333-8333-333333333333";
const GRANTED: u32 = 2;
const MINUTE: Duration = Duration::from_secs(60);

/// A kind of limiter.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The word for this kind in the id of the document.
    pub word: &'static str,
    /// The length of its windows, in milliseconds.
    pub window: i64,
    /// By how much a permit raises the field `used`.
    unit: i64,
}

/// Both kinds. The windows are so long that none ends during a test, and that hardly any permit comes back.
pub fn kinds() -> [Kind; 2] {
    let window = MAX_WINDOW.as_millis() as i64;
    [
        ("fixed", 1),
        ("smooth", window * 1_000_000 / i64::from(LIMIT)),
    ]
    .map(|(word, unit)| Kind { word, window, unit })
}

/// How a document has to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is a limiter with this many permits used up.
    Used(u32),
    /// The same, but the id of the newest grant is not valid.
    UsedBy(u32),
    OtherVersion,
    NoLimiter,
}

impl Kind {
    fn quota(&self) -> Quota {
        let fixed = Quota::fixed(LIMIT, MAX_WINDOW).unwrap();
        match self.word {
            "smooth" => fixed.smooth(LIMIT).unwrap(),
            _ => fixed,
        }
    }

    /// A request for one permit, with a new id.
    pub fn request(&self) -> PermitRequest {
        self.named(PermitId::random(), 1)
    }

    fn named(&self, id: PermitId, permits: u32) -> PermitRequest {
        PermitRequest::new(Key::new(KEY).unwrap(), id, self.quota(), permits)
    }

    /// A limiter with this many permits used up.
    pub fn used(&self, permits: i64) -> Value {
        json!({
            "limiter": 1, "key": KEY, "window": self.window, "kind": self.word,
            "granted_at": at(-60), "used": permits * self.unit, "last": LAST,
            "granted": GRANTED, "over_at": at(3_600),
        })
    }

    /// The documents and how they have to be judged. A store need not take those with fields of a wrong type.
    pub fn shapes(&self) -> Vec<(Verdict, Value)> {
        use Verdict::{NoLimiter, OtherVersion, Used, UsedBy};
        let three = || self.used(3);
        let is_fixed = self.word == "fixed";
        let float = 3.0 * self.unit as f64;
        let mut shapes = vec![
            (Used(3), three()),
            (Used(0), self.used(0)),
            (Used(LIMIT), self.used(LIMIT.into())),
            // Other languages may write numbers like this.
            (Used(3), with(three(), json!({ "used": float }))),
            (Used(3), with(three(), json!({ "granted": 2.0 }))),
            (Used(3), with(three(), json!({ "granted": 2.5 }))),
            (Used(3), with(three(), json!({ "limiter": 1.0 }))),
            (
                Used(LIMIT),
                with(three(), json!({ "used": float * 10.0 / 3.0 })),
            ),
            // These fields decide nothing.
            (UsedBy(3), without(three(), "last")),
            (UsedBy(3), with(three(), json!({ "last": "they" }))),
            (UsedBy(LIMIT), without(self.used(LIMIT.into()), "last")),
            (Used(3), without(three(), "over_at")),
            (Used(LIMIT), without(self.used(LIMIT.into()), "over_at")),
            (Used(3), without(without(three(), "window"), "kind")),
            // The clock was set back after the grant. More than ten seconds count as long as the window is the same.
            (Used(3), with(three(), json!({ "granted_at": at(5) }))),
            (
                if is_fixed { Used(3) } else { UsedBy(0) },
                with(three(), json!({ "granted_at": at(3_600) })),
            ),
            (
                UsedBy(0),
                with(three(), json!({ "granted_at": at(-400 * 86_400) })),
            ),
            (
                UsedBy(0),
                with(three(), json!({ "granted_at": at(800 * 86_400) })),
            ),
            // These are damaged.
            (NoLimiter, with(three(), json!({ "used": -1 }))),
            (NoLimiter, with(three(), json!({ "used": 1_i64 << 62 }))),
            (NoLimiter, with(three(), json!({ "used": i64::MAX }))),
            (NoLimiter, with(three(), json!({ "granted": -1 }))),
            (NoLimiter, with(three(), json!({ "granted": i64::MAX }))),
            (
                NoLimiter,
                with(self.used(LIMIT.into()), json!({ "granted": null })),
            ),
            // These belong to another version or another application.
            (NoLimiter, without(three(), "limiter")),
            (NoLimiter, with(three(), json!({ "limiter": 1.5 }))),
            (OtherVersion, with(three(), json!({ "limiter": 2 }))),
            (OtherVersion, with(three(), json!({ "limiter": 0 }))),
            (OtherVersion, json!({ "key": KEY, "limiter": 2 })),
            (NoLimiter, json!({ "key": KEY, "limiter": 1 })),
        ];
        for field in ["granted_at", "used", "granted"] {
            shapes.push((NoLimiter, without(three(), field)));
            shapes.push((NoLimiter, without(self.used(LIMIT.into()), field)));
        }
        for nonsense in [json!("7"), json!(true), json!([7]), json!({ "a": 7 })] {
            for field in ["limiter", "granted_at", "used", "granted"] {
                shapes.push((NoLimiter, with(three(), json!({ field: nonsense }))));
            }
            shapes.push((UsedBy(3), with(three(), json!({ "last": nonsense }))));
            shapes.push((Used(3), with(three(), json!({ "over_at": nonsense }))));
        }
        shapes
    }
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    One,
    /// As many as there are, two at a time.
    Many,
    /// More than there can be left.
    All,
    /// One, with the id of the newest grant.
    Again,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Granted(u32),
    Left(u32),
    Full,
    OtherVersion,
    NoLimiter,
    Failed(String),
}

/// Writes each document that the store takes, and asks for permits in each way. Returns how many documents the store
/// takes.
pub async fn are_judged_alike<D: Debug + PartialEq>(
    store: &Arc<dyn Store>,
    kind: Kind,
    shapes: &[(Verdict, D)],
    put: impl AsyncFn(&D) -> bool,
    get: impl AsyncFn() -> Option<D>,
) -> usize {
    let (mut taken, mut problems) = (0, Vec::new());
    for (verdict, document) in shapes {
        if !put(document).await {
            continue;
        }
        taken += 1;
        let found = get().await;
        let peeked = match store.peek(&Key::new(KEY).unwrap(), &kind.quota()).await {
            Ok(left) => Told::Left(left.remaining),
            Err(Error::NotALimiter { .. }) => Told::NoLimiter,
            Err(Error::UnsupportedSchema { .. }) => Told::OtherVersion,
            Err(error) => Told::Failed(format!("{error:?}")),
        };
        let expected = match *verdict {
            Verdict::Used(used) | Verdict::UsedBy(used) => Told::Left(LIMIT - used),
            Verdict::OtherVersion => Told::OtherVersion,
            Verdict::NoLimiter => Told::NoLimiter,
        };
        if peeked != expected || get().await != found {
            problems.push(format!("a peek at {document:?}: {peeked:?}"));
        }
        let (key, earlier) = (Key::new(KEY).unwrap(), Utc::now() - 2 * MINUTE);
        let given = GiveBackRequest::new(key.clone(), kind.quota(), 2, earlier);
        // Of two that come back one after the other, a part may have come back since then.
        let whole = if kind.word == "smooth" { 1 } else { 2 };
        let given = store.give_back(&given).await;
        let is_right = match *verdict {
            Verdict::Used(used) | Verdict::UsedBy(used) if used > 0 => {
                let left = store.peek(&key, &kind.quota()).await.unwrap();
                given.is_ok() && left.remaining == LIMIT - used + whole
            }
            _ => get().await == found,
        };
        if !is_right {
            problems.push(format!(
                "{document:?}, of which two are given back: {given:?}"
            ));
        }
        for ask in [Ask::One, Ask::Many, Ask::All, Ask::Again] {
            put(document).await;
            let found = get().await;
            let told = asked(store, kind, ask).await;
            let expected = match *verdict {
                Verdict::Used(_) if matches!(ask, Ask::Again) => Told::Granted(GRANTED),
                Verdict::Used(used) | Verdict::UsedBy(used) => granted(ask, LIMIT - used),
                Verdict::OtherVersion => Told::OtherVersion,
                Verdict::NoLimiter => Told::NoLimiter,
            };
            let mut check = |is_right: bool, told: &dyn Debug| {
                if !is_right {
                    problems.push(format!("{ask:?} of {document:?}: {told:?}"));
                }
            };
            check(told == expected, &told);
            match (verdict, told) {
                (Verdict::Used(_), Told::Granted(_)) if matches!(ask, Ask::Again) => {}
                (Verdict::Used(used) | Verdict::UsedBy(used), Told::Granted(permits)) => {
                    let left = LIMIT.saturating_sub(used + permits);
                    let told = asked_for(store, kind, PermitId::random(), 1, LIMIT).await;
                    check(
                        (left == 0 && told == Told::Full) || told == Told::Granted(left),
                        &told,
                    );
                }
                _ => check(get().await == found, &"it has changed the document"),
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    println!("{taken} of {} limiters", shapes.len());
    taken
}

/// The answer to this request if so many permits are left.
fn granted(ask: Ask, left: u32) -> Told {
    let permits = match ask {
        Ask::One | Ask::Again => left.min(1),
        Ask::Many => left / 2 * 2,
        Ask::All => left / LIMIT * LIMIT,
    };
    match permits {
        0 => Told::Full,
        permits => Told::Granted(permits),
    }
}

async fn asked(store: &Arc<dyn Store>, kind: Kind, ask: Ask) -> Told {
    let new = PermitId::random();
    match ask {
        Ask::One => asked_for(store, kind, new, 1, 1).await,
        Ask::Many => asked_for(store, kind, new, 2, LIMIT).await,
        Ask::All => asked_for(store, kind, new, LIMIT, 1).await,
        Ask::Again => asked_for(store, kind, PermitId::parse(LAST).unwrap(), 1, 1).await,
    }
}

async fn asked_for(
    store: &Arc<dyn Store>,
    kind: Kind,
    id: PermitId,
    permits: u32,
    times: u32,
) -> Told {
    match store.permit(&kind.named(id, permits).up_to(times)).await {
        Ok(PermitAnswer::Granted { permits, .. }) => Told::Granted(permits),
        Ok(PermitAnswer::Full { retry_in, .. }) if retry_in > Duration::ZERO => Told::Full,
        Err(Error::NotALimiter { .. }) => Told::NoLimiter,
        Err(Error::UnsupportedSchema { .. }) => Told::OtherVersion,
        other => Told::Failed(format!("{other:?}")),
    }
}
