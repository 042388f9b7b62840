//! The conversions of a lease, as their requests are sent and answered.

use super::{
    LeaseState,
    conversions::{Conversions, Unanswered},
};
use crate::{
    messages::ConvertRequest,
    model::{Conversion, Fence, Mode},
};

impl LeaseState {
    /// The request of this conversion, for the fence that the lease has.
    pub(crate) fn conversion(&self, conversion: Conversion) -> ConvertRequest {
        let (key, lease) = (self.key().clone(), self.id());
        match conversion {
            Conversion::Upgrade => ConvertRequest::upgrade(key, lease),
            Conversion::Downgrade => ConvertRequest::downgrade(key, lease),
        }
        .of_fence(self.fence())
    }

    /// Whether the opposite conversion is sent before the wanted one, which it could undo otherwise.
    pub(crate) fn opposite_comes_first(&self, wanted: Conversion) -> bool {
        let state = self.state.borrow();
        state.conversions.opposite_comes_first(wanted, state.mode)
    }

    /// The mode and the fence, and which conversions have no answer.
    pub(crate) fn mode_and_conversions(&self) -> (Mode, Fence, Unanswered<bool>) {
        let state = self.state.borrow();
        (state.mode, state.fence, state.conversions.unanswered())
    }

    /// Records which conversions another process has sent without an answer, when the lease had this fence.
    pub(crate) fn set_unanswered(&self, fence: Fence, unanswered: Unanswered<bool>) {
        self.set(|state| {
            if state.fence > fence && unanswered.upgrades {
                // One of the upgrades was carried out. Nothing names the fence that it has given.
                state.mode = Mode::Exclusive;
            } else if state.fence == fence {
                state.conversions = Conversions::of_another_process(unanswered);
                if unanswered.downgrades {
                    // It may be shared already.
                    state.mode = Mode::Shared;
                }
            }
        });
    }

    /// Records that this conversion is sent.
    pub(crate) fn conversion_sent(&self, request: &ConvertRequest) {
        self.set(|state| {
            if request.fence == Some(state.fence) {
                state.conversions.sent(request.conversion);
            }
        });
    }

    /// Records that this conversion is answered, or was not carried out.
    pub(crate) fn conversion_answered(&self, request: &ConvertRequest) {
        self.set(|state| {
            if request.fence == Some(state.fence) {
                state.conversions.answered(request.conversion);
            }
        });
    }

    /// Applies the mode and the fence that the lease had when this conversion was answered. Returns whether it was this
    /// lease: after a takeover, a late acquire request may have been granted the same lease id again, with another fence.
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
                    mode == Mode::Exclusive && state.conversions.explain_greater_fence(state.mode);
                if is_own {
                    state.conversions.has_other_fence();
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

    /// Whether an upgrade without an answer may still make the lease exclusive.
    pub(crate) fn may_be_upgraded(&self) -> bool {
        self.state.borrow().conversions.upgrade_is_unanswered()
    }
}
