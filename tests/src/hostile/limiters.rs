//! Documents of limiters that are damaged, of another version or of somebody else, and who asks for permits there.

use std::{fmt::Debug, sync::Arc, time::Duration};

use leasehold::{
    Error, Key, Store,
    limits::MAX_WINDOW,
    store::{PermitAnswer, PermitId, PermitRequest, Quota},
};
use serde_json::{Value, json};

use super::{
    KEY,
    shapes::{at, with, without},
};

const LIMIT: u32 = 10;
/// The name of the newest grant of all documents, and how many permits it has.
const LAST: &str = "33333333-3333-4333-8333-333333333333";
const GRANTED: u32 = 2;

/// A kind of limiter.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its word in the id of the document.
    pub word: &'static str,
    /// The length of its windows, in milliseconds.
    pub window: i64,
    /// What a permit uses up.
    unit: i64,
}

/// Both. Their windows are so long that none turns, and that hardly anything is earned back.
pub fn kinds() -> [Kind; 2] {
    let window = MAX_WINDOW.as_millis() as i64;
    [
        ("fixed", 1),
        ("smooth", window * 1_000_000 / i64::from(LIMIT)),
    ]
    .map(|(word, unit)| Kind { word, window, unit })
}

/// How a document is to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is a limiter of which so many permits are used up.
    Used(u32),
    /// The same, and the name of its newest grant makes no sense.
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

    /// A request for a permit under a new name.
    pub fn request(&self) -> PermitRequest {
        self.named(PermitId::random(), 1)
    }

    fn named(&self, id: PermitId, permits: u32) -> PermitRequest {
        PermitRequest::new(Key::new(KEY).unwrap(), id, self.quota(), permits)
    }

    /// A limiter of which so many permits are used up.
    pub fn used(&self, permits: i64) -> Value {
        json!({
            "limiter": 1, "key": KEY, "window": self.window, "kind": self.word,
            "granted_at": at(-60), "used": permits * self.unit, "last": LAST,
            "granted": GRANTED, "over_at": at(3_600),
        })
    }

    /// The documents. A store need not take those with fields of a wrong type.
    pub fn shapes(&self) -> Vec<(Verdict, Value)> {
        use Verdict::{NoLimiter, OtherVersion, Used, UsedBy};
        let three = || self.used(3);
        let is_fixed = self.word == "fixed";
        let float = 3.0 * self.unit as f64;
        let mut shapes = vec![
            (Used(3), three()),
            (Used(0), self.used(0)),
            (Used(LIMIT), self.used(LIMIT.into())),
            // As other languages write numbers.
            (Used(3), with(three(), json!({ "used": float }))),
            (Used(3), with(three(), json!({ "granted": 2.0 }))),
            (Used(3), with(three(), json!({ "granted": 2.5 }))),
            (Used(3), with(three(), json!({ "limiter": 1.0 }))),
            (
                Used(LIMIT),
                with(three(), json!({ "used": float * 10.0 / 3.0 })),
            ),
            // What decides nothing.
            (UsedBy(3), without(three(), "last")),
            (UsedBy(3), with(three(), json!({ "last": "they" }))),
            (UsedBy(LIMIT), without(self.used(LIMIT.into()), "last")),
            (Used(3), without(three(), "over_at")),
            (Used(LIMIT), without(self.used(LIMIT.into()), "over_at")),
            (Used(3), without(without(three(), "window"), "kind")),
            // Of a clock that was set back since; more than ten seconds count as long as the window is the same.
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
            // Damaged.
            (NoLimiter, with(three(), json!({ "used": -1 }))),
            (NoLimiter, with(three(), json!({ "used": 1_i64 << 62 }))),
            (NoLimiter, with(three(), json!({ "used": i64::MAX }))),
            (NoLimiter, with(three(), json!({ "granted": -1 }))),
            (NoLimiter, with(three(), json!({ "granted": i64::MAX }))),
            (
                NoLimiter,
                with(self.used(LIMIT.into()), json!({ "granted": null })),
            ),
            // Of others.
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
    /// Two at a time, as many as there are.
    Many,
    /// More than there can be left.
    All,
    /// With the name of the newest grant.
    Again,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Granted(u32),
    Full,
    OtherVersion,
    NoLimiter,
    Failed(String),
}

/// Puts each of the documents that the store takes, and asks for permits in each way. Returns how many it takes.
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

/// What there is to be told with so many permits left.
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
        Ok(PermitAnswer::Full { retry_in }) if retry_in > Duration::ZERO => Told::Full,
        Err(Error::NotALimiter { .. }) => Told::NoLimiter,
        Err(Error::UnsupportedSchema { .. }) => Told::OtherVersion,
        other => Told::Failed(format!("{other:?}")),
    }
}
