//! The values that all parts of the crate share: keys, leases, fences, times and errors.

mod access;
mod brief;
mod cause;
mod error;
mod error_kind;
mod fence;
mod ids;
mod key;
mod limits;
mod lock_state;
mod mode;
mod permit;
mod place;
mod quota;
mod record;
mod tick;
mod time;
pub(crate) mod validation;
mod wait_policy;

pub use self::{
    access::{Access, Conversion, Permits},
    cause::Cause,
    error::{Error, LossReason},
    error_kind::ErrorKind,
    fence::Fence,
    ids::{LeaseId, PermitId},
    key::Key,
    limits::{
        MAX_HOLDERS, MAX_KEY_BYTES, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_PLACE_TIME, MAX_PLACES,
        MAX_TTL, MAX_WINDOW, SCHEMA,
    },
    lock_state::{Held, LockState},
    mode::Mode,
    permit::PermitsLeft,
    place::Place,
    quota::{Quota, WindowKind},
    record::{Holder, LimiterRecord, LockRecord},
    tick::{Done, LastDone, Tick, TickKind},
};
#[allow(
    unused_imports,
    reason = "some of them are only for the stores of some features"
)]
pub(crate) use self::{
    brief::{brief, quoted, sentence},
    limits::{FENCE_END, FENCES_PER_MILLI, LIMITER_SCHEMA, USED_END},
    time::{after, between},
    wait_policy::WaitPolicy,
};
