//! Documents in MongoDB.

use anyhow::{Context, Result};
use async_trait::async_trait;
use leasehold::{Error, Fence, fencing::GuardedCollection};
use mongodb::{
    Collection,
    bson::{Document, doc, to_document},
};

use super::{Content, Engine};

#[derive(Debug)]
pub(super) struct Mongo(pub(super) Collection<Content>);

fn of(content: Content) -> Document {
    let Content {
        number,
        writer,
        over,
    } = content;
    doc! { "number": number, "writer": writer, "over": over }
}

#[async_trait]
impl Engine for Mongo {
    async fn create(&self, id: &str) -> Result<()> {
        let mut first = to_document(&Content::default())?;
        first.insert("_id", id);
        let documents = self.0.clone_with_type::<Document>();
        documents.insert_one(first).await?;
        Ok(())
    }

    async fn claim(&self, id: &str, fence: Fence) -> Result<Option<Content>, Error> {
        GuardedCollection::new(&self.0, fence).claim(id).await
    }

    async fn write_guarded(&self, id: &str, fence: Fence, content: Content) -> Result<bool, Error> {
        let guarded = GuardedCollection::new(&self.0, fence);
        let update = doc! { "$set": of(content) };
        let written = guarded.update_one(doc! { "_id": id }, update).await?;
        Ok(written.matched_count > 0)
    }

    async fn read(&self, id: &str) -> Result<Content> {
        let found = self.0.find_one(doc! { "_id": id }).await?;
        found.context("no document")
    }

    async fn write(&self, id: &str, content: Content) -> Result<()> {
        let mut fields = of(content);
        fields.insert("over", "$writer");
        let update = vec![doc! { "$set": fields }];
        let written = self.0.update_one(doc! { "_id": id }, update).await?;
        anyhow::ensure!(written.matched_count > 0, "no document");
        Ok(())
    }
}
