//! The changes of the metrics of a test's own thread.

use std::collections::{BTreeMap, HashMap};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, LocalRecorderGuard, Metadata, Recorder, SharedString,
    Unit,
};
use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};
use parking_lot::Mutex;

/// A metric, as the documentation describes it: its type, name and unit.
pub type Described = (&'static str, String, Option<Unit>);

/// Collects the descriptions of metrics.
#[derive(Default)]
struct Describing(Mutex<Vec<Described>>);

impl Recorder for Describing {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.0.lock().push(("counter", key.as_str().into(), unit));
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.0.lock().push(("gauge", key.as_str().into(), unit));
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.0.lock().push(("histogram", key.as_str().into(), unit));
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The metrics that `describe_metrics` describes.
pub fn described() -> Vec<Described> {
    let describing = Describing::default();
    metrics::with_local_recorder(&describing, leasehold::describe_metrics);
    describing.0.into_inner()
}

/// Records the metrics of this thread.
pub struct Meter {
    snapshotter: Snapshotter,
    _local: LocalRecorderGuard<'static>,
}

impl Meter {
    pub fn new() -> Self {
        // The recorder has to live longer than the guard. A test leaks only a few.
        let recorder: &DebuggingRecorder = Box::leak(Box::default());
        Self {
            snapshotter: recorder.snapshotter(),
            _local: metrics::set_default_local_recorder(recorder),
        }
    }

    /// The metrics that changed since the last call, by name and labels: the difference of a counter or a gauge, and
    /// the samples of a histogram. Panics if a metric is not described.
    pub fn moved(&self) -> BTreeMap<String, Vec<f64>> {
        let described: HashMap<_, _> = described()
            .into_iter()
            .map(|(kind, name, _)| (name, kind))
            .collect();
        let mut moved = BTreeMap::new();
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let kind = match key.kind() {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let name = key.key().name();
            assert_eq!(described.get(name), Some(&kind), "{name} is not described");
            let values = match value {
                DebugValue::Counter(count) => vec![count as f64],
                DebugValue::Gauge(by) => vec![by.into_inner()],
                DebugValue::Histogram(samples) => {
                    samples.into_iter().map(|it| it.into_inner()).collect()
                }
            };
            if values.iter().all(|value| *value == 0.0) && kind != "histogram" || values.is_empty()
            {
                continue;
            }
            let labels = key.key().labels();
            let labels: Vec<_> = labels
                .map(|it| format!("{}={}", it.key(), it.value()))
                .collect();
            let name = name.trim_start_matches("leasehold_");
            moved.insert([&[name.to_owned()], &labels[..]].concat().join(" "), values);
        }
        moved
    }
}

/// The expected changes.
pub fn these<const N: usize>(moved: [(&str, &[f64]); N]) -> BTreeMap<String, Vec<f64>> {
    let owned = moved.map(|(name, values)| (name.to_owned(), values.to_vec()));
    owned.into()
}
