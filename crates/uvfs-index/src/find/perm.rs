//! `-perm`: modes in octal, or in chmod(1)'s words, applied to no permission at all and a umask of 0.
//!
//! `X` and setuid and setgid bits of directories make the result differ for directories, so there are two masks.

/// All twelve bits.
const ALL: u32 = 0o7777;
/// Setuid and setgid.
const SET_IDS: u32 = 0o6000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    Exactly,
    AllOf,
    AnyOf,
}

/// The operand of `-perm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PermTest {
    how: Match,
    /// The bits, for files and for directories.
    bits: [u32; 2],
}

impl PermTest {
    /// Reads an operand; `None` if it is no mode.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (how, mode) = match text {
            [b'-', rest @ ..] => (Match::AllOf, rest),
            [b'/', rest @ ..] => (Match::AnyOf, rest),
            [b'+', b'0'..=b'7', ..] => return None,
            _ => (Match::Exactly, text),
        };
        let bits = match octal(mode) {
            Some(bits) => [bits; 2],
            None => {
                let changes = symbolic(mode)?;
                [false, true].map(|dir| changes.iter().fold(0, |bits, change| change.apply(bits, dir)))
            }
        };
        Some(Self { how, bits })
    }

    pub(super) fn holds(self, mode: u32, is_dir: bool) -> bool {
        let bits = self.bits[usize::from(is_dir)];
        match self.how {
            Match::Exactly => mode & ALL == bits,
            Match::AllOf => mode & bits == bits,
            Match::AnyOf => bits == 0 || mode & bits != 0,
        }
    }
}

fn octal(text: &[u8]) -> Option<u32> {
    let number = text.iter().try_fold(0_u32, |sum, digit| {
        let digit = matches!(digit, b'0'..=b'7').then(|| u32::from(digit - b'0'))?;
        Some(sum * 8 + digit).filter(|sum| *sum <= ALL)
    });
    number.filter(|_| !text.is_empty())
}

/// One `+`, `-` or `=` of a symbolic mode.
struct Change {
    op: u8,
    /// Bits of the named users; 0 if none is named.
    affected: u32,
    /// Bits that the text names: only these of setuid and setgid change on directories.
    mentioned: u32,
    value: Value,
}

enum Value {
    Bits(u32),
    /// With `X`: execution too, if something can be executed already or it is a directory.
    BitsAndX(u32),
    /// The bits that this user has already.
    CopyOf(u32),
}

impl Change {
    fn apply(&self, mode: u32, dir: bool) -> u32 {
        let omitted = if dir { SET_IDS & !self.mentioned } else { 0 };
        let value = match self.value {
            Value::Bits(bits) => bits,
            Value::BitsAndX(bits) if dir || mode & 0o111 != 0 => bits | 0o111,
            Value::BitsAndX(bits) => bits,
            Value::CopyOf(user) => {
                let has = mode & user;
                [0o444, 0o222, 0o111].into_iter().filter(|all| has & all != 0).sum()
            }
        };
        let value = value & if self.affected == 0 { ALL } else { self.affected } & !omitted;
        match self.op {
            b'+' => mode | value,
            b'-' => mode & !value,
            _ => {
                let preserved = if self.affected == 0 { omitted } else { !self.affected | omitted };
                (mode & preserved) | value
            }
        }
    }
}

/// Reads `[ugoa]*([-+=]([rwxXst]*|[ugo]|OCTAL))+`, several of them with commas between.
fn symbolic(text: &[u8]) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    for clause in text.split(|b| *b == b',') {
        let users = clause.iter().take_while(|b| b"ugoa".contains(b)).count();
        let affected = clause[..users].iter().fold(0, |bits, user| bits | user_bits(*user));
        let mut rest = &clause[users..];
        if rest.is_empty() {
            return None;
        }
        while let Some((op, after)) = rest.split_first() {
            if !b"+-=".contains(op) {
                return None;
            }
            let len = after.iter().take_while(|b| !b"+-=".contains(b)).count();
            let (what, next) = after.split_at(len);
            changes.push(change(*op, affected, what, next.is_empty())?);
            rest = next;
        }
    }
    Some(changes)
}

fn user_bits(user: u8) -> u32 {
    match user {
        b'u' => 0o4700,
        b'g' => 0o2070,
        b'o' => 0o1007,
        _ => ALL,
    }
}

fn change(op: u8, affected: u32, what: &[u8], last: bool) -> Option<Change> {
    if let Some(bits) = octal(what) {
        // A number stands for all bits, so neither users nor a further change may be with it.
        let alone = affected == 0 && last;
        return alone.then_some(Change { op, affected: ALL, mentioned: ALL, value: Value::Bits(bits) });
    }
    let (named, value) = match what {
        b"u" => (0o700, Value::CopyOf(0o700)),
        b"g" => (0o070, Value::CopyOf(0o070)),
        b"o" => (0o007, Value::CopyOf(0o007)),
        _ => {
            let bits = what.iter().try_fold(0, |bits, letter| {
                Some(
                    bits | match letter {
                        b'r' => 0o444,
                        b'w' => 0o222,
                        b'x' => 0o111,
                        b's' => SET_IDS,
                        b't' => 0o1000,
                        b'X' => 0,
                        _ => return None,
                    },
                )
            })?;
            (bits, if what.contains(&b'X') { Value::BitsAndX(bits) } else { Value::Bits(bits) })
        }
    };
    let mentioned = if affected == 0 { named } else { affected & named };
    Some(Change { op, affected, mentioned, value })
}
