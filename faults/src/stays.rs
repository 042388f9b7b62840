//! What the client reports of the leases that stay with its process. Only its events say why one goes back.

use std::fmt::{self, Debug};

use tracing::{
    Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

use crate::history::{Event, Recorder};

/// The message of the event for a lease that does not stay any more.
const GOES_BACK: &str = "a lease goes back";

/// Records the events of leases that go back.
pub struct Stays {
    recorder: Recorder,
}

impl Stays {
    pub fn of(recorder: Recorder) -> Self {
        Self { recorder }
    }
}

impl Subscriber for Stays {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target() == "leasehold"
            && *metadata.level() == Level::DEBUG
            && metadata.fields().field("at_once").is_some()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.message == GOES_BACK {
            self.recorder.saw(Event::WentBack {
                key: fields.key,
                lease: fields.lease,
                reason: fields.reason,
                at: self.recorder.clock.now(),
            });
        }
    }

    // Spans are off.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    key: String,
    lease: String,
    reason: String,
}

impl Fields {
    fn of(&mut self, field: &Field) -> Option<&mut String> {
        match field.name() {
            "message" => Some(&mut self.message),
            "key" => Some(&mut self.key),
            "lease" => Some(&mut self.lease),
            "reason" => Some(&mut self.reason),
            _ => None,
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if let Some(text) = self.of(field) {
            *text = value.to_owned();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if let Some(text) = self.of(field) {
            *text = format!("{value:?}");
        }
    }
}

impl fmt::Debug for Stays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stays").finish_non_exhaustive()
    }
}
