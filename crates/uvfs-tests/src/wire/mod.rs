//! Sends FUSE messages that no kernel would send straight to the dispatcher of a small tmpfs.
//!
//! Messages are made from a seed. Most are well formed; they use nodes and handles that the server gave out (and that
//! may have been forgotten or released), or that never existed. One in a few is damaged: a field replaced by an extreme
//! value, bytes flipped, the end cut off.
//!
//! For any input these must hold. Every request that needs an answer gets exactly one, with its own number. An error is
//! one that the kernel accepts. No answer is longer than the request allows. The memory of the process stays within
//! [`WireOutcome::peak`].
//! kernel takes, no answer is longer than was asked for, and the memory of the process stays within [`WireOutcome::peak`].

pub mod command;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use uvfs::{Vfs, VfsConfig};
use uvfs_drivers::tmpfs::{Tmpfs, TmpfsOptions};
use uvfs_fuse::fuzz::Dispatch;

/// `struct fuse_in_header`.
const HEADER: usize = 40;
/// Operations that get no answer: FORGET, INTERRUPT, NOTIFY_REPLY, BATCH_FORGET.
const UNANSWERED: [u32; 4] = [2, 36, 41, 42];
/// How long an answer from another thread may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireOutcome {
    /// Messages that were sent.
    pub messages: u64,
    /// Messages answered without an error.
    pub succeeded: u64,
    /// The process's peak memory in bytes at the end, from VmHWM.
    pub peak: u64,
}

/// A generated message, and the longest answer it allows.
struct Message {
    bytes: Vec<u8>,
    most: usize,
}

/// Nodes and handles that a correct kernel would know.
struct Client {
    rng: Rng,
    nodes: Vec<u64>,
    handles: Vec<u64>,
    unique: u64,
}

impl Client {
    fn node(&mut self) -> u64 {
        match self.rng.u32(..20) {
            0 => self.extreme(),
            1..5 => 1,
            _ => self.rng.choice(&self.nodes).copied().unwrap_or(1),
        }
    }

    fn handle(&mut self) -> u64 {
        match self.rng.u32(..20) {
            0 => self.extreme(),
            _ => self.rng.choice(&self.handles).copied().unwrap_or(0),
        }
    }

    fn extreme(&mut self) -> u64 {
        let any = self.rng.u64(..);
        *self
            .rng
            .choice(&[0, 1, 2, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32, u64::from(u32::MAX), any])
            .unwrap_or(&0)
    }

    /// An offset in a file or a length: mostly small.
    fn place(&mut self) -> u64 {
        match self.rng.u32(..20) {
            0 => self.extreme(),
            _ => self.rng.u64(..1 << 16),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        let mut name = match self.rng.u32(..40) {
            0 => vec![b'n'; self.rng.usize(250..260)],
            1 => b"..".to_vec(),
            2 => b"a/b".to_vec(),
            3 => Vec::new(),
            _ => format!("n{}", self.rng.u32(..40)).into_bytes(),
        };
        name.push(0);
        name
    }

    /// The operation's structure and payload, and the longest answer it allows.
    fn body(&mut self, opcode: u32) -> (Vec<u8>, usize) {
        let mut out = Out(Vec::new());
        let mut most = 320;
        match opcode {
            1 | 10 | 11 => out.bytes(&self.name()),
            2 => out.u64(self.rng.u64(..3)),
            3 => out.u64(0).u64(self.handle()),
            4 => self.attributes(&mut out),
            5 => {
                most = 4096;
                &mut out
            }
            6 => out.bytes(&self.name()).bytes(&self.name()),
            8 => {
                out.u32(self.rng.u32(..0o200_000)).u32(self.rng.u32(..)).u32(0o22).u32(0).bytes(&self.name())
            }
            9 => out.u32(0o755).u32(0o22).bytes(&self.name()),
            12 => out.u64(self.node()).bytes(&self.name()).bytes(&self.name()),
            13 => out.u64(self.node()).bytes(&self.name()),
            14 | 27 => out.u32(self.rng.u32(..4)).u32(0),
            15 | 28 | 44 => {
                let size = *self.rng.choice(&[0, 1, 31, 512, 4096, 65_536, 1 << 20, u32::MAX]).unwrap_or(&0);
                most = size as usize;
                out.u64(self.handle()).u64(self.place()).u32(size).u32(0).u64(0).u32(0).u32(0)
            }
            16 => self.data(&mut out),
            18 | 29 => out.u64(self.handle()).u32(0).u32(0).u64(0),
            20 | 30 => out.u64(self.handle()).u32(1).u32(0),
            21 => {
                let value = vec![b'v'; self.rng.usize(..300)];
                out.u32(value.len() as u32).u32(self.rng.u32(..4));
                out.bytes(b"user.").bytes(&self.name()).bytes(&value)
            }
            22 | 23 => {
                let size = *self.rng.choice(&[0, 8, 65_536, u32::MAX]).unwrap_or(&0);
                most = (size as usize).clamp(8, 65_536);
                out.u32(size).u32(0).bytes(b"user.").bytes(&self.name())
            }
            24 => out.bytes(b"user.").bytes(&self.name()),
            26 => out.u32(7).u32(45).u32(131_072).u32(u32::MAX).bytes(&[0xff; 48]),
            36 => out.u64(self.unique.wrapping_sub(self.rng.u64(..4))),
            40 => out.u64(self.handle()).u64(7).u32(1).u32(5),
            42 => {
                let count = self.rng.u32(..4);
                out.u32(count).u32(0);
                for _ in 0..count {
                    let node = self.node();
                    out.u64(node).u64(1);
                }
                &mut out
            }
            43 => out.u64(self.handle()).u64(self.place()).u64(self.place()).u32(self.rng.u32(..64)).u32(0),
            45 => out.u64(self.node()).u32(self.rng.u32(..6)).u32(0).bytes(&self.name()).bytes(&self.name()),
            46 => out.u64(self.handle()).u64(self.place()).u32(self.rng.u32(..6)).u32(0),
            35 | 51 => out.u32(self.rng.u32(..)).u32(0o100_644).u32(0o22).u32(0).bytes(&self.name()),
            _ => {
                let junk: Vec<u8> = (0..self.rng.usize(..200)).map(|_| self.rng.u8(..)).collect();
                out.bytes(&junk)
            }
        };
        (out.0, most)
    }

    /// `struct fuse_setattr_in`.
    fn attributes<'o>(&mut self, out: &'o mut Out) -> &'o mut Out {
        out.u32(self.rng.u32(..1 << 12)).u32(0).u64(self.handle()).u64(self.place()).u64(0);
        out.u64(self.place()).u64(self.extreme()).u64(self.place());
        out.u32(self.rng.u32(..)).u32(5).u32(6).u32(self.rng.u32(..0o200_000)).u32(0);
        out.u32(self.rng.u32(..3)).u32(self.rng.u32(..3)).u32(0)
    }

    /// `struct fuse_write_in`, and data.
    fn data<'o>(&mut self, out: &'o mut Out) -> &'o mut Out {
        let data = vec![0x55; self.rng.usize(..9000)];
        out.u64(self.handle()).u64(self.place()).u32(data.len() as u32).u32(self.rng.u32(..8));
        out.u64(0).u32(self.rng.u32(..)).u32(0).bytes(&data)
    }

    fn message(&mut self) -> Message {
        self.unique += 2;
        // Names are made and looked up more often than removed, so that there is something to remove.
        let often = [1, 1, 3, 8, 9, 14, 15, 16, 35, 35, 44, 51];
        let opcode =
            if self.rng.bool() { *self.rng.choice(&often).unwrap_or(&1) } else { self.rng.u32(..60) };
        let (body, most) = self.body(opcode);
        let node = self.node();
        let (uid, gid) = (self.rng.u32(..2) * 1000, self.rng.u32(..2) * 1000);
        let mut out = Out(Vec::with_capacity(HEADER + body.len()));
        out.u32((HEADER + body.len()) as u32).u32(opcode).u64(self.unique).u64(node);
        out.u32(uid).u32(gid).u32(0).u32(0).bytes(&body);
        let mut message = Message { bytes: out.0, most };
        if self.rng.u32(..8) == 0 {
            self.damage(&mut message);
        }
        message
    }

    /// Damages a message. Keeps its number and operation, so that the answer can be found, and states its real length.
    fn damage(&mut self, message: &mut Message) {
        let bytes = &mut message.bytes;
        let from = 16;
        for _ in 0..self.rng.usize(1..4) {
            let at = self.rng.usize(from..bytes.len().max(from + 1));
            match self.rng.u32(..4) {
                0 => bytes.truncate(at.max(HEADER)),
                1 if at < bytes.len() => bytes[at] ^= 1 << self.rng.u32(..8),
                2 => {
                    let extreme = self.extreme().to_ne_bytes();
                    bytes.iter_mut().skip(at & !7).zip(extreme).for_each(|(byte, new)| *byte = new);
                }
                _ => bytes.extend_from_slice(&vec![self.rng.u8(..); self.rng.usize(..64)]),
            }
        }
        let len = (bytes.len() as u32).to_ne_bytes();
        bytes[..4].copy_from_slice(&len);
        message.most = 1 << 20;
    }

    /// Remembers the nodes and handles that a good answer gave out.
    fn learn(&mut self, opcode: u32, body: &[u8]) {
        let long = |at: usize| body.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_ne_bytes);
        let node = matches!(opcode, 1 | 6 | 8 | 9 | 13 | 35 | 51).then(|| long(0)).flatten();
        let handle = match opcode {
            14 => long(0),
            35 | 51 => long(128),
            _ => None,
        };
        for (known, new) in [(&mut self.nodes, node), (&mut self.handles, handle)] {
            if let Some(new) = new {
                if known.len() >= 64 {
                    let at = self.rng.usize(..known.len());
                    known.swap_remove(at);
                }
                known.push(new);
            }
        }
    }
}

struct Out(Vec<u8>);

impl Out {
    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }
    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// A front end of a small tmpfs.
fn dispatch() -> Result<Dispatch> {
    let options = TmpfsOptions { size: 8 << 20, nr_inodes: 512, ..TmpfsOptions::default() };
    Ok(Dispatch::new(Vfs::new(VfsConfig::default(), Tmpfs::new(options)?)?))
}

impl Client {
    fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), nodes: Vec::new(), handles: Vec::new(), unique: 0 }
    }
}

/// Sends the messages that a fuzzer's input encodes. Each message has:
///
/// - a byte for the operation;
/// - a byte that chooses the node (0 to 6: one that was given out; 7: the root) and the user (8: not root). Its upper
///   half chooses the handle with which the body begins (below 8: one that was given out);
/// - two bytes of length, and the body.
///
/// # Errors
/// As [`run`].
pub fn from_input(mut input: &[u8]) -> Result<()> {
    let (dispatch, mut client, mut outcome) = (dispatch()?, Client::new(0), WireOutcome::default());
    while let [opcode, choice, low, high, rest @ ..] = input {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
        input = rest;
        client.unique += 2;
        let known = |all: &[u64], n: u8| all.get(usize::from(n)).copied();
        let node = known(&client.nodes, choice & 7).filter(|_| choice & 7 != 7).unwrap_or(1);
        let mut out = Out(Vec::with_capacity(HEADER + body.len()));
        out.u32((HEADER + body.len()) as u32).u32((*opcode).into()).u64(client.unique).u64(node);
        let user = if choice & 8 == 0 { 0 } else { 1000 };
        out.u32(user).u32(user).u32(0).u32(0).bytes(body);
        let mut bytes = out.0;
        if let (Some(handle), Some(place)) =
            (known(&client.handles, choice >> 4), bytes.get_mut(HEADER..HEADER + 8))
        {
            place.copy_from_slice(&handle.to_ne_bytes());
        }
        let most = asked_for(*opcode, &bytes[HEADER..]);
        one(&dispatch, &mut client, &Message { bytes, most }, &mut outcome)?;
    }
    Ok(())
}

/// The longest answer that a message with this body allows, if the message states it.
fn asked_for(opcode: u8, body: &[u8]) -> usize {
    let size = |at: usize| {
        let bytes = body.get(at..at + 4).and_then(|size| size.try_into().ok());
        bytes.map_or(usize::MAX, |size| u32::from_ne_bytes(size) as usize)
    };
    match opcode {
        15 | 28 | 44 => size(16),
        // A request of size 0 asks for the size itself.
        22 | 23 => size(0).max(8),
        _ => 1 << 20,
    }
}

/// Sends `messages` messages generated from `seed`.
///
/// # Errors
/// A message that was answered wrongly, with the seed and its number.
pub fn run(seed: u64, messages: u64) -> Result<WireOutcome> {
    let (dispatch, mut client) = (dispatch()?, Client::new(seed));
    let mut outcome = WireOutcome::default();
    for number in 0..messages {
        let message = client.message();
        if let Err(error) = one(&dispatch, &mut client, &message, &mut outcome) {
            bail!("seed {seed}, message {number}: {error}: {:?}", message.bytes);
        }
    }
    outcome.peak = peak();
    Ok(outcome)
}

fn one(dispatch: &Dispatch, client: &mut Client, message: &Message, outcome: &mut WireOutcome) -> Result<()> {
    outcome.messages += 1;
    let bytes = &message.bytes;
    let opcode = u32::from_ne_bytes(bytes[4..8].try_into()?);
    ensure!(dispatch.message(bytes), "it is taken for no request");
    let mut said = dispatch.said();
    if UNANSWERED.contains(&opcode) {
        ensure!(said.is_empty(), "it was answered: {said:?}");
        return Ok(());
    }
    let deadline = Instant::now() + PATIENCE;
    while said.is_empty() && Instant::now() < deadline {
        std::thread::yield_now();
        said = dispatch.said();
    }
    let [answer] = said.as_slice() else { bail!("{} answers", said.len()) };
    ensure!(answer.unique == client.unique, "the answer is to {}", answer.unique);
    match &answer.body {
        Ok(body) => {
            ensure!(body.len() <= message.most, "{} bytes of at most {}", body.len(), message.most);
            outcome.succeeded += 1;
            client.learn(opcode, body);
        }
        Err(errno) => {
            ensure!((1..512).contains(&errno.raw_os_error()), "the kernel takes no error {errno:?}")
        }
    }
    Ok(())
}

/// The peak memory of this process.
pub fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_an_input_are_sent() {
        // INIT, then MKDIR and LOOKUP of "a", GETATTR of a node that was given out, and a truncated message.
        let init = [[7, 0, 0, 0], [45, 0, 0, 0], [0; 4], [0; 4]].concat();
        let input = [
            &[26, 7, 16, 0][..],
            &init,
            &[9, 7, 10, 0, 0xed, 1, 0, 0, 0, 0, 0, 0, b'a', 0],
            &[1, 7, 2, 0, b'a', 0],
            &[3, 0, 16, 0],
            &[0; 16],
            &[3, 0, 200, 9, 1],
        ]
        .concat();
        from_input(&input).expect("right answers");
    }

    #[test]
    fn hostile_messages_are_answered() {
        for seed in 0..4 {
            let outcome = run(seed, 20_000).expect("right answers");
            // Otherwise only the first checks were tested.
            assert!(outcome.succeeded > outcome.messages / 5, "{outcome:?}");
        }
    }
}
