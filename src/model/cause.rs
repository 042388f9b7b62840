//! The error of a database driver inside one of ours.

use std::{error::Error as StdError, fmt, ops::Deref, sync::Arc};

/// The source of an [`Error`](crate::Error): the error of a database driver, or a text.
///
/// It can be cloned, because one failed request may be the trouble of many leases. It derefs to the
/// error itself; [`source`](StdError::source) gives that too, for a `downcast_ref` to the driver's
/// type.
#[derive(Clone)]
pub struct Cause(Arc<dyn StdError + Send + Sync + 'static>);

impl Cause {
    /// A cause that is nothing but its text.
    pub fn text(text: impl Into<String>) -> Self {
        Self(Arc::from(Box::<dyn StdError + Send + Sync>::from(
            text.into(),
        )))
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
        let source = again.source().and_then(|source| source.downcast_ref());
        assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::BrokenPipe));
    }
}
