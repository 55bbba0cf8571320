//! Dates of `-newerXt`: the part of GNU's date language that names a moment plainly.
//!
//! `@SECONDS`; `YYYY-MM-DD`, `HH:MM[:SS[.FRACTION]]`, or both; a zone behind a time; `now`, `today`, `yesterday`,
//! `tomorrow`; `N UNIT ago` and `N UNIT` with seconds, minutes, hours, days and weeks. Local time, unless a zone is given.

use super::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan, ZonedDateTime};

/// Reads a date; `None` if it is none of the above.
pub(super) fn parse(text: &[u8], now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?.trim();
    if let Some(seconds) = text.strip_prefix('@') {
        return epoch(seconds);
    }
    let nanos = i32::try_from(now.nsec).ok()?;
    let here = jiff::Timestamp::from_second(now.sec).ok()?.to_zoned_datetime(zone.clone());
    if let Some(span) = relative(&text.to_ascii_lowercase()) {
        let then = here.checked_add(span).ok()?;
        return Some(Timestamp { sec: then.timestamp().as_second(), nsec: u32::try_from(nanos).ok()? });
    }
    absolute(text, &here)
}

/// `@` with a number, perhaps with a fraction.
fn epoch(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, "0"));
    let negative = whole.starts_with('-');
    let sec: i64 = whole.parse().ok()?;
    let nsec = nanoseconds(fraction)?;
    if negative && nsec > 0 {
        return Some(Timestamp { sec: sec.checked_sub(1)?, nsec: 1_000_000_000 - nsec });
    }
    Some(Timestamp { sec, nsec })
}

fn nanoseconds(fraction: &str) -> Option<u32> {
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(9)
        .try_fold(0_u32, |sum, digit| sum.checked_mul(10)?.checked_add(u32::from(digit - b'0')))
}

fn relative(text: &str) -> Option<Span> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (count, unit, ago) = match words[..] {
        ["now" | "today"] => return Some(Span::new()),
        ["yesterday"] => return Some((-1).days()),
        ["tomorrow"] => return Some(1.days()),
        [count, unit] => (count, unit, false),
        [count, unit, "ago"] => (count, unit, true),
        _ => return None,
    };
    // A larger number is outside of the calendar.
    let count: i64 = count.parse().ok().filter(|n: &i64| n.unsigned_abs() < 1 << 32)?;
    let count = if ago { -count } else { count };
    let span = Span::new();
    match unit.strip_suffix('s').unwrap_or(unit) {
        "sec" | "second" => span.try_seconds(count),
        "min" | "minute" => span.try_minutes(count),
        "hour" => span.try_hours(count),
        "day" => span.try_days(count),
        "week" => span.try_days(count * 7),
        _ => return None,
    }
    .ok()
}

fn absolute(text: &str, here: &ZonedDateTime) -> Option<Timestamp> {
    let (date, rest) = match calendar_date(text) {
        Some((date, "")) => (date, "00:00"),
        Some((date, rest)) => (date, rest.strip_prefix(['T', 't', ' '])?.trim_start()),
        None => (here.date(), text),
    };
    let (time, nsec, rest) = clock(rest)?;
    let at = DateTime::from_parts(date, time);
    let zone = match rest.trim() {
        "" => here.time_zone().clone(),
        other => TimeZone::fixed(offset(other)?),
    };
    let sec = zone.to_timestamp(at).ok()?.as_second();
    Some(Timestamp { sec, nsec })
}

/// `YYYY-MM-DD`, and the text behind it.
fn calendar_date(text: &str) -> Option<(Date, &str)> {
    let (date, rest) = text.split_at_checked(10)?;
    let mut parts = date.split('-');
    let mut part = |len: usize| {
        let part = parts.next().filter(|p| p.len() == len && p.bytes().all(|b| b.is_ascii_digit()))?;
        part.parse::<i16>().ok()
    };
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    let date = Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
    parts.next().is_none().then_some((date, rest))
}

/// `HH:MM[:SS[.FRACTION]]`: the time, its nanoseconds, and the text behind it.
fn clock(text: &str) -> Option<(Time, u32, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == ':' || c == '.')).unwrap_or(text.len());
    let (clock, rest) = text.split_at(end);
    let mut parts = clock.split(':');
    let two = |part: &str| {
        let digits = (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| part.parse::<i8>().ok())?
    };
    let (hour, minute) = (two(parts.next()?)?, two(parts.next()?)?);
    let seconds = parts.next().unwrap_or("0");
    let (second, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let time = Time::new(hour, minute, two(second)?, 0).ok()?;
    parts.next().is_none().then_some((time, nanoseconds(fraction)?, rest))
}

/// A zone: `Z`, `UTC`, `+hh`, `+hhmm` or `+hh:mm`.
fn offset(text: &str) -> Option<jiff::tz::Offset> {
    if matches!(text, "Z" | "z" | "UTC" | "GMT") {
        return Some(jiff::tz::Offset::UTC);
    }
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let digits: String = digits.chars().filter(|c| *c != ':').collect();
    let (hours, minutes) = match digits.len() {
        2 => (&digits[..], "00"),
        4 => digits.split_at_checked(2)?,
        _ => return None,
    };
    let (hours, minutes) = (hours.parse::<u8>().ok()?, minutes.parse::<u8>().ok().filter(|m| *m < 60)?);
    jiff::tz::Offset::from_seconds(sign * (i32::from(hours) * 3600 + i32::from(minutes) * 60)).ok()
}
