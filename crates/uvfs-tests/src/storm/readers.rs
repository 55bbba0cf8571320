//! The threads that stat, and check each answer against the name's promise.

use std::sync::atomic::Ordering::SeqCst;

use fastrand::Rng;
use uvfs::{Attr, Context, Cred, Errno, Found, InodeId, Vfs};

use super::promise::{
    ALWAYS, GHOSTS, Growing, INSIDE, LEFT, PromiseToken, RESTAMPED, RIGHT, SWAP_A, SWAP_B, TokenSeen, never,
    one_of,
};
use super::{Shared, root, seen};

/// Ids that a reader remembers, to look them up again when they may be stale.
const REMEMBERED: usize = 64;

struct Reader<'v> {
    vfs: &'v Vfs,
    shared: &'v Shared,
    root: Context<'v>,
    user: Context<'v>,
    rng: Rng,
    always: Growing,
    restamped: Growing,
    ghosts: [Growing; GHOSTS],
    ids: Vec<(InodeId, u32)>,
}

/// Reads until the storm is over.
pub fn read(vfs: &Vfs, shared: &Shared, seed: u64) -> Result<(), String> {
    let mut reader = Reader {
        vfs,
        shared,
        root: vfs.context(root()),
        user: vfs.context(Cred::user(77, 77)),
        rng: Rng::with_seed(seed),
        always: Growing::default(),
        restamped: Growing::default(),
        ghosts: [Growing::default(); GHOSTS],
        ids: Vec::new(),
    };
    while !shared.stopped() {
        // The shared counters are updated once for many calls, so that threads contend only in the file system.
        let mut count = Count::default();
        for _ in 0..256 {
            reader.look(&mut count)?;
        }
        shared.stats.fetch_add(256, SeqCst);
        shared.found.fetch_add(count.found, SeqCst);
        shared.absent.fetch_add(count.absent, SeqCst);
        shared.denied.fetch_add(count.denied, SeqCst);
    }
    Ok(())
}

#[derive(Default)]
struct Count {
    found: u64,
    absent: u64,
    denied: u64,
}

impl Count {
    fn add(&mut self, answer: &Result<TokenSeen, Errno>) {
        match answer {
            Ok(_) => self.found += 1,
            Err(Errno::ACCESS) => self.denied += 1,
            Err(_) => self.absent += 1,
        }
    }
}

impl Reader<'_> {
    fn stat(&mut self, path: &[u8], count: &mut Count) -> Result<TokenSeen, Errno> {
        let answer = self.root.stat(path).map(|a| seen(&a));
        count.add(&answer);
        answer
    }

    /// One random look.
    fn look(&mut self, count: &mut Count) -> Result<(), String> {
        let which = self.rng.u32(..14);
        let told = match which {
            0 => self.always(count),
            1 => one_of(self.stat(b"/swap-a", count), &[SWAP_A, SWAP_B]),
            2 => one_of(self.stat(b"swap-b", count), &[SWAP_A, SWAP_B]),
            3 => one_of(self.stat(b"/left/../right/file", count), &[LEFT, RIGHT]),
            4 => one_of(self.stat(b"/left/file", count), &[LEFT, RIGHT]),
            5 => one_of(self.stat(b"/link", count), &[SWAP_A, SWAP_B, LEFT, RIGHT]),
            6 => self.restamped(count),
            7 => self.gate(count),
            8 => never(self.stat(b"/never", count)),
            9 => never(self.stat(b"/left/never", count)),
            10 => self.room(count),
            11 => self.crowd(count),
            12 => self.remembered(),
            _ => self.ghost(count),
        };
        told.map_err(|why| format!("look {which}: {why}"))
    }

    fn always(&mut self, count: &mut Count) -> Result<(), String> {
        let answer = self.stat(b"/always", count);
        let token = answer.map_err(|e| format!("/always: {e:?}, but the name always exists"))?.token()?;
        if token < ALWAYS || token >= RESTAMPED {
            return Err(format!("/always led to {token:?}"));
        }
        self.always.saw(token)
    }

    fn restamped(&mut self, count: &mut Count) -> Result<(), String> {
        let token = self.stat(b"/restamped", count).map_err(|e| format!("/restamped: {e:?}"))?.token()?;
        if token < RESTAMPED || token >= PromiseToken::ghost(0, 0) {
            return Err(format!("/restamped led to {token:?}"));
        }
        self.restamped.saw(token)
    }

    /// Root always gets in; other users only while the mode lets them.
    fn gate(&mut self, count: &mut Count) -> Result<(), String> {
        if self.rng.bool() {
            return one_of(self.stat(b"/gate/inside", count), &[INSIDE]);
        }
        let answer = self.user.stat(b"/gate/inside").map(|a| seen(&a));
        count.add(&answer);
        if answer == Err(Errno::ACCESS) { Ok(()) } else { one_of(answer, &[INSIDE]) }
    }

    fn room(&mut self, count: &mut Count) -> Result<(), String> {
        match self.root.stat(b"/room") {
            Ok(attr) if !attr.is_dir() => return Err(format!("/room is no directory: {attr:?}")),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(format!("/room: {e:?}")),
        }
        match self.stat(b"/room/in", count) {
            Ok(found) if found.owner_token()?.0 >> 24 == GHOSTS as u32 + 3 => Ok(()),
            Err(Errno::NOENT) => Ok(()),
            other => Err(format!("/room/in: {other:?}")),
        }
    }

    /// Looks a name up by path, by an operation on a held directory, or in the cache alone.
    fn ghost(&mut self, count: &mut Count) -> Result<(), String> {
        let name = self.rng.usize(..GHOSTS);
        let text = format!("ghost-{name}");
        let answer = match self.rng.u32(..3) {
            0 => self.root.lstat(text.as_bytes()).map(|a| (a, None)),
            1 => self.lookup(text.as_bytes()),
            _ => match self.vfs.lookup_cached(&self.vfs.op(&root()), &self.vfs.root(), text.as_bytes()) {
                Some(Ok(Found::Node(inode, attr))) => Ok((attr, Some(inode.id()))),
                Some(Ok(Found::Absent(_))) => Err(Errno::NOENT),
                Some(Err(e)) => Err(e),
                None => return Ok(()),
            },
        };
        count.add(&answer.as_ref().map(|(a, _)| seen(a)).map_err(|e| *e));
        match answer {
            Ok((attr, id)) => {
                let token = seen(&attr).owner_token()?;
                if token.0 >> 24 != name as u32 + 3 {
                    return Err(format!("ghost-{name} led to {token:?}"));
                }
                if let Some(id) = id {
                    self.remember(id, token);
                }
                self.ghosts[name].saw(token)
            }
            Err(Errno::NOENT) => {
                self.ghosts[name].absent();
                Ok(())
            }
            Err(e) => Err(format!("ghost-{name}: {e:?}")),
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<(Attr, Option<InodeId>), Errno> {
        match self.vfs.lookup(&self.vfs.op(&root()), &self.vfs.root(), name)? {
            Found::Node(inode, attr) => Ok((attr, Some(inode.id()))),
            Found::Absent(_) => Err(Errno::NOENT),
        }
    }

    fn remember(&mut self, id: InodeId, token: PromiseToken) {
        if self.ids.len() < REMEMBERED {
            self.ids.push((id, token.0));
        } else {
            let at = self.rng.usize(..REMEMBERED);
            self.ids[at] = (id, token.0);
        }
    }

    /// A stale id must be reported stale: its slot may long belong to another file.
    fn remembered(&mut self) -> Result<(), String> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let (id, uid) = self.ids[self.rng.usize(..self.ids.len())];
        let cached = self.vfs.cache().attr(id);
        let held = self.vfs.inode(id).map(|inode| inode.attr());
        for attr in cached.into_iter().chain(held.ok()) {
            if attr.uid != uid {
                return Err(format!("the id {id:?} of the file of {uid} now tells of {attr:?}"));
            }
        }
        Ok(())
    }

    /// A member of the crowd: present, absent or undecided, by the writer's position before and after.
    fn crowd(&mut self, count: &mut Count) -> Result<(), String> {
        let marks = &self.shared.crowd;
        let (round, made) = (marks.round.load(SeqCst), marks.made.load(SeqCst));
        let i = self.rng.u32(..made.max(16) + made / 8 + 1);
        let answer = self.stat(format!("/crowd/member-number-{i}").as_bytes(), count);
        let marks = &self.shared.crowd;
        let (gone, making) = (marks.gone.load(SeqCst), marks.making.load(SeqCst));
        if let Ok(found) = &answer {
            let token = found.owner_token()?;
            if token != PromiseToken(i + 1) {
                return Err(format!("member {i} of the crowd led to {token:?}"));
            }
        }
        let same_round = round.is_multiple_of(2) && marks.round.load(SeqCst) == round;
        match answer {
            Ok(_) if same_round && i >= making => Err(format!("member {i} of the crowd does not exist yet")),
            Err(Errno::NOENT) if same_round && i < made && i >= gone => {
                Err(format!("member {i} of the crowd is lost: made {made}, gone {gone}"))
            }
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(format!("member {i} of the crowd: {e:?}")),
        }
    }
}
