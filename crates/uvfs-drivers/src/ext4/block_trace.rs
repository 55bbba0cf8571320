//! A trace: the numbers of blocks of metadata in the order of their use, hits and misses alike.
//!
//! One line each, number and size, as `uvfs-bench blocks --trace` reads them. The mutex is a leaf; it orders the
//! lines of several threads. If writing fails the trace ends, which is reported once, and reading goes on.

use std::io::{self, BufWriter, Write};

use parking_lot::Mutex;

type Out = BufWriter<Box<dyn Write + Send>>;

/// A trace that is being written.
pub(super) struct Record {
    block_size: usize,
    /// The output, or the reason why the trace has ended.
    out: Mutex<Result<Out, io::Error>>,
}

impl Record {
    pub(super) fn new(out: Box<dyn Write + Send>, block_size: usize) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(64 << 10, out);
        writeln!(out, "# blocks of metadata in the order of their use: number and bytes")?;
        Ok(Self { block_size, out: Mutex::new(Ok(out)) })
    }

    pub(super) fn used(&self, block: u64) {
        let mut out = self.out.lock();
        if let Ok(to) = &mut *out
            && let Err(error) = writeln!(to, "{block} {}", self.block_size)
        {
            tracing::warn!(%error, "ext4: the record of blocks ends here");
            *out = Err(error);
        }
    }

    /// The blocks written so far are where they belong.
    pub(super) fn flush(&self) -> io::Result<()> {
        match &mut *self.out.lock() {
            Ok(out) => out.flush(),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Takes so many bytes.
    struct Upto(Arc<Mutex<Vec<u8>>>, usize);

    impl Write for Upto {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock();
            if all.len() + data.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            all.extend_from_slice(data);
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_trace_has_a_line_for_each_use() {
        let text = Arc::default();
        let record = Record::new(Box::new(Upto(Arc::clone(&text), usize::MAX)), 1024).unwrap();
        [7, 8, 7].into_iter().for_each(|block| record.used(block));
        record.flush().unwrap();
        let text = String::from_utf8(text.lock().clone()).unwrap();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, ["7 1024", "8 1024", "7 1024"]);
    }

    #[test]
    fn a_trace_that_cannot_be_written_ends_and_says_so() {
        let record = Record::new(Box::new(Upto(Arc::default(), 100_000)), 1024).unwrap();
        (0..100_000).for_each(|block| record.used(block));
        assert_eq!(record.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
