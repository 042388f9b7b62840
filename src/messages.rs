//! The requests to a store, and its answers.

mod acquire;
mod batch;
mod convert;
mod list;
mod look;
mod permit;
mod release;
mod renew;

pub(crate) use self::renew::{only_renewal, renewal_left_out};
pub use self::{
    acquire::{AcquireAnswer, AcquireRequest, Earlier, Grant, InTurn, OwnLeases, Turn},
    batch::{BatchAnswer, BatchAnswers, BatchRequest, MAX_BATCH},
    convert::{ConvertAnswer, ConvertRequest},
    list::{Eviction, Filter, ListRequest, Page},
    look::{LookAnswer, LookRequest},
    permit::{GiveBackRequest, PermitAnswer, PermitRequest},
    release::{DoneTick, MinHold, ReleaseAnswer, ReleaseKind, ReleaseRequest},
    renew::{KnownGrant, MAX_RENEWALS, RenewAnswer, RenewAnswers, RenewRequest},
};
