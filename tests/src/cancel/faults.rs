//! The faults.

use std::{
    error::Error,
    fmt::{self, Display, Formatter},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{Cell, Gate};

/// A limit that only ends a hang: whatever is waited for comes sooner.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is held until everything else is over, and carried out then.
    RequestHeld,
    RequestCut,
    /// The answer comes when nobody waits for it any more.
    AnswerHeld,
    AnswerCut,
    AnswerSwallowed,
    /// The answer is cut or swallowed, and so is each that follows, until the operation has ended.
    AnswersLost,
}

pub const FAULTS: [Fault; 6] = [
    Fault::RequestHeld,
    Fault::RequestCut,
    Fault::AnswerHeld,
    Fault::AnswerCut,
    Fault::AnswerSwallowed,
    Fault::AnswersLost,
];

/// The faults that a driver may mend by itself.
pub const CUTS: [Fault; 3] = [Fault::RequestCut, Fault::AnswerCut, Fault::AnswersLost];

/// With one seed every cell has the same sequence of answers that are cut and answers that are
/// swallowed.
const SEED: u64 = 7;

/// A failure that a slow machine may be the reason of.
#[derive(Debug)]
pub(super) enum Excusable {
    /// The fault did not happen to the operation, or more than once, so the cell shows nothing.
    NotStruck(String),
    /// Something did not happen within the bound.
    Late(String),
}

impl Display for Excusable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (Self::NotStruck(why) | Self::Late(why)) = self;
        f.write_str(why)
    }
}

impl Error for Excusable {}

impl Cell {
    /// The fault will happen to the next request with this word.
    pub(super) fn strike(&self, word: &'static &'static str) {
        self.arm(word);
        self.armed.notify_one();
    }

    /// The same, but the operation is not to be dropped yet.
    pub(super) fn arm(&self, word: &'static &'static str) {
        let proxy = &self.proxy;
        let gate = match self.case.fault {
            Fault::RequestHeld | Fault::RequestCut => Some(proxy.hold_the_request(word)),
            Fault::AnswerHeld | Fault::AnswerCut => Some(proxy.hold_the_answer_to(word)),
            Fault::AnswerSwallowed => {
                proxy.swallow_the_answer_to(word);
                None
            }
            Fault::AnswersLost => {
                proxy.lose_share_of_answers(1.0, SEED, std::slice::from_ref(word));
                None
            }
        };
        *self.gate.lock() = gate;
    }

    /// Waits until the fault happens to a request, and returns the gate at which that is held.
    pub(super) async fn struck(&self) -> Option<Gate> {
        self.armed.notified().await;
        let gate = self.gate.lock().take();
        match &gate {
            Some(gate) => gate.reached().await,
            None => {
                let start = Instant::now();
                while self.proxy.lost() == 0 {
                    assert!(start.elapsed() < PATIENCE, "{:?}: not struck", self.case);
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        gate
    }

    /// A cell passes only if its fault has happened. By now everything that was held has come to
    /// its gate.
    pub(super) fn was_struck(&self) -> Result<(), Excusable> {
        let (cuts, lost) = (self.proxy.cuts(), self.proxy.lost());
        let struck = match self.case.fault {
            Fault::RequestHeld => self.proxy.late() == 1,
            Fault::AnswerHeld => (cuts, lost) == (0, 0),
            Fault::RequestCut => (cuts, lost) == (1, 0),
            Fault::AnswerCut => (cuts, lost) == (1, 1),
            Fault::AnswerSwallowed => (cuts, lost) == (0, 1),
            Fault::AnswersLost => lost > 0,
        };
        if struck {
            Ok(())
        } else {
            Err(Excusable::NotStruck(format!(
                "{cuts} connections cut and {lost} answers lost"
            )))
        }
    }
}
