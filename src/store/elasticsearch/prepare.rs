//! Creates the index, or checks one that exists.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    answer::Answer, index_store::IndexStore, scripts::SCRIPTS, setup::missing_aliases,
    statements::HttpRequest, transport::Transport,
};
use crate::model::Error;

impl<C: Transport> IndexStore<C> {
    /// Creates the index with its mapping, its two aliases and, if [`stored_scripts`](IndexStore::stored_scripts) is
    /// set, the scripts.
    ///
    /// The call can be repeated, for example at every start of the application, and by several processes at once. An
    /// index that already has one of the aliases is kept, whatever its name and its other settings. It gets the parts
    /// of the mapping and the aliases that it lacks. A failure is not remembered: the next call starts anew.
    ///
    /// The index has `_none` for `index.default_pipeline` and `index.final_pipeline`, so that no template gives it an
    /// ingest pipeline.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if an alias, or the name of the index, belongs to an index that is not fit for locks, as
    /// [`check`](IndexStore::check) says, or if the aliases are on several indices. Those indices are left unchanged.
    /// Otherwise the error with which the cluster answers; see [`Error`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. What was created up to then stays, and a repeated call is harmless.
    pub async fn prepare(&self) -> Result<(), Error> {
        if self.statements.uses_stored_scripts() {
            for script in SCRIPTS {
                self.confirmed(self.statements.store_script(script)).await?;
            }
        }
        let mut behind = BTreeSet::new();
        for alias in self.statements.aliases() {
            behind.extend(self.behind(alias).await?);
        }
        match &*Vec::from_iter(behind) {
            [] => {}
            [index] => return self.adopt(index).await,
            several => {
                let [alias, write_alias] = self.statements.aliases();
                let several = several.join(" and ");
                return Err(self.not_prepared(format!(
                    "its aliases {alias} and {write_alias} are on several indices, {several}: take \
                     them from all but the one that has the locks"
                )));
            }
        }
        match self
            .send(&self.statements.create_index(self.replicas))
            .await?
        {
            Ok(answer) => confirm(&answer),
            // Another process has just created the index, or the index has lost its aliases.
            Err(refusal) if refusal.is_existing_index() => {
                self.adopt(&self.statements.index()).await
            }
            Err(refusal) => Err(refusal.classify(None)),
        }
    }

    /// Checks that locks can be acquired, and changes nothing. Both aliases must lead to one open index, with
    ///
    /// - the mapping of locks of this version, with the whole `_source` and without required routing,
    /// - no ingest pipelines,
    /// - a durable translog.
    ///
    /// The first operation of a process checks the same. Each call asks the cluster again, so it also notices a change
    /// since then.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if a condition does not hold; the error names the condition. Otherwise the error with
    /// which the cluster answers; see [`Error`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point.
    pub async fn check(&self) -> Result<(), Error> {
        self.locate().await.map(drop)
    }

    /// The indices that have this alias.
    ///
    /// An index whose own name this is does not have it. The request is for that name and not for the alias, because
    /// OpenSearch answers a request for an alias that is not there only to a user who may see all indices.
    async fn behind(&self, alias: &str) -> Result<Vec<String>, Error> {
        match self.send(&self.statements.describe(alias)).await? {
            Ok(answer) => {
                let answer = answer.describes_indices()?;
                let found = answer.as_object().into_iter().flatten();
                let has = |it: &&Value| missing_aliases(it, &[alias]).is_empty();
                let found = found.filter(|(_, description)| has(description));
                Ok(found.map(|(index, _)| index.clone()).collect())
            }
            Err(refusal) if refusal.is_missing_index() => {
                // A second index behind the aliases would stop all processes that use the first one.
                match self.send(&self.statements.probe_of(alias)).await? {
                    // A user who may only prepare may not search.
                    Err(probe) if probe.is_missing_index() || probe.is_denied() => Ok(Vec::new()),
                    Ok(_) | Err(_) => Err(self.classify(refusal, true, None)),
                }
            }
            Err(refusal) => Err(refusal.classify(None)),
        }
    }

    /// Adds the missing parts of the mapping and the missing aliases to an index, if the index is fit for locks.
    async fn adopt(&self, index: &str) -> Result<(), Error> {
        let answer = self.ask(&self.statements.describe(index)).await?;
        let answer = answer.describes_indices()?;
        let description = &answer[index];
        let fit = self.statements.fit_for_locks(index, description);
        fit.map_err(|problem| answer.server.not_prepared(problem))?;
        self.confirmed(self.statements.put_mapping(index, description))
            .await?;
        match &*missing_aliases(description, &self.statements.aliases()) {
            [] => Ok(()),
            missing => {
                let put = self.statements.put_aliases(index, missing);
                self.confirmed(put).await
            }
        }
    }

    async fn confirmed(&self, request: HttpRequest) -> Result<(), Error> {
        confirm(&self.ask(&request).await?)
    }

    fn not_prepared(&self, problem: String) -> Error {
        Error::NotPrepared {
            store: C::NAME,
            problem,
        }
    }
}

/// Requires that the cluster has acknowledged a change. If some nodes did not learn of it in time, the answer has a
/// success status nevertheless, and `acknowledged` is false.
fn confirm(answer: &Answer) -> Result<(), Error> {
    match answer["acknowledged"] {
        Value::Bool(true) => Ok(()),
        _ => Err(answer
            .server
            .malformed("it does not acknowledge the change")),
    }
}
