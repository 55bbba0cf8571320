//! Clocks as watchman's clients have them: `c:INSTANCE:PROCESS:1:TICK`, seconds since 1970, or the name of a cursor.
//!
//! Clients take a clock as it is, but some look at its form: five fields, all but the first decimal numbers.

use super::value::Value;
use crate::clock::ChangeClock;

/// A moment in a client's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// None that is known.
    Fresh,
    Clock(ChangeClock),
    /// Seconds since 1970.
    Time(i64),
}

/// A moment as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Since(Since),
    /// The name of a cursor, with its `n:`.
    Cursor(Vec<u8>),
}

/// A clock's text.
pub(super) fn text(clock: ChangeClock) -> String {
    format!("c:{}:{}:1:{}", clock.instance, std::process::id(), clock.tick)
}

fn read(text: &str) -> Option<ChangeClock> {
    let mut fields = text.strip_prefix("c:")?.split(':');
    let mut number = || fields.next()?.parse::<u64>().ok();
    let [instance, process, root, tick] = [number()?, number()?, number()?, number()?];
    let own = process == u64::from(std::process::id()) && root == 1 && fields.next().is_none();
    own.then_some(ChangeClock { instance, tick })
}

/// Reads a moment. A clock of another server is [`Since::Fresh`].
///
/// # Errors
/// A phrase.
pub(super) fn written(value: &Value) -> Result<Written, String> {
    let text = match value {
        Value::Int(time) => return Ok(Written::Since(Since::Time(*time))),
        Value::Null => return Ok(Written::Since(Since::Fresh)),
        Value::Text(text) => text,
        Value::Object(_) if value.get("scm").is_some() => {
            return Err("queries about source control (scm) are not answered by this server".into());
        }
        Value::Object(_) => match value.get("clock") {
            Some(Value::Text(text)) => text,
            _ => return Err("a clockspec object needs a clock".into()),
        },
        _ => return Err("invalid clockspec".into()),
    };
    match str::from_utf8(text) {
        Ok(clock) if clock.is_empty() || clock.starts_with("c:") => {
            Ok(Written::Since(read(clock).map_or(Since::Fresh, Since::Clock)))
        }
        Ok(name) if name.starts_with("n:") => Ok(Written::Cursor(text.clone())),
        _ => Err("invalid clockspec".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_reads_what_it_writes() {
        let clock = ChangeClock { instance: u64::MAX, tick: 7 };
        let written = |text: &str| super::written(&text.into());
        assert_eq!(written(&text(clock)), Ok(Written::Since(Since::Clock(clock))));
        assert_eq!(written("n:x"), Ok(Written::Cursor(b"n:x".to_vec())));
        for fresh in ["", "c:", "c:1:2", "c:123:4:5:6", "c:-1:0:0:1", "c:1:0:1:5"] {
            assert_eq!(written(fresh), Ok(Written::Since(Since::Fresh)), "{fresh}");
        }
        assert!(written("yesterday").is_err());
        assert_eq!(super::written(&Value::Int(5)), Ok(Written::Since(Since::Time(5))));
    }
}
