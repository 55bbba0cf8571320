//! The sink that writes what find writes.

use super::complaints::Complaints;
use super::eval::FindSink;
use super::ls::{Columns, for_terminal};
use super::owners::OwnerNames;
use super::parse::{FindAction, FindContext};
use super::{FoundFile, Timestamp, printf};
use jiff::tz::TimeZone;
use std::io::{self, Write};

/// Writes the output of actions. Each action is one write, so a slow `W` should be buffered.
#[derive(Debug)]
pub struct FindPrinter<W> {
    out: W,
    terminal: bool,
    now: Timestamp,
    zone: TimeZone,
    owners: OwnerNames,
    columns: Columns,
    /// The output of one action, kept for its memory.
    line: Vec<u8>,
    complaints: Complaints,
}

impl<W: Write> FindPrinter<W> {
    /// A printer to `out`. `terminal`: whether that is one, so that `-print` and `-printf` show `?` for bytes of names
    /// that could control it. `-print0` writes names as they are, and `-ls` always escapes them.
    pub fn new(out: W, terminal: bool, context: &FindContext<'_>) -> Self {
        Self {
            out,
            terminal,
            now: context.now,
            zone: context.zone.clone(),
            owners: OwnerNames::default(),
            columns: Columns::default(),
            line: Vec::new(),
            complaints: Complaints::default(),
        }
    }

    /// How often a link or directory could not be read; find's exit status is then 1.
    pub fn unreadable_files(&self) -> u64 {
        self.complaints.count()
    }

    /// A sentence for each of these, as find(1) has it behind `find: `. Of very many, the first ones, and a last one with
    /// the number of the others.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.sentences()
    }

    /// Gives back the writer.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> FindSink for FindPrinter<W> {
    fn act(&mut self, action: &FindAction, file: &dyn FoundFile) -> io::Result<()> {
        self.line.clear();
        let mut written = Ok(());
        let printed = match action {
            FindAction::Print if self.terminal => {
                self.line.extend_from_slice(&for_terminal(file.path()));
                self.line.push(b'\n');
                Ok(())
            }
            FindAction::Print | FindAction::Print0 => {
                self.line.extend_from_slice(file.path());
                self.line.push(if *action == FindAction::Print { b'\n' } else { 0 });
                Ok(())
            }
            FindAction::Printf(format) => {
                let out = &mut self.out;
                let mut spill = |line: &mut Vec<u8>| {
                    if written.is_ok() {
                        written = out.write_all(line);
                    }
                    line.clear();
                };
                let (owners, line) = (&mut self.owners, &mut self.line);
                printf::render(format, file, owners, &self.zone, self.terminal, line, &mut spill)
            }
            FindAction::Ls => self.columns.line(file, &mut self.owners, self.now, &self.zone, &mut self.line),
        };
        // Only a link's target can fail here: memory takes all that is written.
        if let Err(error) = printed {
            self.complaints.unreadable(file.path(), &error);
        }
        written.and_then(|()| self.out.write_all(&self.line))
    }

    fn unreadable(&mut self, path: &[u8], error: &io::Error) {
        self.complaints.unreadable(path, error);
    }
}
