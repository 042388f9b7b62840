//! The conversions of a lease, as their requests are sent and answered.

use super::{
    LeaseState,
    conversions::{Conversions, Opposites, Unanswered},
};
use crate::{
    messages::ConvertRequest,
    model::{Conversion, Fence, Mode},
};

impl LeaseState {
    /// The request to send next, so that the lease gets the mode of the wanted conversion and keeps it, and whether it
    /// is the opposite conversion. `sent` are the opposite ones that were carried out before.
    pub(crate) fn next_conversion(
        &self,
        wanted: Conversion,
        sent: Opposites,
    ) -> (ConvertRequest, bool) {
        let state = self.state.borrow();
        let (conversions, fence) = (state.conversions, state.fence);
        let is_opposite = conversions.opposite_comes_first(wanted, state.mode, fence, sent);
        drop(state);
        let request = ConvertRequest {
            key: self.key().clone(),
            lease: self.id(),
            conversion: if is_opposite {
                wanted.opposite()
            } else {
                wanted
            },
            fence: Some(fence),
        };
        (request, is_opposite)
    }

    /// The mode and the fence, and which conversions have no answer.
    pub(crate) fn mode_and_conversions(&self) -> (Mode, Fence, Unanswered) {
        let state = self.state.borrow();
        let unanswered = Unanswered {
            upgrades: state.conversions.upgrades > 0,
            downgrades: state.conversions.downgrades > 0,
        };
        (state.mode, state.fence, unanswered)
    }

    /// Records which conversions another process has sent without an answer, when the lease had this fence.
    pub(crate) fn set_unanswered(&self, fence: Fence, unanswered: Unanswered) {
        self.set(|state| {
            if state.fence > fence && unanswered.upgrades {
                // One of the upgrades was carried out. Nothing names the fence that it has given.
                state.mode = Mode::Exclusive;
            } else if state.fence == fence {
                state.conversions = Conversions {
                    upgrades: unanswered.upgrades.into(),
                    downgrades: unanswered.downgrades.into(),
                    upgraded: unanswered.upgrades,
                };
                if unanswered.downgrades {
                    // It may be shared already.
                    state.mode = Mode::Shared;
                }
            }
        });
    }

    /// Records that this conversion is sent.
    pub(crate) fn conversion_sent(&self, request: &ConvertRequest) {
        self.note(request, Conversions::sent);
    }

    /// Records that this conversion is answered, or was not carried out.
    pub(crate) fn conversion_answered(&self, request: &ConvertRequest) {
        self.note(request, Conversions::answered);
    }

    fn note(&self, request: &ConvertRequest, note: fn(&mut Conversions, Conversion)) {
        self.set(|state| {
            if request.fence == Some(state.fence) {
                note(&mut state.conversions, request.conversion);
            }
        });
    }

    /// Applies the mode and the fence that the lease had when this conversion was answered. Returns whether it was this
    /// lease: after a takeover, a late acquire request may have been granted the same lease id again, with another
    /// fence.
    ///
    /// Answers may arrive in any order, but what they say was true in [one order](super::conversions).
    pub(crate) fn apply_conversion(
        &self,
        request: &ConvertRequest,
        mode: Mode,
        fence: Fence,
    ) -> bool {
        let mut is_own = true;
        self.state.send_modify(|state| {
            if fence > state.fence {
                // A downgrade of an upgraded lease would have named the fence of the upgrade, which was not known.
                is_own =
                    mode == Mode::Exclusive && state.conversions.explains_greater_fence(state.mode);
                if is_own {
                    state.conversions.fence_changed();
                    (state.mode, state.fence) = (mode, fence);
                }
            } else if fence == state.fence && mode == Mode::Shared {
                state.mode = mode;
            } else if request.fence == Some(state.fence) {
                // The lease of an earlier grant.
                is_own = fence == state.fence;
            }
        });
        is_own
    }
}
