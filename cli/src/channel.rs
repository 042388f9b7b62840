//! The connection between the process with the lease and the supervisor: a pair of sockets. It needs no file, so no
//! folder in which this user may write.
//!
//! The supervisor inherits its end as its standard input. The input of the command comes to it through that socket, as
//! a file descriptor.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, IsTerminal},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream as Socket,
    },
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use tokio::net::UnixStream;

use super::terminal;

/// A descriptor is sent together with data.
const DATA: &[u8] = b"\n";

/// Makes the two ends: that of the process with the lease, and that for the standard input of the supervisor. The input
/// of this process is on its way to the supervisor then.
pub fn pair(may_be_terminal: bool) -> io::Result<(UnixStream, OwnedFd)> {
    let (own, other) = Socket::pair()?;
    let input = input_of_command(may_be_terminal)?;
    let descriptors = [input.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let data = [IoSlice::new(DATA)];
    sendmsg(&own, &data, &mut control, SendFlags::empty())?;
    Ok((to_tokio(own)?, other.into()))
}

/// The end of the supervisor, which it has inherited, and the input of the command.
pub fn inherited() -> io::Result<(UnixStream, OwnedFd)> {
    let own = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [0; DATA.len()];
    let mut data = [IoSliceMut::new(&mut data)];
    recvmsg(&own, &mut data, &mut control, RecvFlags::empty())?;
    let input = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let input = input.ok_or_else(|| io::Error::other("the input of the command did not come"))?;
    // Otherwise the command would have it twice.
    fcntl_setfd(&input, FdFlags::CLOEXEC)?;
    Ok((to_tokio(own)?, input))
}

fn input_of_command(may_be_terminal: bool) -> io::Result<OwnedFd> {
    let input = io::stdin();
    if input.is_terminal() && !(may_be_terminal && terminal::is_input_in_foreground()) {
        // A read of a terminal that the command cannot be given would stop it.
        return File::open("/dev/null").map(OwnedFd::from);
    }
    input.as_fd().try_clone_to_owned()
}

fn to_tokio(socket: Socket) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
