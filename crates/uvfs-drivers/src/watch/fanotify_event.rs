//! Events as fanotify(7) writes them: metadata of 24 bytes, and information records behind it.
//!
//! Lengths are the kernel's, and checked all the same: for any bytes, the parser reads only within them, and it ends.
//! An event that is not understood is `None`, and nothing after it in the same buffer is trusted.

/// A file handle, as name_to_handle_at(2) gives it: its type, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchedHandle<'a> {
    /// `handle_type`.
    pub kind: i32,
    /// `f_handle`.
    pub bytes: &'a [u8],
}

/// The object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// A name in a directory.
    Name(WatchedHandle<'a>, &'a [u8]),
    /// A file or directory itself.
    Object(WatchedHandle<'a>),
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event<'a> {
    mask: u64,
    /// The id of the process that made the change; 0 if it is in another namespace.
    pub(super) pid: i32,
    records: &'a [u8],
}

/// FANOTIFY_METADATA_VERSION.
const VERSION: u8 = 3;
/// `struct fanotify_event_metadata`.
pub(super) const METADATA: usize = 24;
/// `struct fanotify_event_info_header`.
const INFO: usize = 4;
/// That, the file system's id, and the head of a `struct file_handle`.
const FID: usize = INFO + 8 + 8;

/// `FILEID_INVALID`: an event that is about no file.
const NO_FILE: i32 = 0xff;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The events of a buffer.
pub(super) struct Events<'a>(Option<&'a [u8]>);

impl<'a> Events<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(Some(bytes))
    }

    fn parse(bytes: &'a [u8]) -> Option<(Event<'a>, &'a [u8])> {
        let len = u32_at(bytes, 0)? as usize;
        let (this, rest) = bytes.split_at_checked(len)?;
        let head: &[u8; METADATA] = this.first_chunk()?;
        let records = usize::from(u16::from_ne_bytes([head[6], head[7]]));
        if head[4] != VERSION || records < METADATA {
            return None;
        }
        let mask = u64::from_ne_bytes(*head[8..].first_chunk()?);
        let pid = i32::from_ne_bytes(*head[20..].first_chunk()?);
        Some((Event { mask, pid, records: this.get(records..)? }, rest))
    }
}

impl<'a> Iterator for Events<'a> {
    /// `None` if the bytes are not understood.
    type Item = Option<Event<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.0.take().filter(|bytes| !bytes.is_empty())?;
        Some(Self::parse(bytes).map(|(event, rest)| {
            self.0 = Some(rest);
            event
        }))
    }
}

impl<'a> Event<'a> {
    /// Whether events were lost.
    pub(super) fn overflow(&self) -> bool {
        self.mask & libc::FAN_Q_OVERFLOW != 0
    }

    /// Whether names were changed.
    pub(super) fn of_names(&self) -> bool {
        let moved = libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO | libc::FAN_RENAME;
        self.mask & (libc::FAN_CREATE | libc::FAN_DELETE | moved) != 0
    }

    /// Whether content may have been changed.
    pub(super) fn of_content(&self) -> bool {
        self.mask & (libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE) != 0
    }

    /// Whether something was opened, which is reported only while the watch is being proven.
    pub(super) fn of_open(&self) -> bool {
        self.mask & libc::FAN_OPEN != 0
    }

    /// Whether it reports only that.
    pub(super) fn of_open_only(&self) -> bool {
        self.mask & !libc::FAN_ONDIR == libc::FAN_OPEN
    }

    /// Of a rename: the file, its directory now and its name there.
    pub(super) fn moved(&self) -> Option<(WatchedHandle<'a>, WatchedHandle<'a>, &'a [u8])> {
        if self.mask & libc::FAN_RENAME == 0 {
            return None;
        }
        let mut places = self.places().flatten();
        match (places.next(), places.next(), places.next()) {
            (Some(Place::Name(..)), Some(Place::Name(dir, name)), Some(Place::Object(file))) => {
                Some((file, dir, name))
            }
            _ => None,
        }
    }

    /// The places of the event; `None` for one that is not understood.
    pub(super) fn places(&self) -> impl Iterator<Item = Option<Place<'a>>> {
        let mut rest = Some(self.records);
        std::iter::from_fn(move || {
            loop {
                let bytes = rest.take().filter(|bytes| !bytes.is_empty())?;
                let Some((place, after)) = record(bytes) else { return Some(None) };
                rest = Some(after);
                if let Some(place) = place {
                    return Some(Some(place));
                }
            }
        })
    }
}

/// The first record and the bytes after it. It has no place if it is about nothing that we ask for.
fn record(bytes: &[u8]) -> Option<(Option<Place<'_>>, &[u8])> {
    let kind = *bytes.first()?;
    let len = usize::from(u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]));
    if len < INFO {
        return None;
    }
    let (this, rest) = bytes.split_at_checked(len)?;
    let named = match kind {
        libc::FAN_EVENT_INFO_TYPE_DFID_NAME
        | libc::FAN_EVENT_INFO_TYPE_OLD_DFID_NAME
        | libc::FAN_EVENT_INFO_TYPE_NEW_DFID_NAME => true,
        libc::FAN_EVENT_INFO_TYPE_FID | libc::FAN_EVENT_INFO_TYPE_DFID => false,
        _ => return Some((None, rest)),
    };
    let size = u32_at(this, FID - 8)? as usize;
    let handle = WatchedHandle { kind: u32_at(this, FID - 4)? as i32, bytes: this.get(FID..)?.get(..size)? };
    if handle.kind == NO_FILE || size == 0 {
        return Some((None, rest));
    }
    if !named {
        return Some((Some(Place::Object(handle)), rest));
    }
    let name = this.get(FID + size..)?;
    let name = &name[..name.iter().position(|byte| *byte == 0)?];
    let place = match name {
        // The directory itself.
        b"" | b"." => Place::Object(handle),
        name => Place::Name(handle, name),
    };
    Some((Some(place), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(kind: u8, handle: &[u8], name: Option<&[u8]>) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend((handle.len() as u32).to_ne_bytes());
        body.extend(1i32.to_ne_bytes());
        body.extend(handle);
        if let Some(name) = name {
            body.extend(name);
            body.push(0);
        }
        body.resize(body.len().next_multiple_of(4), 0);
        let len = (body.len() + INFO) as u16;
        [&[kind, 0][..], &len.to_ne_bytes(), &body].concat()
    }

    fn event(mask: u64, pid: i32, records: &[Vec<u8>]) -> Vec<u8> {
        let records = records.concat();
        let mut bytes = ((METADATA + records.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend([VERSION, 0]);
        bytes.extend((METADATA as u16).to_ne_bytes());
        bytes.extend(mask.to_ne_bytes());
        bytes.extend((-1i32).to_ne_bytes());
        bytes.extend(pid.to_ne_bytes());
        bytes.extend(records);
        bytes
    }

    fn handle(bytes: &[u8]) -> WatchedHandle<'_> {
        WatchedHandle { kind: 1, bytes }
    }

    fn sample() -> Vec<u8> {
        let named = info(libc::FAN_EVENT_INFO_TYPE_DFID_NAME, b"dir12345", Some(b"name"));
        let child = info(libc::FAN_EVENT_INFO_TYPE_FID, b"child678", None);
        let old = info(libc::FAN_EVENT_INFO_TYPE_OLD_DFID_NAME, b"olddir", Some(b"from"));
        let new = info(libc::FAN_EVENT_INFO_TYPE_NEW_DFID_NAME, b"newdir", Some(&[b'x'; 255]));
        let itself = info(libc::FAN_EVENT_INFO_TYPE_DFID_NAME, b"dir12345", Some(b"."));
        [
            event(libc::FAN_CREATE, 7, &[named, child.clone()]),
            event(libc::FAN_RENAME, 8, &[old, new, child]),
            event(libc::FAN_ATTRIB | libc::FAN_ONDIR, 0, &[itself, info(200, b"", None)]),
            event(libc::FAN_Q_OVERFLOW, 0, &[]),
        ]
        .concat()
    }

    #[test]
    fn events_say_what_they_are_about() {
        let bytes = sample();
        let events: Vec<_> = Events::new(&bytes).map(Option::unwrap).collect();
        assert_eq!(events.len(), 4);
        let places = |i: usize| events[i].places().map(Option::unwrap).collect::<Vec<_>>();
        assert_eq!(
            places(0),
            [Place::Name(handle(b"dir12345"), b"name"), Place::Object(handle(b"child678"))]
        );
        assert!(events[0].of_names() && !events[0].of_content() && events[0].pid == 7);
        assert_eq!(places(1).len(), 3);
        assert_eq!(places(1)[1], Place::Name(handle(b"newdir"), &[b'x'; 255]));
        let moved = (handle(b"child678"), handle(b"newdir"), &[b'x'; 255][..]);
        assert_eq!(events[1].moved(), Some(moved));
        assert!(events[0].moved().is_none() && events[2].moved().is_none());
        assert_eq!(places(2), [Place::Object(handle(b"dir12345"))]);
        assert!(!events[2].of_names() && !events[2].overflow() && events[3].overflow());
    }

    /// Every cut, every byte replaced by each of a few values: read to the end, within bounds, and ended.
    #[test]
    fn no_bytes_lead_out_of_the_buffer() {
        let whole = sample();
        let read = |bytes: &[u8]| -> usize {
            Events::new(bytes).map(|event| 1 + event.map_or(0, |event| event.places().count())).sum()
        };
        for cut in 0..whole.len() {
            assert!(read(&whole[..cut]) < 100);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 4, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                assert!(read(&bytes) < 1000);
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_not_passed_over() {
        let mut bytes = sample();
        bytes[4] = VERSION + 1;
        assert!(matches!(Events::new(&bytes).next(), Some(None)), "another version");
        let bytes = sample();
        assert!(Events::new(&bytes[..bytes.len() - 1]).any(|event| event.is_none()), "cut off");
    }
}
