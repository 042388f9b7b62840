//! What strikes it.

use std::{
    error::Error,
    fmt::{self, Display, Formatter},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{Cell, Gate};

/// Longer than anything takes that is to come: it only ends a hang.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Until all is over: it is carried out late.
    RequestHeld,
    RequestCut,
    /// It comes when nobody waits for it any more.
    AnswerHeld,
    AnswerCut,
    AnswerSwallowed,
    /// Cut or swallowed, and so is each that follows, until the operation has ended.
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

/// Those that a driver may mend by itself.
pub const CUTS: [Fault; 3] = [Fault::RequestCut, Fault::AnswerCut, Fault::AnswersLost];

/// What loses the one answers loses the others.
const SEED: u64 = 7;

/// What may be the machine's doing.
#[derive(Debug)]
pub(super) enum Excusable {
    /// The fault did not strike the operation, or not once: the cell shows nothing.
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
    /// The next request with this word is struck.
    pub(super) fn strike(&self, word: &'static &'static str) {
        self.arm(word);
        self.armed.notify_one();
    }

    /// The same, and nobody is to be dropped yet.
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

    /// Waits until a request is struck, and gives the gate at which it stands.
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

    /// No cell passes without its fault. What was held has come to its gate.
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
