//! `-printf`: the format, compiled to pieces.

use super::times::TimeField;

/// Widths and precisions end here: a longer field would only cost memory.
const WIDEST: usize = 4095;

/// The conversion of a directive, as printf(3) has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub left: bool,
    pub plus: bool,
    pub blank: bool,
    pub alternate: bool,
    pub zero: bool,
    pub width: usize,
    pub precision: Option<usize>,
}

/// The subject of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Path,
    Base,
    Directories,
    Start,
    Relative,
    Target,
    /// A time; with a letter, by strftime's directive.
    Time(TimeField, Option<u8>),
    Blocks,
    Kilobytes,
    Depth,
    Device,
    Group,
    Gid,
    Inode,
    Octal,
    Symbolic,
    Links,
    Size,
    Sparseness,
    User,
    Uid,
    Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Vec<u8>),
    Field(Layout, Field),
}

/// A compiled format of `-printf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintFormat {
    pub(super) pieces: Vec<Piece>,
    /// Sentences about escapes and directives that are no such and stand for themselves.
    pub(super) warnings: Vec<String>,
}

impl PrintFormat {
    /// Compiles a format; an error is a sentence.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let mut reader = Reader { text, at: 0, plain: Vec::new(), pieces: Vec::new(), warnings: Vec::new() };
        while let Some(&byte) = text.get(reader.at) {
            reader.at += 1;
            match byte {
                b'\\' => {
                    if !reader.escape() {
                        break;
                    }
                }
                b'%' => reader.directive()?,
                _ => reader.plain.push(byte),
            }
        }
        reader.close_text();
        Ok(Self { pieces: reader.pieces, warnings: reader.warnings })
    }

    /// The number of directives that show something of a file.
    pub(super) fn directives(&self) -> usize {
        self.pieces.iter().filter(|piece| matches!(piece, Piece::Field(..))).count()
    }

    /// Whether a directive shows the time of the last read.
    pub(super) fn shows_atime(&self) -> bool {
        let is_atime = |piece: &Piece| matches!(piece, Piece::Field(_, Field::Time(TimeField::Accessed, _)));
        self.pieces.iter().any(is_atime)
    }
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    plain: Vec<u8>,
    pieces: Vec<Piece>,
    warnings: Vec<String>,
}

impl Reader<'_> {
    fn close_text(&mut self) {
        if !self.plain.is_empty() {
            self.pieces.push(Piece::Text(std::mem::take(&mut self.plain)));
        }
    }

    /// Reads an escape after its backslash. Returns false at `\c`, which ends the format.
    fn escape(&mut self) -> bool {
        let Some(&byte) = self.text.get(self.at) else {
            self.warnings.push("a backslash at the end of -printf's format stands for itself".to_owned());
            self.plain.push(b'\\');
            return true;
        };
        self.at += 1;
        let meant = match byte {
            b'a' => 0x07,
            b'b' => 0x08,
            b'c' => return false,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'\\' => b'\\',
            b'0'..=b'7' => {
                let more = self.text[self.at..].iter().take(2).take_while(|b| matches!(b, b'0'..=b'7'));
                let more = more.count();
                let digits = &self.text[self.at - 1..self.at + more];
                self.at += more;
                // Three digits may stand for more than a byte; as in find, the low eight bits count.
                digits.iter().fold(0_u8, |sum, digit| sum.wrapping_mul(8).wrapping_add(digit - b'0'))
            }
            _ => {
                let shown = byte.escape_ascii();
                self.warnings.push(format!("\\{shown} is no escape of -printf and stands for itself"));
                self.plain.push(b'\\');
                byte
            }
        };
        self.plain.push(meant);
        true
    }

    /// Reads a directive after its percent sign.
    fn directive(&mut self) -> Result<(), String> {
        let begin = self.at - 1;
        if self.text.get(self.at) == Some(&b'%') {
            self.at += 1;
            self.plain.push(b'%');
            return Ok(());
        }
        let layout = self.layout()?;
        let Some(&letter) = self.text.get(self.at) else {
            return Err("-printf's format ends within a directive: write %% for a percent sign".to_owned());
        };
        self.at += 1;
        let field = match letter {
            b'A' | b'C' | b'T' => {
                let Some(&form) = self.text.get(self.at) else {
                    self.stands_for_itself(begin);
                    return Ok(());
                };
                self.at += 1;
                let time = match letter {
                    b'A' => TimeField::Accessed,
                    b'C' => TimeField::Changed,
                    _ => TimeField::Modified,
                };
                Field::Time(time, Some(form))
            }
            b'(' | b'[' | b'{' => {
                let letter = char::from(letter);
                return Err(format!(
                    "%{letter} is reserved in -printf's formats: write %%{letter} for the text"
                ));
            }
            b'B' | b'F' | b'Y' | b'Z' => return Err(without_answer(letter)),
            _ => match field(letter) {
                Some(field) => field,
                None => {
                    self.stands_for_itself(begin);
                    return Ok(());
                }
            },
        };
        self.close_text();
        self.pieces.push(Piece::Field(layout, field));
        Ok(())
    }

    fn stands_for_itself(&mut self, begin: usize) {
        let text = &self.text[begin..self.at];
        self.warnings
            .push(format!("{} is no directive of -printf and stands for itself", text.escape_ascii()));
        self.plain.extend_from_slice(text);
    }

    fn layout(&mut self) -> Result<Layout, String> {
        let mut layout = Layout::default();
        while let Some(flag) = self.text.get(self.at).filter(|b| b"-+ #".contains(b)) {
            match flag {
                b'-' => layout.left = true,
                b'+' => layout.plus = true,
                b' ' => layout.blank = true,
                _ => layout.alternate = true,
            }
            self.at += 1;
        }
        layout.zero = self.text.get(self.at) == Some(&b'0');
        layout.width = self.number()?;
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            layout.precision = Some(self.number()?);
        }
        Ok(layout)
    }

    fn number(&mut self) -> Result<usize, String> {
        let mut number = 0;
        while let Some(digit) = self.text.get(self.at).filter(|b| b.is_ascii_digit()) {
            number = number * 10 + usize::from(digit - b'0');
            if number > WIDEST {
                return Err(format!("a width in -printf's format is above {WIDEST}: make it smaller"));
            }
            self.at += 1;
        }
        Ok(number)
    }
}

fn field(letter: u8) -> Option<Field> {
    Some(match letter {
        b'a' => Field::Time(TimeField::Accessed, None),
        b'b' => Field::Blocks,
        b'c' => Field::Time(TimeField::Changed, None),
        b'd' => Field::Depth,
        b'D' => Field::Device,
        b'f' => Field::Base,
        b'g' => Field::Group,
        b'G' => Field::Gid,
        b'h' => Field::Directories,
        b'H' => Field::Start,
        b'i' => Field::Inode,
        b'k' => Field::Kilobytes,
        b'l' => Field::Target,
        b'm' => Field::Octal,
        b'M' => Field::Symbolic,
        b'n' => Field::Links,
        b'p' => Field::Path,
        b'P' => Field::Relative,
        b's' => Field::Size,
        b'S' => Field::Sparseness,
        b't' => Field::Time(TimeField::Modified, None),
        b'u' => Field::User,
        b'U' => Field::Uid,
        b'y' => Field::Kind,
        _ => return None,
    })
}

/// The sentence for a directive of find's that a table of names cannot answer.
fn without_answer(letter: u8) -> String {
    let (shows, instead) = match letter {
        b'B' => ("the time of birth, which the index does not store", "use find"),
        b'F' => {
            ("the type of the file system, which the index does not store", "use %D for its device number")
        }
        b'Y' => ("the type behind a symbolic link, and the index follows no links", "use %y"),
        _ => ("the security context, which the index does not store", "use find"),
    };
    format!("%{} of -printf shows {shows}: {instead}", char::from(letter))
}
