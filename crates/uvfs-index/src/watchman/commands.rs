//! The commands of a connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::clocks::{self, Since, Written};
use super::connection::Connection;
use super::query::{FIELDS, Query, sync_timeout};
use super::roots::Root;
use super::run::{NoAnswer, run, synchronise};
use super::subscriptions::{Asked, Inbox, StateEvent, Subscription};
use super::value::Value;
use super::wire::Answer;
use super::{AssertedState, CURSORS, METADATA, NAME, STATES, SUBSCRIPTIONS, WATCHMAN_VERSION, WEIGHT};
use crate::clock::ChangeClock;

/// How long states wait for changes that ended before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Commands that are answered.
const COMMANDS: [&str; 21] = [
    "version",
    "get-sockname",
    "get-pid",
    "get-config",
    "list-capabilities",
    "watch",
    "watch-project",
    "watch-list",
    "watch-del",
    "watch-del-all",
    "clock",
    "query",
    "find",
    "since",
    "subscribe",
    "unsubscribe",
    "flush-subscriptions",
    "state-enter",
    "state-leave",
    "log-level",
    "log",
];

/// Capabilities besides those of commands, terms and fields.
const FEATURES: [&str; 7] = [
    "relative_root",
    "wildmatch",
    "suffix-set",
    "dedup_results",
    "clock-sync-timeout",
    "bser-v2",
    "glob_generator",
];

fn has(capability: &str) -> bool {
    let of_kind = match capability.split_once('-') {
        Some(("cmd", name)) => COMMANDS.contains(&name),
        Some(("term", name)) => super::terms::NAMES.contains(&name),
        Some(("field", name)) => FIELDS.contains(&name),
        _ => false,
    };
    of_kind || FEATURES.contains(&capability)
}

fn answer<'a>(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Answer<'a> {
    let version = ("version", WATCHMAN_VERSION.into());
    Answer::new([version].into_iter().chain(entries).collect::<Vec<_>>())
}

/// The level of a log, which nothing is ever written to.
fn level_of(level: &Value) -> Result<&[u8], String> {
    let level = level.text().filter(|level| [&b"debug"[..], b"error", b"fatal", b"off"].contains(level));
    level.ok_or_else(|| "invalid log level: it is debug, error or off".into())
}

/// The text at a place of a request.
fn text<'a>(request: &'a [Value], at: usize, what: &str) -> Result<&'a [u8], String> {
    request
        .get(at)
        .and_then(Value::text)
        .ok_or_else(|| format!("invalid value for argument {at}, expected {what}"))
}

/// A name that the server keeps.
fn kept_name(name: &[u8]) -> Result<Vec<u8>, String> {
    if name.len() > NAME {
        return Err(format!("a name has {} bytes, and may have {NAME}", name.len()));
    }
    Ok(name.to_vec())
}

impl<'a> Connection<'a> {
    /// Answers a request.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn command(&mut self, request: &Value) -> Result<Answer<'a>, String> {
        const WANTS: &str = "invalid command: expected an array with the name of a command";
        let request = request.array().ok_or(WANTS)?;
        let name =
            request.first().and_then(Value::text).and_then(|name| str::from_utf8(name).ok()).ok_or(WANTS)?;
        match name {
            "version" => self.version(request),
            "get-sockname" => Ok(self.get_sockname()),
            "get-pid" => Ok(answer([("pid", Value::Int(std::process::id().into()))])),
            "list-capabilities" => Ok(list_capabilities()),
            "get-config" => Ok(answer([("config", self.root(request)?.watched.config.clone())])),
            "watch" => {
                let root = self.server.watch(text(request, 1, "a path")?, self.asker)?;
                Ok(answer([("watch", root[..].into()), ("watcher", "uvfs".into())]))
            }
            "watch-project" => self.watch_project(request),
            "watch-list" => Ok(answer([("roots", self.roots().into())])),
            "watch-del" => self.watch_del(request),
            "watch-del-all" => {
                let roots = self.roots();
                self.server.known.lock().roots.clear();
                self.ring_all();
                Ok(answer([("roots", roots.into())]))
            }
            "clock" => self.clock(request),
            "query" => {
                let root = self.root(request)?;
                let spec = request.get(2).ok_or("the query is missing")?;
                let query = Query::read(spec, &|moment| self.moment(&root, moment), self.regex_share())
                    .map_err(parsing)?;
                self.query(&root, &query)
            }
            "find" => {
                let root = self.root(request)?;
                let query = Query::of_patterns(&request[2..], None, self.regex_share()).map_err(parsing)?;
                self.query(&root, &query)
            }
            "since" => {
                let root = self.root(request)?;
                let since = request.get(2).ok_or("the clock is missing")?;
                let query =
                    Query::of_patterns(&request[3..], Some(since), self.regex_share()).map_err(parsing)?;
                self.query(&root, &query)
            }
            "subscribe" => self.subscribe(request),
            "unsubscribe" => self.unsubscribe(request),
            "flush-subscriptions" => self.flush_subscriptions(request),
            "state-enter" => self.state(request, true),
            "state-leave" => self.state(request, false),
            "log-level" => match request {
                [_, level] => Ok(answer([("log_level", level_of(level)?.into())])),
                _ => Err("wrong number of arguments to 'log-level': it takes a level".into()),
            },
            "log" => match request {
                [_, level, Value::Text(_)] => level_of(level).map(|_| answer([("logged", true.into())])),
                _ => Err("wrong number of arguments to 'log': it takes a level and a text".into()),
            },
            "trigger" | "trigger-del" | "trigger-list" => {
                Err(format!("{name}: this server runs no triggers; subscribe, and run the program yourself"))
            }
            "shutdown-server" => Err("this server also answers uvfs; end it with: uvfs index --stop".into()),
            name => Err(format!("unknown command {name}")),
        }
    }

    fn root(&self, request: &[Value]) -> Result<Root, String> {
        self.server.watched(text(request, 1, "a path")?, self.asker)
    }

    fn roots(&self) -> Vec<Value> {
        let mut roots: Vec<Vec<u8>> = self.server.known.lock().roots.keys().cloned().collect();
        // Those that are gone are found out now.
        roots.retain(|root| self.server.watched(root, self.asker).is_ok());
        roots.sort_unstable();
        roots.into_iter().map(Value::Text).collect()
    }

    fn ring_all(&self) {
        self.server.known.lock().inboxes.iter().for_each(|inbox| inbox.ring());
    }

    fn version(&self, request: &[Value]) -> Result<Answer<'a>, String> {
        let mut answer = answer([("buildinfo", concat!("uvfs ", env!("CARGO_PKG_VERSION")).into())]);
        let Some(wanted) = request.get(1) else { return Ok(answer) };
        let names = |key: &str| match wanted.get(key) {
            None => Ok(Vec::new()),
            Some(names) => names.texts().ok_or_else(|| format!("{key} must be an array of strings")),
        };
        let (optional, required) = (names("optional")?, names("required")?);
        let known = |name: &[u8]| str::from_utf8(name).is_ok_and(has);
        let all = [&optional[..], &required].concat();
        let all: Vec<(Vec<u8>, Value)> = all.iter().map(|name| (name.to_vec(), known(name).into())).collect();
        answer.entries.push(("capabilities", Value::Object(all)));
        if let Some(missing) = required.iter().find(|name| !known(name)) {
            let missing = String::from_utf8_lossy(missing);
            let error = format!("client required capability `{missing}` is not supported by this server");
            answer.entries.push(("error", error.into()));
        }
        Ok(answer)
    }

    fn get_sockname(&self) -> Answer<'a> {
        use std::os::unix::ffi::OsStrExt;
        let path = || Value::from(self.server.socket.as_os_str().as_bytes());
        answer([("sockname", path()), ("unix_domain", path())])
    }

    fn watch_project(&self, request: &[Value]) -> Result<Answer<'a>, String> {
        let (root, below) = self.server.watch_project(text(request, 1, "a path")?, self.asker)?;
        let mut answer = answer([("watch", root[..].into()), ("watcher", "uvfs".into())]);
        if !below.is_empty() {
            answer.entries.push(("relative_path", below[..].into()));
        }
        Ok(answer)
    }

    fn watch_del(&self, request: &[Value]) -> Result<Answer<'a>, String> {
        let root = self.root(request)?;
        let deleted = self.server.known.lock().roots.remove(&root.path).is_some();
        self.ring_all();
        Ok(answer([("watch-del", deleted.into()), ("root", root.path[..].into())]))
    }

    fn clock(&self, request: &[Value]) -> Result<Answer<'a>, String> {
        let root = self.root(request)?;
        let timeout =
            request.get(2).map_or(Ok(Duration::ZERO), |options| sync_timeout(options, Duration::ZERO))?;
        synchronise(&root, timeout)?;
        let clock = root.tree.figures().clock;
        Ok(answer([("clock", clocks::text(clock).into())]))
    }

    /// A moment in a question about a root.
    fn moment(&self, root: &Root, moment: &Value) -> Result<Since, String> {
        Ok(match clocks::written(moment)? {
            Written::Since(since) => since,
            Written::Cursor(name) => self.cursor(root, name),
        })
    }

    fn cursor(&self, root: &Root, name: Vec<u8>) -> Since {
        let known = self.server.known.lock();
        known.cursors.get(&(root.path.clone(), name)).copied().map_or(Since::Fresh, Since::Clock)
    }

    fn set_cursor(&self, root: &Root, name: Vec<u8>, clock: ChangeClock) -> Result<(), String> {
        let key = (root.path.clone(), kept_name(&name)?);
        let mut known = self.server.known.lock();
        if known.cursors.len() >= CURSORS && !known.cursors.contains_key(&key) {
            return Err(format!("there are {CURSORS} cursors, and more cannot be; use clocks instead"));
        }
        known.cursors.insert(key, clock);
        Ok(())
    }

    fn query(&self, root: &Root, query: &Query) -> Result<Answer<'a>, String> {
        synchronise(root, query.sync_timeout)?;
        let since = match &query.since {
            None => None,
            Some(Written::Since(since)) => Some(*since),
            Some(Written::Cursor(name)) => Some(self.cursor(root, name.clone())),
        };
        let _turn = self.turn(root).ok_or("the client has gone")?;
        let found = run(root, query, since, self.client()).map_err(NoAnswer::sentence)?;
        if let Some(Written::Cursor(name)) = &query.since {
            self.set_cursor(root, name.clone(), found.clock)?;
        }
        Ok(found.answer(vec![("version", WATCHMAN_VERSION.into())]))
    }

    fn subscribe(&mut self, request: &[Value]) -> Result<Answer<'a>, String> {
        let root = self.root(request)?;
        let name = kept_name(text(request, 2, "the name of a subscription")?)?;
        let spec = request.get(3).ok_or("the query is missing")?;
        let query =
            Query::read(spec, &|moment| self.moment(&root, moment), self.regex_share()).map_err(parsing)?;
        let states = |key: &str| match spec.get(key) {
            None => Ok(Vec::new()),
            Some(states) => match states.texts() {
                Some(states) => Ok(states.into_iter().map(<[u8]>::to_vec).collect()),
                None => Err(format!("{key} must be an array of strings")),
            },
        };
        let (defer, drop) = (states("defer")?, states("drop")?);
        let defer_vcs = spec.get("defer_vcs").and_then(Value::bool).unwrap_or(true);
        self.subscriptions.retain(|known| known.name != name || known.root != root.path);
        if self.subscriptions.len() >= SUBSCRIPTIONS {
            return Err(format!("a connection has at most {SUBSCRIPTIONS} subscriptions"));
        }
        let weight = self.subscriptions.iter().map(|known| known.query.weight).sum::<usize>() + query.weight;
        if weight > WEIGHT {
            return Err(format!("the subscriptions of a connection may take {WEIGHT} bytes, not {weight}"));
        }
        self.server.ring_from_now_on()?;
        let since = match &query.since {
            None => None,
            Some(Written::Since(since)) => Some(*since),
            Some(Written::Cursor(name)) => Some(self.cursor(&root, name.clone())),
        };
        let states = self.states_of(&root)?;
        let asserted: Vec<Value> = states.iter().map(|state| state[..].into()).collect();
        let clock = root.tree.figures().clock;
        let shown = Value::from(&name[..]);
        let root = root.path;
        self.subscriptions.push(Subscription { name, root, query, since, defer, drop, defer_vcs, states });
        self.ring();
        Ok(answer([
            ("subscribe", shown),
            ("clock", clocks::text(clock).into()),
            ("asserted-states", asserted.into()),
        ]))
    }

    /// The states of a root. Events of later ones come to the inbox.
    fn states_of(&mut self, root: &Root) -> Result<HashSet<Vec<u8>>, String> {
        let new = match &self.inbox {
            Some(_) => None,
            None => {
                Some(Arc::new(Inbox::new().map_err(|error| format!("cannot wait for changes: {error}"))?))
            }
        };
        let mut known = self.server.known.lock();
        if let Some(new) = new {
            known.inboxes.push(Arc::clone(&new));
            self.inbox = Some(new);
        }
        let of_root = known.states.iter().filter(|state| state.root == root.path);
        Ok(of_root.map(|state| state.name.clone()).collect())
    }

    fn unsubscribe(&mut self, request: &[Value]) -> Result<Answer<'a>, String> {
        let root = self.root(request)?;
        let name = text(request, 2, "the name of a subscription")?;
        let before = self.subscriptions.len();
        self.subscriptions.retain(|known| known.name != name || known.root != root.path);
        let deleted = before > self.subscriptions.len();
        Ok(answer([("unsubscribe", name.into()), ("deleted", deleted.into())]))
    }

    fn flush_subscriptions(&mut self, request: &[Value]) -> Result<Answer<'a>, String> {
        let root = self.root(request)?;
        let options = request.get(2).ok_or("flush-subscriptions needs an object with sync_timeout")?;
        synchronise(&root, sync_timeout(options, PATIENCE)?)?;
        let wanted = match options.get("subscriptions") {
            None => None,
            Some(names) => Some(names.texts().ok_or("subscriptions must be an array of strings")?),
        };
        let (mut synced, mut unneeded, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
        let mut nth = 0;
        while let Some(known) = self.subscriptions.get(nth) {
            let name = known.name.clone();
            if known.root != root.path || wanted.as_ref().is_some_and(|wanted| !wanted.contains(&&name[..])) {
                nth += 1;
                continue;
            }
            let asked = self.ask(nth, true).map_err(|error| error.to_string())?;
            nth += usize::from(asked != Asked::Cancelled);
            match asked {
                Asked::Sent => synced.push(Value::Text(name)),
                Asked::Dropped => dropped.push(Value::Text(name)),
                Asked::Nothing | Asked::Deferred | Asked::Cancelled => unneeded.push(Value::Text(name)),
            }
        }
        Ok(answer([
            ("synced", synced.into()),
            ("no_sync_needed", unneeded.into()),
            ("dropped", dropped.into()),
        ]))
    }

    fn state(&self, request: &[Value], entered: bool) -> Result<Answer<'a>, String> {
        let root = self.root(request)?;
        let options = request.get(2).unwrap_or(&Value::Null);
        let name = options.text().or_else(|| options.get("name").and_then(Value::text));
        let name = kept_name(name.ok_or("a state needs a name")?)?;
        if options.get("metadata").is_some_and(|metadata| metadata.weight() > METADATA) {
            return Err("the metadata of a state takes too much memory: give less".into());
        }
        synchronise(&root, sync_timeout(options, PATIENCE)?)?;
        let clock = root.tree.figures().clock;
        let metadata = options.get("metadata").cloned().map(Arc::new);
        let shown = String::from_utf8_lossy(&name).into_owned();
        let key = if entered { "state-enter" } else { "state-leave" };
        let done =
            [("root", root.path[..].into()), (key, name[..].into()), ("clock", clocks::text(clock).into())];
        let mut known = self.server.known.lock();
        let at = known.states.iter().position(|state| state.root == root.path && state.name == name);
        match (entered, at) {
            (true, Some(_)) => return Err(format!("state {shown} is already asserted")),
            (true, None) if known.states.len() >= STATES => {
                return Err(format!("{STATES} states are asserted, and more cannot be"));
            }
            (true, None) => {
                let (root, name) = (root.path.clone(), name.clone());
                known.states.push(AssertedState { root, name, session: self.session });
            }
            (false, None) => return Err(format!("state {shown} is not asserted")),
            (false, Some(at)) if known.states[at].session != self.session => {
                return Err(format!("state {shown} was not asserted by this session"));
            }
            (false, Some(at)) => drop(known.states.swap_remove(at)),
        }
        let abandoned = false;
        known.tell(&StateEvent { root: root.path, name, entered, abandoned, clock: Some(clock), metadata });
        Ok(answer(done))
    }
}

fn parsing(why: String) -> String {
    format!("QueryParseError: failed to parse query: {why}")
}

fn list_capabilities<'a>() -> Answer<'a> {
    let mut all: Vec<String> = FEATURES.map(str::to_owned).to_vec();
    all.extend(COMMANDS.iter().map(|name| format!("cmd-{name}")));
    all.extend(super::terms::NAMES.iter().map(|name| format!("term-{name}")));
    all.extend(FIELDS.iter().map(|name| format!("field-{name}")));
    all.sort_unstable();
    answer([("capabilities", all.into_iter().map(Value::from).collect::<Vec<_>>().into())])
}
