//! A request to a server of an example, which a program would send by a client such as `reqwest`.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Sends a request such as `GET /leader` with these header fields and no body, and returns the whole response.
pub async fn ask(address: SocketAddr, what: &str, fields: &[(&str, &str)]) -> Result<String> {
    let fields = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"));
    let fields: String = fields.collect();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n{fields}\r\n"
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}
