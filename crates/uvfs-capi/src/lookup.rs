//! Lookups and their tickets.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use uvfs_cache::{Errno, NodeKnown, NodeLookup, Ticket};

use crate::boundary::{call, given};
use crate::cache::uvfs_superblock;
use crate::values::{
    Data, Res, UVFS_ROOT, cache_error, ttl, uvfs_answer, uvfs_destroy, uvfs_entry, uvfs_name,
};

/// A lookup's result: the name leads to the node.
pub const UVFS_HIT: c_int = 1;
/// There is certainly no such name.
pub const UVFS_NEGATIVE: c_int = 2;
/// The cache does not know. The caller has the ticket, asks the back end, and ends the ticket.
pub const UVFS_MISS: c_int = 3;

/// The exclusive right to ask the back end about a name. Threads that look the name up meanwhile wait for it.
pub struct uvfs_ticket {
    ticket: Ticket<Data>,
    destroy: uvfs_destroy,
}

type TicketOut<'a> = Option<&'a mut MaybeUninit<Option<Box<uvfs_ticket>>>>;
type EntryOut<'a> = Option<&'a mut MaybeUninit<uvfs_entry>>;

/// Look a name up in the directory `dir`, and wait while another thread asks about it. On a hit the client holds
/// the node `lookups` times more (1 for a FUSE reply), until `uvfs_forget`. Returns UVFS_HIT (with `entry`),
/// UVFS_NEGATIVE, or UVFS_MISS (with `ticket`). A thread that has a ticket or a name lock must not wait here:
/// `uvfs_try_lookup`. Errors: those that another thread gave to `uvfs_ticket_fail`.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_lookup(
    superblock: Option<&uvfs_superblock>,
    dir: u64,
    name: uvfs_name,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
    ticket: Option<&mut MaybeUninit<Option<Box<uvfs_ticket>>>>,
) -> c_int {
    call(|| look(given(superblock)?, (dir, name.bytes()?), lookups, (entry, ticket), true))
}

/// `uvfs_lookup` that never waits. -EAGAIN: another thread asks about the name, or changes it.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_try_lookup(
    superblock: Option<&uvfs_superblock>,
    dir: u64,
    name: uvfs_name,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
    ticket: Option<&mut MaybeUninit<Option<Box<uvfs_ticket>>>>,
) -> c_int {
    call(|| look(given(superblock)?, (dir, name.bytes()?), lookups, (entry, ticket), false))
}

fn look(
    sb: &uvfs_superblock,
    (dir, name): (u64, &[u8]),
    lookups: u64,
    (entry, ticket): (EntryOut<'_>, TicketOut<'_>),
    wait: bool,
) -> Res<c_int> {
    let (entry, ticket) = (given(entry)?, given(ticket)?);
    let borrowed = sb.borrow(dir)?;
    match borrowed.child(name) {
        NodeKnown::Hit(node) => {
            if lookups != 0 {
                node.add_lookups(lookups);
            }
            let trusted = node.trusted_attr();
            let attr = trusted.unwrap_or_else(|| node.attr());
            let id = if node.id() == sb.root { UVFS_ROOT } else { node.id().as_u64() };
            entry.write(uvfs_entry { node: id, trusted: trusted.is_some(), attr: attr.into() });
            return Ok(UVFS_HIT);
        }
        NodeKnown::Negative => return Ok(UVFS_NEGATIVE),
        NodeKnown::Unknown => {}
    }
    drop(borrowed);
    let dir = sb.dir(dir)?;
    let found =
        if wait { dir.blocking_lookup(name)? } else { dir.try_lookup(name).map_err(|_| Errno::AGAIN)? };
    Ok(match found {
        NodeLookup::Hit(node) => {
            uvfs_entry::give(&node, lookups, Some(entry));
            UVFS_HIT
        }
        NodeLookup::Negative => UVFS_NEGATIVE,
        NodeLookup::Miss(got) => {
            ticket.write(Some(Box::new(uvfs_ticket { ticket: got, destroy: sb.destroy })));
            UVFS_MISS
        }
    })
}

/// Ends a ticket: the name leads to this inode. It is cached unless the directory changed meanwhile. The client
/// holds the node `lookups` times more. `entry` may be NULL. -ENOMEM: the data was destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_ticket_found(
    ticket: Option<Box<uvfs_ticket>>,
    answer: Option<&uvfs_answer>,
    lookups: u64,
    entry: Option<&mut MaybeUninit<uvfs_entry>>,
) -> c_int {
    call(|| {
        let ticket = given(ticket)?;
        let answer = match given(answer).and_then(|answer| answer.checked(ticket.destroy)) {
            Ok(answer) => answer,
            Err(errno) => {
                // The caller still has it.
                let _ = Box::into_raw(ticket);
                return Err(errno);
            }
        };
        let node = ticket.ticket.found(answer).map_err(cache_error)?;
        uvfs_entry::give(&node, lookups, entry);
        Ok(0)
    })
}

/// Ends a ticket: there is no such name. That is trusted for `name_ttl` milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_ticket_absent(ticket: Option<Box<uvfs_ticket>>, name_ttl: u64) -> c_int {
    call(|| {
        given(ticket)?.ticket.absent(ttl(name_ttl));
        Ok(0)
    })
}

/// Ends a ticket: the back end failed. All threads that wait for this name get -`error` (a positive errno).
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_ticket_fail(ticket: Option<Box<uvfs_ticket>>, error: c_int) -> c_int {
    call(|| {
        let errno = if (1..4096).contains(&error) { Errno::from_raw_os_error(error) } else { Errno::IO };
        given(ticket)?.ticket.fail(errno);
        Ok(0)
    })
}

/// Ends a ticket without an answer: one of the threads that wait gets the next ticket.
#[unsafe(no_mangle)]
pub extern "C" fn uvfs_ticket_drop(ticket: Option<Box<uvfs_ticket>>) {
    call(|| {
        drop(ticket);
        Ok(0)
    });
}
