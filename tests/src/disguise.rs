//! A proxy that makes a MongoDB server look like one that is not available here.

use std::{io, sync::Arc};

use mongodb::{
    bson::{Bson, Document, doc},
    options::{ClientOptions, ServerAddress},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
};

/// What the server looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disguise {
    /// A router of a sharded cluster.
    Router,
    /// The primary of a replica set, in front of a router: the answer to `$$NOW` is the router's time.
    Primary,
    /// A secondary of a replica set that has no primary.
    Secondary,
    /// An engine that refuses the same commands as Amazon DocumentDB 5.0, among those that are sent here: updates with
    /// pipelines, `$$NOW`, and retryable writes.
    WithoutPipelines,
    /// An engine that has neither TTL indexes nor change streams.
    Bare,
    /// An engine that lists neither collections nor indexes.
    Taciturn,
}

/// The kind of the answer to a query of the first versions of the protocol, with which drivers greet a server.
const OP_REPLY: i32 = 1;
const OP_MSG: i32 = 2_013;
/// The name of the replica set that the server seems to belong to.
const SET: &str = "disguised";
const HEADER: usize = 16;
/// The length of the fields of an `OP_REPLY` that follow the header.
const REPLY_FIELDS: usize = 20;

impl Disguise {
    /// The address of a new proxy to the server at this address. The proxy ends with the runtime.
    pub async fn of(self, address: &str) -> String {
        let options = ClientOptions::parse(address).await.unwrap();
        let server = Arc::new(options.hosts[0].clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap().to_string();
        let at = here.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, here) = (server.clone(), at.clone());
                tokio::spawn(async move {
                    // The client notices by itself if the connection breaks.
                    let _ = match &*server {
                        ServerAddress::Tcp { host, port } => {
                            let port = port.unwrap_or(27_017);
                            match TcpStream::connect((host.as_str(), port)).await {
                                Ok(server) => self.pass(client, server, &here).await,
                                Err(error) => Err(error),
                            }
                        }
                        ServerAddress::Unix { path } => match UnixStream::connect(path).await {
                            Ok(server) => self.pass(client, server, &here).await,
                            Err(error) => Err(error),
                        },
                        other => panic!("no address for a proxy: {other}"),
                    };
                });
            }
        });
        if self == Self::Secondary {
            return format!("mongodb://{here}/?replicaSet={SET}");
        }
        // A standalone server behind a proxy has no retryable writes.
        let retries = self == Self::Primary;
        format!("mongodb://{here}/?directConnection=true&retryWrites={retries}")
    }

    async fn pass<S>(self, mut client: TcpStream, mut server: S, here: &str) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            let request = message(&mut client).await?;
            if let Some(refusal) = command(&request).and_then(|it| self.refusal(&it)) {
                let answer = answer_to(&request, &refusal);
                client.write_all(&answer).await?;
                continue;
            }
            server.write_all(&request).await?;
            let answer = message(&mut server).await?;
            client.write_all(&self.changed(answer, here)).await?;
        }
    }

    /// The error that such a server answers to a command that it does not carry out.
    fn refusal(self, command: &Document) -> Option<Document> {
        let refused =
            |message: &str, code: i32| Some(doc! { "ok": 0.0, "errmsg": message, "code": code });
        match self {
            Self::Router | Self::Primary | Self::Secondary => return None,
            Self::Bare if command.contains_key("createIndexes") => {
                return refused("TTL indexes are not supported", 67);
            }
            Self::Bare if has_stage(command, "$changeStream") => {
                return refused("Change streams are not supported", 115);
            }
            Self::Bare => return None,
            Self::Taciturn => {
                let is_asked = |name| command.contains_key(name);
                return match ["listCollections", "listIndexes"]
                    .into_iter()
                    .find(|it| is_asked(*it))
                {
                    Some(_) => refused("no such command", 59),
                    None => None,
                };
            }
            Self::WithoutPipelines => {}
        }
        let is_pipeline = |value: Option<&Bson>| matches!(value, Some(Bson::Array(_)));
        let updates = command.get_array("updates").into_iter().flatten();
        let mut updates = updates.filter_map(Bson::as_document);
        if command.contains_key("txnNumber") {
            refused("Retryable writes are not supported", 301)
        } else if is_pipeline(command.get("update")) {
            let message = "Failed to parse update: field must be of BSON type object";
            refused(message, 9)
        } else if updates.any(|update| is_pipeline(update.get("u"))) {
            refused("Wrong type for parameter u", 9)
        } else if ["fields", "projection"]
            .iter()
            .any(|it| shows_the_time(command, it))
        {
            refused("Feature not supported: $$NOW", 303)
        } else {
            None
        }
    }

    /// The answer of the server, changed into one of the disguised server, which is at this address.
    fn changed(self, answer: Vec<u8>, here: &str) -> Vec<u8> {
        let Some(start) = document_in(&answer) else {
            return answer;
        };
        let Ok(mut document) = Document::from_reader(&answer[start..]) else {
            return answer;
        };
        if !document.contains_key("maxWireVersion") {
            return answer;
        }
        // With this field the driver would have the server answer greetings again and again.
        document.remove("topologyVersion");
        match self {
            Self::Router => {
                document.insert("msg", "isdbgrid");
            }
            Self::Primary => {
                document.remove("msg");
                document.insert("setName", SET);
            }
            Self::Secondary => {
                document.remove("msg");
                document.extend(doc! {
                    "isWritablePrimary": false, "ismaster": false, "secondary": true,
                    "setName": SET, "hosts": [here], "me": here,
                });
            }
            Self::WithoutPipelines | Self::Bare | Self::Taciturn => {}
        }
        with_document(&answer[..start], &document)
    }
}

/// Whether a command is an aggregation with this stage.
fn has_stage(command: &Document, stage: &str) -> bool {
    let stages = command.get_array("pipeline").into_iter().flatten();
    let mut stages = stages.filter_map(Bson::as_document);
    stages.any(|it| it.contains_key(stage))
}

/// Whether a projection of a command asks for the time.
fn shows_the_time(command: &Document, projection: &str) -> bool {
    let shown = command.get_document(projection).into_iter().flatten();
    shown
        .into_iter()
        .any(|(_, value)| value.as_str() == Some("$$NOW"))
}

/// The next message, with its header.
async fn message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = from.read_i32_le().await?;
    let mut message = length.to_le_bytes().to_vec();
    let rest = usize::try_from(length).unwrap_or(0).saturating_sub(4);
    message.resize(4 + rest, 0);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

fn number_at(message: &[u8], at: usize) -> Option<i32> {
    let bytes = message.get(at..at + 4)?;
    Some(i32::from_le_bytes(bytes.try_into().ok()?))
}

/// The place at which the document of a message begins. In a message with a command, flags and the kind of the section
/// come before it.
fn document_in(message: &[u8]) -> Option<usize> {
    match number_at(message, 12)? {
        OP_MSG => Some(HEADER + 5),
        OP_REPLY => Some(HEADER + REPLY_FIELDS),
        _ => None,
    }
}

fn command(request: &[u8]) -> Option<Document> {
    let start = document_in(request)?;
    Document::from_reader(&request[start..]).ok()
}

/// A message with this head and this document. The length in the head is set anew.
fn with_document(head: &[u8], document: &Document) -> Vec<u8> {
    let mut message = head.to_vec();
    document.to_writer(&mut message).unwrap();
    let length = i32::try_from(message.len()).unwrap();
    message[..4].copy_from_slice(&length.to_le_bytes());
    message
}

fn answer_to(request: &[u8], document: &Document) -> Vec<u8> {
    let id = number_at(request, 4).unwrap_or_default();
    let mut head = Vec::new();
    for number in [0, id, id, OP_MSG, 0] {
        head.extend(number.to_le_bytes());
    }
    // This is the kind of a section with one document.
    head.push(0);
    with_document(&head, document)
}
