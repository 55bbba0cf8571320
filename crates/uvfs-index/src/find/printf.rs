//! `-printf`: a file's fields, laid out.

use super::format::{Field, Layout, Piece, PrintFormat};
use super::owners::OwnerNames;
use super::{FileKind, FoundFile, calendar, ls};
use jiff::tz::TimeZone;
use std::io;

/// Bytes of a line after which `spill` takes them.
const SPILL: usize = 1 << 20;

/// Appends a file's line, or as much of it as the format asks for. `clean` makes names fit for a terminal. A line of many
/// long paths could take much memory, so `spill` takes what there is of it now and then.
pub(super) fn render(
    format: &PrintFormat,
    file: &dyn FoundFile,
    owners: &mut OwnerNames,
    zone: &TimeZone,
    clean: bool,
    out: &mut Vec<u8>,
    spill: &mut dyn FnMut(&mut Vec<u8>),
) -> io::Result<()> {
    for piece in &format.pieces {
        if out.len() > SPILL {
            spill(out);
        }
        match piece {
            Piece::Text(text) => out.extend_from_slice(text),
            Piece::Field(layout, Field::Depth) => number(layout, Radix::Decimal, file.depth() as u64, out),
            Piece::Field(layout, Field::Octal) => {
                number(layout, Radix::Octal, u64::from(file.attributes().mode & 0o7777), out);
            }
            Piece::Field(layout, Field::Sparseness) => general(layout, sparseness(file), out),
            Piece::Field(layout, field) => {
                let text = text(*field, file, owners, zone)?;
                let is_name = matches!(
                    field,
                    Field::Path
                        | Field::Base
                        | Field::Directories
                        | Field::Start
                        | Field::Relative
                        | Field::Target
                );
                if clean && is_name {
                    string(layout, &ls::for_terminal(&text), out);
                } else {
                    string(layout, &text, out);
                }
            }
        }
    }
    Ok(())
}

/// The text of a field that printf's `%s` shows.
fn text(field: Field, file: &dyn FoundFile, owners: &mut OwnerNames, zone: &TimeZone) -> io::Result<Vec<u8>> {
    let path = file.path();
    let numbers = || file.attributes();
    Ok(match field {
        Field::Path => path.to_vec(),
        Field::Base => base(file).to_vec(),
        Field::Directories => directories(path).to_vec(),
        Field::Start => path[..file.start_len().min(path.len())].to_vec(),
        Field::Relative => relative(file).to_vec(),
        Field::Target if file.kind() == FileKind::Symlink => file.target()?.into_owned(),
        Field::Time(time, form) => match (time.of(numbers()), form) {
            (Some(time), Some(letter)) => calendar::directive(time, letter, zone),
            (Some(time), None) => calendar::full(time, zone),
            (None, _) => Vec::new(),
        },
        Field::Blocks => numbers().blocks.to_string().into_bytes(),
        Field::Kilobytes => numbers().blocks.div_ceil(2).to_string().into_bytes(),
        Field::Device => numbers().dev.to_string().into_bytes(),
        Field::Gid => numbers().gid.to_string().into_bytes(),
        Field::Uid => numbers().uid.to_string().into_bytes(),
        Field::Group => {
            let gid = numbers().gid;
            owners.group(gid).map_or_else(|| gid.to_string(), str::to_owned).into_bytes()
        }
        Field::User => {
            let uid = numbers().uid;
            owners.user(uid).map_or_else(|| uid.to_string(), str::to_owned).into_bytes()
        }
        Field::Inode => numbers().ino.to_string().into_bytes(),
        Field::Links => numbers().nlink.to_string().into_bytes(),
        Field::Size => numbers().size.to_string().into_bytes(),
        Field::Symbolic => ls::mode_letters(file.kind(), numbers().mode).to_vec(),
        Field::Kind => vec![file.kind().letter()],
        Field::Target | Field::Depth | Field::Octal | Field::Sparseness => Vec::new(),
    })
}

/// The last component; of several slashes behind it, one stays.
fn base(file: &dyn FoundFile) -> &[u8] {
    let (path, name) = (file.path(), file.name());
    if file.depth() > 0 || name == b"/" || !path.ends_with(b"/") {
        return name;
    }
    let slashes = path.iter().rev().take_while(|b| **b == b'/').count();
    let end = path.len() - slashes + 1;
    path.get(end.saturating_sub(name.len() + 1)..end).unwrap_or(name)
}

/// The directories before the last component. Slashes behind that are left out, unless it has one letter: GNU find 4.9
/// has this exception.
fn directories(path: &[u8]) -> &[u8] {
    let slashes = path.iter().rev().take_while(|b| **b == b'/').count();
    let path = if path.len() - slashes > 1 { &path[..path.len() - slashes] } else { path };
    path.iter().rposition(|b| *b == b'/').map_or(b".", |slash| &path[..slash])
}

fn relative(file: &dyn FoundFile) -> &[u8] {
    if file.depth() == 0 {
        return b"";
    }
    let below = file.path().get(file.start_len()..).unwrap_or_default();
    below.strip_prefix(b"/").unwrap_or(below)
}

fn pad(layout: &Layout, text: &[u8], out: &mut Vec<u8>) {
    let blanks = std::iter::repeat_n(b' ', layout.width.saturating_sub(text.len()));
    if layout.left {
        out.extend_from_slice(text);
        out.extend(blanks);
    } else {
        out.extend(blanks);
        out.extend_from_slice(text);
    }
}

fn string(layout: &Layout, text: &[u8], out: &mut Vec<u8>) {
    pad(layout, &text[..layout.precision.unwrap_or(text.len()).min(text.len())], out);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Radix {
    Decimal,
    Octal,
}

/// `%d` and `%o` of printf.
fn number(layout: &Layout, radix: Radix, value: u64, out: &mut Vec<u8>) {
    let mut digits = match radix {
        Radix::Decimal => value.to_string(),
        Radix::Octal => format!("{value:o}"),
    };
    if value == 0 && layout.precision == Some(0) {
        digits.clear();
    }
    let missing = layout.precision.unwrap_or(0).saturating_sub(digits.len());
    digits.insert_str(0, &"0".repeat(missing));
    if radix == Radix::Octal && layout.alternate && !digits.starts_with('0') {
        digits.insert(0, '0');
    }
    let sign = if radix == Radix::Decimal { plus(layout) } else { "" };
    zero_padded(layout, sign, &digits, layout.precision.is_none(), out);
}

fn plus(layout: &Layout) -> &'static str {
    match (layout.plus, layout.blank) {
        (true, _) => "+",
        (false, true) => " ",
        (false, false) => "",
    }
}

fn zero_padded(layout: &Layout, sign: &str, digits: &str, may_have_zeros: bool, out: &mut Vec<u8>) {
    let zeros = if layout.zero && !layout.left && may_have_zeros {
        layout.width.saturating_sub(sign.len() + digits.len())
    } else {
        0
    };
    pad(layout, format!("{sign}{}{digits}", "0".repeat(zeros)).as_bytes(), out);
}

/// Allocated bytes for each byte of length.
#[expect(clippy::cast_precision_loss, reason = "find divides so, too")]
fn sparseness(file: &dyn FoundFile) -> f64 {
    let numbers = file.attributes();
    match (numbers.size, numbers.blocks) {
        (0, 0) => 1.0,
        (0, _) => f64::INFINITY,
        (size, blocks) => 512.0 * blocks as f64 / size as f64,
    }
}

/// `%g` of printf, of a number that is not negative.
fn general(layout: &Layout, value: f64, out: &mut Vec<u8>) {
    if value.is_infinite() {
        return zero_padded(layout, plus(layout), "inf", false, out);
    }
    let precision = layout.precision.unwrap_or(6).max(1);
    let scientific = format!("{value:.*e}", precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match (layout.alternate, text.contains('.')) {
        (true, true) => text.to_owned(),
        (true, false) => format!("{text}."),
        (false, true) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        (false, false) => text.to_owned(),
    };
    let least = i32::try_from(precision).unwrap_or(i32::MAX);
    let digits = if (-4..least).contains(&exponent) {
        let decimals = usize::try_from(least - 1 - exponent).unwrap_or(0);
        trimmed(&format!("{value:.decimals$}"))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
    };
    zero_padded(layout, plus(layout), &digits, true, out);
}
