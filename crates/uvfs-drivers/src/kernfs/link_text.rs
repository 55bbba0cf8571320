//! The text of a symbolic link to a node: a relative path. It is made when the link is read, so it stays right
//! after either has moved.

use uvfs::types::{Errno, Result};

use super::tree::Nodes;

/// The numbers of a node and of all its ancestors, itself first.
fn ancestry(nodes: &Nodes, ino: u64) -> Result<Vec<u64>> {
    let mut line = vec![ino];
    let mut at = ino;
    loop {
        at = nodes.entry(at).ok_or(Errno::NOENT)?.parent;
        if at == 0 {
            return Ok(line);
        }
        line.push(at);
    }
}

/// The path from the directory `from` to the node `to`: up to their common ancestor, and down. All nodes
/// are locked.
pub(super) fn text(nodes: &Nodes, from: u64, to: u64) -> Result<Vec<u8>> {
    let (up, down) = (ancestry(nodes, from)?, ancestry(nodes, to)?);
    let shared = up.iter().rev().zip(down.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut parts: Vec<&[u8]> = vec![b".."; up.len() - shared];
    for ino in down.iter().rev().skip(shared) {
        parts.push(&nodes.entry(*ino).ok_or(Errno::NOENT)?.name);
    }
    Ok(if parts.is_empty() { b".".to_vec() } else { parts.join(&b'/') })
}
