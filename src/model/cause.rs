//! `Cause`: the error of a database driver, or a text, as the source of an [`Error`](crate::Error).

use std::{error::Error as StdError, fmt, ops::Deref, sync::Arc};

/// The source of an [`Error`](crate::Error): the error of a database driver, or a text.
///
/// It can be cloned, because the error of one request may be given to many leases. A driver's message can contain whole
/// statements and buffers, so `Display` and `Debug` may show a sentence instead. The driver's error itself is in
/// [`Error::driver_error`](crate::Error::driver_error).
///
/// ```
/// use leasehold::{Error, store::Cause};
///
/// let error = Error::Store { store: "my store", source: Cause::text("the table is missing") };
/// ```
#[derive(Clone)]
pub struct Cause(Arc<dyn StdError + Send + Sync + 'static>);

impl Cause {
    /// A cause that is only a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self(Arc::from(Box::<dyn StdError + Send + Sync>::from(
            text.into(),
        )))
    }

    /// A cause that shows `text` instead of the error's own message.
    /// [`Error::driver_error`](crate::Error::driver_error) still gives the error.
    pub fn worded(text: impl Into<String>, error: impl StdError + Send + Sync + 'static) -> Self {
        let (text, error) = (text.into(), Arc::new(error));
        Self(Arc::new(Worded { text, error }))
    }

    /// The same cause, with another text.
    #[cfg(feature = "mongodb")]
    pub(crate) fn reworded(&self, text: impl Into<String>) -> Self {
        let worded = self.0.downcast_ref::<Worded>();
        let error = worded.map_or(&self.0, |worded| &worded.error).clone();
        let text = text.into();
        Self(Arc::new(Worded { text, error }))
    }

    /// The driver's error behind the source of an [`Error`](crate::Error), if it is of type `E`.
    pub(crate) fn original<'a, E: StdError + 'static>(
        source: &'a (dyn StdError + 'static),
    ) -> Option<&'a E> {
        match source.downcast_ref::<Worded>() {
            Some(worded) => worded.error.downcast_ref(),
            None => source.downcast_ref(),
        }
    }
}

/// An error whose message is replaced by a text.
struct Worded {
    text: String,
    error: Arc<dyn StdError + Send + Sync + 'static>,
}

impl StdError for Worded {}

impl fmt::Debug for Worded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for Worded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Cause {
    fn from(error: E) -> Self {
        Self(Arc::new(error))
    }
}

impl Deref for Cause {
    type Target = dyn StdError + Send + Sync + 'static;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::model::Error;

    #[test]
    fn the_drivers_error_can_be_had_back() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        let error = Error::Interrupted {
            store: "MongoDB",
            source: broken.into(),
        };
        let again = error.clone();
        let source = again.driver_error().map(io::Error::kind);
        assert_eq!(source, Some(io::ErrorKind::BrokenPipe));
    }

    #[test]
    fn an_error_with_a_text_of_its_own_shows_nothing_else() {
        let broken = io::Error::other("ec000000011f6b");
        let error = Error::Store {
            store: "MongoDB",
            source: Cause::worded("the pipe is broken", broken),
        };
        let source = error.source().unwrap();
        assert_eq!(source.to_string(), "the pipe is broken");
        assert!(source.source().is_none());
        assert!(!format!("{error:?}").contains("ec0000"));
        assert!(error.driver_error::<io::Error>().is_some());
    }
}
