//! Times as text: the directives of strftime(3) in the C locale, with find's fractions of seconds.
//!
//! `jiff` knows the zone and the calendar. Its own formats differ from strftime's in what find shows, so the fields are
//! written here. Outside of the years that `jiff` knows (up to 9999), a time is written as seconds.

use super::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use std::io::{self, Write};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A local time: what the clock on the wall showed, and the zone's state.
struct Local {
    at: DateTime,
    offset: Offset,
    abbreviation: String,
    time: Timestamp,
}

impl Local {
    fn new(time: Timestamp, zone: &TimeZone) -> Option<Self> {
        let instant = instant(time)?;
        let info = zone.to_offset_info(instant);
        let offset = info.offset();
        Some(Self {
            at: offset.to_datetime(instant),
            offset,
            abbreviation: info.abbreviation().to_owned(),
            time,
        })
    }

    /// The day of the week, from Sunday.
    fn weekday(&self) -> i16 {
        i16::from(self.at.weekday().to_sunday_zero_offset())
    }

    fn day_name(&self) -> &'static str {
        DAYS.get(usize::try_from(self.weekday()).unwrap_or(0)).copied().unwrap_or("?")
    }

    fn month_name(&self) -> &'static str {
        MONTHS.get(usize::try_from(self.at.month() - 1).unwrap_or(0)).copied().unwrap_or("?")
    }

    fn hour12(&self) -> i8 {
        (self.at.hour() + 11) % 12 + 1
    }

    /// Weeks of the year before which `first` (0: Sunday) begins one.
    fn week(&self, first: i16) -> i16 {
        let weekday = (self.weekday() - first).rem_euclid(7);
        (self.at.day_of_year() - 1 + 7 - weekday) / 7
    }

    fn zone_offset(&self) -> String {
        let minutes = self.offset.seconds() / 60;
        let sign = if minutes < 0 { '-' } else { '+' };
        format!("{sign}{:02}{:02}", minutes.abs() / 60, minutes.abs() % 60)
    }

    /// The field of one letter, without fractions; `None` if strftime has none.
    fn field(&self, letter: u8) -> Option<String> {
        let at = self.at;
        let all = |letters: &[u8], between: &str| {
            let fields: Vec<String> = letters.iter().filter_map(|letter| self.field(*letter)).collect();
            Some(fields.join(between))
        };
        Some(match letter {
            b'a' => self.day_name()[..3].to_owned(),
            b'A' => self.day_name().to_owned(),
            b'b' | b'h' => self.month_name()[..3].to_owned(),
            b'B' => self.month_name().to_owned(),
            b'c' => return all(b"abeTY", " "),
            b'C' => format!("{:02}", at.year().div_euclid(100)),
            b'd' => format!("{:02}", at.day()),
            b'D' | b'x' => return all(b"mdy", "/"),
            b'e' => format!("{:2}", at.day()),
            b'F' => return all(b"Ymd", "-"),
            b'g' => format!("{:02}", at.date().iso_week_date().year().rem_euclid(100)),
            b'G' => at.date().iso_week_date().year().to_string(),
            b'H' => format!("{:02}", at.hour()),
            b'I' => format!("{:02}", self.hour12()),
            b'j' => format!("{:03}", at.day_of_year()),
            b'k' => format!("{:2}", at.hour()),
            b'l' => format!("{:2}", self.hour12()),
            b'm' => format!("{:02}", at.month()),
            b'M' => format!("{:02}", at.minute()),
            b'n' => "\n".to_owned(),
            b'p' => if at.hour() < 12 { "AM" } else { "PM" }.to_owned(),
            b'P' => if at.hour() < 12 { "am" } else { "pm" }.to_owned(),
            b'r' => format!("{} {}", all(b"IMS", ":")?, self.field(b'p')?),
            b'R' => return all(b"HM", ":"),
            b's' => self.time.sec.to_string(),
            b'S' => format!("{:02}", at.second()),
            b't' => "\t".to_owned(),
            b'T' | b'X' => return all(b"HMS", ":"),
            b'u' => (if self.weekday() == 0 { 7 } else { self.weekday() }).to_string(),
            b'U' => format!("{:02}", self.week(0)),
            b'V' => format!("{:02}", at.date().iso_week_date().week()),
            b'w' => self.weekday().to_string(),
            b'W' => format!("{:02}", self.week(1)),
            b'y' => format!("{:02}", at.year().rem_euclid(100)),
            b'Y' => at.year().to_string(),
            b'z' => self.zone_offset(),
            b'Z' => self.abbreviation.clone(),
            b'%' => "%".to_owned(),
            b'+' => return all(b"FT", "+"),
            _ => return None,
        })
    }
}

fn instant(time: Timestamp) -> Option<jiff::Timestamp> {
    let nsec = i32::try_from(time.nsec).ok()?;
    // jiff wants both numbers to have one sign; it adds the fraction here.
    let whole = jiff::Timestamp::from_second(time.sec).ok()?;
    whole.checked_add(jiff::SignedDuration::from_nanos(i64::from(nsec))).ok()
}

/// Seconds since 1970 with ten digits after them, the last a zero.
fn seconds(time: Timestamp) -> String {
    format!("{}.{:09}0", time.sec, time.nsec)
}

/// `%Tk` for the letter `k`.
pub(super) fn directive(time: Timestamp, letter: u8, zone: &TimeZone) -> Vec<u8> {
    let local = if letter == b'@' { None } else { Local::new(time, zone) };
    let Some(local) = local else { return seconds(time).into_bytes() };
    match local.field(letter) {
        Some(mut text) => {
            if b"STX+".contains(&letter) {
                text.push_str(&fraction(time));
            }
            text.into_bytes()
        }
        None => vec![b'%', letter],
    }
}

fn fraction(time: Timestamp) -> String {
    format!(".{:09}0", time.nsec)
}

/// `%t` and its kin: as ctime(3), with a fraction.
pub(super) fn full(time: Timestamp, zone: &TimeZone) -> Vec<u8> {
    let Some(local) = Local::new(time, zone) else { return seconds(time).into_bytes() };
    let field = |letter| local.field(letter).unwrap_or_default();
    let date = format!("{} {} {}", field(b'a'), field(b'b'), field(b'e'));
    format!("{date} {}{} {}", field(b'T'), fraction(time), field(b'Y')).into_bytes()
}

/// The time in a line of `-ls`: with the year instead of the hour, unless it lies in the last 180 days or the next hour.
pub(super) fn for_listing(
    time: Timestamp,
    now: Timestamp,
    zone: &TimeZone,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    const RECENT: i64 = 180 * super::times::DAY;
    let Some(local) = Local::new(time, zone) else { return write!(out, "{:>12}", time.sec) };
    let field = |letter| local.field(letter).unwrap_or_default();
    let recent = now.sec.saturating_sub(RECENT) <= time.sec && time.sec <= now.sec.saturating_add(3600);
    let last = if recent { field(b'R') } else { format!(" {}", field(b'Y')) };
    write!(out, "{} {} {last}", field(b'b'), field(b'e'))
}

/// The last midnight of local time.
pub(super) fn midnight(now: Timestamp, zone: &TimeZone) -> Timestamp {
    let since = Local::new(now, zone).map_or_else(
        || now.sec.rem_euclid(super::times::DAY),
        |local| {
            let at = local.at;
            i64::from(at.hour()) * 3600 + i64::from(at.minute()) * 60 + i64::from(at.second())
        },
    );
    Timestamp { sec: now.sec.saturating_sub(since), nsec: 0 }
}
