//! Creating the index, or finding that it is there.

use serde_json::Value;

use super::{IndexStore, Transport, dialect::Request, scripts::SCRIPTS, setup::is_ours};
use crate::Error;

impl<C: Transport> IndexStore<C> {
    /// Creates the index with its mapping, its alias and, if asked for, the stored scripts.
    ///
    /// It can be repeated, at every start of the application for example, and by several processes
    /// at once. An index that has the alias already is kept, whatever its name and settings; what
    /// its mapping lacks is added. A failure is not remembered: the next call starts anew.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if the alias, or the name of the index, belongs to an index without
    /// the mapping of locks: such an index is left alone. Otherwise what the cluster answers, as
    /// [`Error`] says.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves what was created up to then. A repeated call is harmless.
    pub async fn prepare(&self) -> Result<(), Error> {
        if self.dialect.uses_stored_scripts() {
            for script in SCRIPTS {
                self.confirmed(self.dialect.store_script(script)).await?;
            }
        }
        let behind: Vec<String> = match self.send(&self.dialect.get_alias()).await? {
            Ok(Value::Object(found)) => found.keys().cloned().collect(),
            Ok(_) => return Err(self.senseless("it names no indices")),
            Err(refusal) if refusal.is_missing() => Vec::new(),
            Err(refusal) => return Err(refusal.sorted(C::NAME, None)),
        };
        match &*behind {
            [] => {}
            [index] => return self.adopt(index).await,
            several => {
                let several = several.join(", ");
                return Err(
                    self.not_prepared(format!("its alias is on several indices: {several}"))
                );
            }
        }
        let index = self.dialect.index();
        match self.send(&self.dialect.create_index(self.replicas)).await? {
            Ok(answer) => self.confirm(&answer),
            // Of another process just now, or one that lost its alias.
            Err(refusal) if refusal.is_existing_index() => {
                self.adopt(&index).await?;
                self.confirmed(self.dialect.put_alias(&index)).await
            }
            Err(refusal) => Err(refusal.sorted(C::NAME, None)),
        }
    }

    /// Brings the mapping of an index up to date, if it is one of ours.
    async fn adopt(&self, index: &str) -> Result<(), Error> {
        let mapping = self.ask(&self.dialect.get_mapping(index)).await?;
        if !is_ours(&mapping, index) {
            let problem = format!("the index {index} is there, without the mapping of locks");
            return Err(self.not_prepared(problem));
        }
        self.confirmed(self.dialect.put_mapping(index)).await
    }

    async fn confirmed(&self, request: Request) -> Result<(), Error> {
        let answer = self.ask(&request).await?;
        self.confirm(&answer)
    }

    /// A cluster that could not tell all of its nodes in time says so, with a good status.
    fn confirm(&self, answer: &Value) -> Result<(), Error> {
        match answer["acknowledged"] {
            Value::Bool(true) => Ok(()),
            _ => Err(self.senseless("it does not acknowledge the change")),
        }
    }

    fn not_prepared(&self, problem: String) -> Error {
        Error::NotPrepared {
            store: C::NAME,
            problem,
        }
    }
}
