//! Creates the index, or checks one that exists.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    answer::Answer,
    fitness::{missing_aliases, several_indices},
    index_store::IndexStore,
    scripts::SCRIPTS,
    server::Server,
    statements::{HttpRequest, encoded, probe_of},
    transport::{REQUEST_TIMEOUT, Transport},
};
use crate::model::Error;

/// The settings with which an operator closes an index. (The cluster itself sets another one if a disk is full.)
const BLOCKS: [&str; 3] = ["read_only", "write", "read"];

impl<C: Transport> IndexStore<C> {
    /// Creates the index with its mapping, its two aliases and, if [`stored_scripts`](IndexStore::stored_scripts) is
    /// set, the scripts.
    ///
    /// The call can be repeated, for example at every start of the application, and by several processes at once. An
    /// index that already has one of the aliases is kept, whatever its name and its other settings. It gets the parts
    /// of the mapping and the aliases that it lacks. A failure is not remembered: the next call starts anew.
    ///
    /// The index has `_none` for `index.default_pipeline` and `index.final_pipeline`, so that no template gives it an
    /// ingest pipeline. At the end a lock of a key that no application uses is granted, found by a search, released and
    /// removed. So whatever an index template or somebody else has done to the index is found here, if locks do not
    /// work with it. A user who may not write to the index leaves that out.
    ///
    /// # Errors
    ///
    /// [`Error::NotPrepared`] if an alias, or the name of the index, belongs to an index that is not fit for locks, as
    /// [`check`](IndexStore::check) says, if an index template has made the new index unfit, if the index is blocked, or
    /// if the aliases are on several indices. An index that was there before is then left unchanged.
    /// Otherwise the error with which the cluster answers; see [`Error`].
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any point. What was created up to then stays, and a repeated call is harmless.
    pub async fn prepare(&self) -> Result<(), Error> {
        self.set_up().await?;
        let answer = self.ask(&self.statements.get_index()).await?;
        let answer = answer.describes_indices()?;
        let unfit = |problem| answer.server.not_prepared(problem);
        let index = self.statements.located(&answer.json).map_err(unfit)?;
        is_writable(&index, &answer.json[&index]).map_err(unfit)?;
        self.aliased_index.know(index);
        self.try_lock().await
    }

    /// Creates what is missing.
    async fn set_up(&self) -> Result<(), Error> {
        if self.statements.stored_scripts {
            for script in SCRIPTS {
                self.confirmed(self.statements.store_script(script)).await?;
            }
        }
        let mut behind = BTreeMap::new();
        for alias in self.statements.aliases() {
            behind.extend(self.behind(alias).await?);
        }
        match &*Vec::from_iter(behind) {
            [] => {}
            [(index, _)] => return self.adopt(index).await,
            several @ [(_, server), ..] => {
                let names = several.iter().map(|(index, _)| index.as_str());
                return Err(server.not_prepared(several_indices(names)));
            }
        }
        let create = self.statements.create_index(self.replicas);
        match self.send(&create).await? {
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
    /// - the mapping of locks of this version, with the whole `_source`, without required routing, and with the fields by
    ///   which lists and purges find locks,
    /// - no routing and no filter at the write alias,
    /// - no ingest or search pipelines, and no lifecycle policy,
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
        self.locate(REQUEST_TIMEOUT).await.map(drop)
    }

    /// The indices that have this alias, each with the server that told of it.
    ///
    /// An index whose own name this is does not have it. The request is for that name and not for the alias, because
    /// OpenSearch answers a request for an alias that is not there only to a user who may see all indices.
    async fn behind(&self, alias: &str) -> Result<Vec<(String, Server)>, Error> {
        match self.send(&self.statements.describe(alias)).await? {
            Ok(answer) => {
                let answer = answer.describes_indices()?;
                let found = answer.json.as_object().into_iter().flatten();
                let found = found.filter(|(_, it)| missing_aliases(it, &[alias]).is_empty());
                Ok(found
                    .map(|(index, _)| (index.clone(), answer.server.clone()))
                    .collect())
            }
            Err(refusal) if refusal.is_missing_index() => {
                // A second index behind the aliases would stop all processes that use the first one.
                match self.send(&probe_of(&encoded(alias))).await? {
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
        let description = &answer.json[index];
        let fit = self.statements.fit_for_locks(index, description);
        let fit = fit.and_then(|()| is_writable(index, description));
        fit.map_err(|problem| answer.server.not_prepared(problem))?;
        self.confirmed(self.statements.put_mapping(index, description))
            .await?;
        let missing = missing_aliases(description, &self.statements.aliases());
        if missing.is_empty() {
            return Ok(());
        }
        self.confirmed(self.statements.put_aliases(index, &missing))
            .await
    }

    async fn confirmed(&self, request: HttpRequest) -> Result<(), Error> {
        confirm(&self.ask(&request).await?)
    }
}

/// Whether nobody has closed the index to writes. An operation is repeated until an operator opens it again, and does
/// not ask for this.
fn is_writable(index: &str, description: &Value) -> Result<(), String> {
    let blocks = &description["settings"]["index"]["blocks"];
    let blocked = BLOCKS.iter().find(|block| blocks[block] == json!("true"));
    blocked.map_or(Ok(()), |block| {
        Err(format!(
            "index.blocks.{block} of the index {index} is true, so that no lock can be granted: set it to false"
        ))
    })
}

/// Requires that the cluster has acknowledged a change. If some nodes did not learn of it in time, the answer has a
/// success status nevertheless, and `acknowledged` is false.
fn confirm(answer: &Answer) -> Result<(), Error> {
    match answer.json["acknowledged"] {
        Value::Bool(true) => Ok(()),
        _ => Err(answer
            .server
            .malformed("it does not acknowledge the change")),
    }
}
