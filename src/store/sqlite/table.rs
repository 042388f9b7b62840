//! The tables of a file: one row with a document for each lock or limiter.

use std::path::Path;

use chrono::{DateTime, Utc};
use rusqlite::{
    Connection, OptionalExtension, Row, ToSql, params,
    types::{ToSqlOutput, ValueRef},
};
use serde_json::Value;

use super::error::classify;
use crate::{
    messages::{ListRequest, Page},
    model::{Error, Key, LimiterRecord, LockRecord},
    rules::{Decision, Write},
    store::{json, listing},
};

/// How many rows one step of a purge reads.
const PURGE_PAGE: usize = 500;

/// A kind of document, and its statements.
pub(super) struct Table<R> {
    read: &'static str,
    put: &'static str,
    remove: &'static str,
    /// Selects a page of rows by name.
    page: &'static str,
    key: fn(&str) -> Option<Key>,
    decode: fn(&Value, &Key, DateTime<Utc>) -> Result<R, Error>,
    encode: fn(&R) -> Value,
    /// The fields that a write keeps as they are, unless the record sets them.
    kept: &'static [&'static str],
}

pub(super) const LOCKS: Table<LockRecord> = Table {
    read: "SELECT document FROM locks WHERE name = ?",
    put: "INSERT OR REPLACE INTO locks (name, document) VALUES (?, ?)",
    remove: "DELETE FROM locks WHERE name = ?",
    page: "SELECT name, document FROM locks WHERE name > ? AND name >= ? ORDER BY name LIMIT ?",
    key: |name| Key::new(name).ok(),
    decode: |document, key, now| json::lock(document, key)?.at(now),
    encode: json::of_lock,
    kept: &["done"],
};

pub(super) const LIMITERS: Table<LimiterRecord> = Table {
    read: "SELECT document FROM limiters WHERE name = ?",
    put: "INSERT OR REPLACE INTO limiters (name, document) VALUES (?, ?)",
    remove: "DELETE FROM limiters WHERE name = ?",
    page: "SELECT name, document FROM limiters WHERE name > ? AND name >= ? ORDER BY name LIMIT ?",
    // In a row's name, the key follows the kind and the length of the window.
    key: |name| Key::new(name.splitn(3, ':').nth(2)?).ok(),
    decode: |document, key, _| json::limiter(document, key),
    encode: json::of_limiter,
    kept: &[],
};

/// A transaction. A read gets it without `mut`, so it cannot write.
pub(super) struct Transaction<'a> {
    pub(super) connection: &'a Connection,
    pub(super) path: &'a Path,
    pub(super) now: DateTime<Utc>,
    pub(super) has_written: bool,
}

/// A column of text as it is stored. SQLite does not check that a text is UTF-8, and another program may have written
/// it.
#[derive(Clone, Debug, Default)]
pub(super) struct Text(Vec<u8>);

impl Text {
    fn of(row: &Row<'_>, column: usize) -> rusqlite::Result<Self> {
        Ok(Self(row.get_ref(column)?.as_bytes()?.to_vec()))
    }

    /// The text; empty if it is not UTF-8. An empty text is neither a key nor a document.
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl ToSql for Text {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// The record in a document. A text that is not JSON counts as a document without a schema, which is refused.
fn decode<R>(
    table: &Table<R>,
    text: &Text,
    key: &Key,
    now: DateTime<Utc>,
) -> Result<(Value, R), Error> {
    let document = serde_json::from_str(text.as_str()).unwrap_or_default();
    let record = (table.decode)(&document, key, now)?;
    Ok((document, record))
}

impl Transaction<'_> {
    /// Reads the document with this name and key, and the record in it.
    pub(super) fn read<R>(
        &self,
        table: &Table<R>,
        name: &str,
        key: &Key,
    ) -> Result<Option<(Value, R)>, Error> {
        let query = || {
            let mut read = self.connection.prepare_cached(table.read)?;
            read.query_row([name], |row| Text::of(row, 0)).optional()
        };
        let text = query().map_err(|error| classify(error, self.path))?;
        text.map(|text| decode(table, &text, key, self.now))
            .transpose()
    }

    /// Reads a page of locks.
    pub(super) fn page(&self, request: &ListRequest) -> Result<Page, Error> {
        let after = request.after.as_ref().map_or("", Key::as_str);
        let mut after = Text(after.into());
        let prefix = request.filter.wanted_prefix();
        let mut page = Page::default();
        loop {
            let rows = self.rows(&LOCKS, &after, prefix, request.limit)?;
            let mut is_last = rows.len() < request.limit;
            for (name, text) in &rows {
                // This crate writes only valid keys as names.
                let Ok(key) = Key::new(name.as_str()) else {
                    continue;
                };
                if !key.as_str().starts_with(prefix) {
                    is_last = true;
                    break;
                }
                let lock = decode(&LOCKS, text, &key, self.now);
                let lock = lock.map(|(_, lock)| (lock, self.now));
                listing::add(&mut page, key, lock, &request.filter);
            }
            if is_last {
                page.next = None;
            }
            match rows.into_iter().last() {
                // Without the key that it ends with, the next page could not be asked for.
                Some((last, _)) if !is_last && page.next.is_none() => after = last,
                _ => return Ok(page),
            }
        }
    }

    fn rows<R>(
        &self,
        table: &Table<R>,
        after: &Text,
        from: &str,
        limit: usize,
    ) -> Result<Vec<(Text, Text)>, Error> {
        let query = || {
            let mut page = self.connection.prepare_cached(table.page)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            page.query_map(params![after, from, limit], |row| {
                Ok((Text::of(row, 0)?, Text::of(row, 1)?))
            })?
            .collect::<rusqlite::Result<_>>()
        };
        query().map_err(|error| classify(error, self.path))
    }

    /// Whether SQLite has rolled the transaction back, as it does if the disk fails or is full. A later write would be
    /// a transaction of its own.
    pub(super) fn is_undone(&self) -> bool {
        self.connection.is_autocommit()
    }

    /// Reads a record, applies a rule to it, and writes the result.
    pub(super) fn decide<R, A>(
        &mut self,
        table: &Table<R>,
        name: &str,
        key: &Key,
        rule: impl FnOnce(Option<&R>, DateTime<Utc>) -> Decision<A, R>,
    ) -> Result<A, Error> {
        let (mut found, record) = self.read(table, name, key)?.unzip();
        let decision = rule(record.as_ref(), self.now);
        match decision.write {
            Write::Keep => {}
            Write::Put(record) => {
                let mut document = (table.encode)(&record);
                for name in table.kept {
                    let other = found.as_mut().and_then(|found| found.get_mut(name));
                    if let (Some(other), Some(fields)) = (other, document.as_object_mut()) {
                        fields.entry(*name).or_insert_with(|| other.take());
                    }
                }
                self.execute(table.put, params![name, document.to_string()])?;
            }
            Write::Remove => self.execute(table.remove, [name])?,
        }
        Ok(decision.answer)
    }

    /// Removes the rows whose record `is_over` among the next rows after this name. A row that cannot be decoded stays.
    /// Returns how many it removed, and the name after which the next step begins; `None` if this was the last one.
    pub(super) fn purge_page<R>(
        &mut self,
        table: &Table<R>,
        after: &Text,
        is_over: impl Fn(&R, DateTime<Utc>) -> bool,
    ) -> Result<(u64, Option<Text>), Error> {
        let rows = self.rows(table, after, "", PURGE_PAGE)?;
        let last = rows.last().filter(|_| rows.len() == PURGE_PAGE);
        let next = last.map(|(name, _)| name.clone());
        let mut removed = 0;
        for (name, text) in rows {
            let key = (table.key)(name.as_str());
            let record = key.and_then(|key| decode(table, &text, &key, self.now).ok());
            if record.is_some_and(|(_, record)| is_over(&record, self.now)) {
                self.execute(table.remove, [&name])?;
                removed += 1;
            }
        }
        Ok((removed, next))
    }

    fn execute(&mut self, statement: &str, params: impl rusqlite::Params) -> Result<(), Error> {
        let execute = || {
            let mut statement = self.connection.prepare_cached(statement)?;
            statement.execute(params)
        };
        execute().map_err(|error| classify(error, self.path))?;
        self.has_written = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{file, opening},
        *,
    };

    /// Programs in other languages follow the document, so it has to have every statement.
    #[test]
    fn the_protocol_document_has_every_statement() {
        let document = include_str!("../../../docs/protocol-sqlite.md");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let document = words(document);
        let locks = [LOCKS.read, LOCKS.put, LOCKS.remove, LOCKS.page];
        let others = file::STATEMENTS.into_iter().chain([opening::TABLES]);
        for statement in locks.into_iter().chain(others) {
            assert!(document.contains(&words(statement)), "{statement}");
        }
        let limiters = [LIMITERS.read, LIMITERS.put, LIMITERS.remove, LIMITERS.page];
        assert_eq!(limiters.map(|it| it.replace("limiters", "locks")), locks);
        let marks = format!(
            "`application_id` {} (\"LEAS\") and `user_version` {}",
            opening::APPLICATION,
            opening::VERSION
        );
        assert!(document.contains(&marks), "{marks}");
    }
}
