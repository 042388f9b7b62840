//! The conversions of a lease, as their requests are sent and answered.

use super::{LeaseState, conversions::Conversions};
use crate::{
    messages::ConvertRequest,
    model::{Conversion, Fence, Mode},
};

impl LeaseState {
    /// The conversion to send next, so that the lease gets the mode of this one and keeps it.
    pub(crate) fn next_conversion(&self, wanted: Conversion) -> ConvertRequest {
        let (key, lease) = (self.key().clone(), self.id());
        let state = self.state.borrow();
        match state.conversions.next(wanted, state.mode) {
            Conversion::Upgrade => ConvertRequest::upgrade(key, lease),
            Conversion::Downgrade => ConvertRequest::downgrade(key, lease),
        }
        .of_fence(state.fence)
    }

    /// Whether an upgrade without an answer may still make the lease exclusive.
    pub(crate) fn may_be_upgraded(&self) -> bool {
        self.state.borrow().conversions.upgrade_is_unanswered()
    }

    /// Records that this conversion is sent.
    pub(crate) fn conversion_sent(&self, request: &ConvertRequest) {
        self.change_conversions(request, Conversions::sent);
    }

    /// Records that this conversion is answered, or was not sent.
    pub(crate) fn conversion_answered(&self, request: &ConvertRequest) {
        self.change_conversions(request, Conversions::answered);
    }

    /// Whether a conversion without an answer may still change the lease.
    pub(crate) fn is_converting(&self) -> bool {
        self.state.borrow().conversions.any_is_unanswered()
    }

    /// Records that another process has sent conversions which have no answer.
    pub(crate) fn set_converting(&self) {
        self.set(|state| {
            for conversion in [Conversion::Upgrade, Conversion::Downgrade] {
                state.conversions.sent(conversion);
            }
        });
    }

    fn change_conversions(
        &self,
        request: &ConvertRequest,
        change: fn(&mut Conversions, Conversion),
    ) {
        self.set(|state| {
            if request.fence == Some(state.fence) {
                change(&mut state.conversions, request.conversion);
            }
        });
    }

    /// Whether the lease may have this fence, which is another one than a conversion named. If so, an upgrade without an
    /// answer has given it, and the lease had this mode after it.
    pub(crate) fn adopt(&self, mode: Mode, fence: Fence) -> bool {
        let state = self.state.borrow();
        let (is_later, may_be) = (
            fence > state.fence,
            state.conversions.upgrade_is_unanswered(),
        );
        drop(state);
        if is_later && may_be {
            self.converted(mode, fence);
        }
        is_later && may_be
    }

    /// Applies the mode and the fence from the answer to a conversion. Answers may arrive in any order, but what they say
    /// was true in [one order](super::conversions).
    pub(crate) fn converted(&self, mode: Mode, fence: Fence) {
        self.state.send_modify(|state| {
            if fence > state.fence {
                state.conversions.has_other_fence();
                (state.mode, state.fence) = (mode, fence);
            } else if fence == state.fence && mode == Mode::Shared {
                state.mode = mode;
            }
        });
    }
}
