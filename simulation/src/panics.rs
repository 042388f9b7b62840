//! Panics while a run goes on. The library survives those of the application, and must have none of its own.

use std::{cell::RefCell, panic, sync::Once};

/// The message of a panic that a run makes on purpose.
pub const PLANNED: &str = "the work goes wrong, as it should";

thread_local! {
    /// The message of the first panic that nobody planned. `None` if no run goes on.
    static FIRST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the panics of this thread from now on.
pub fn watch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>();
            let is_planned = text.is_some_and(|text| text == PLANNED);
            FIRST.with_borrow_mut(|first| match first {
                None => before(info),
                Some(first) if first.is_empty() && !is_planned => *first = info.to_string(),
                Some(_) => {}
            });
        }));
    });
    FIRST.set(Some(String::new()));
}

/// The first panic that nobody planned, and whether there was one.
pub fn take() -> Option<String> {
    FIRST.take().filter(|first| !first.is_empty())
}
