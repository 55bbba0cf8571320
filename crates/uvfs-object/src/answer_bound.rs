//! The bound on each answer of the store.
//!
//! OpenDAL gathers an answer's body in memory before anybody looks at it: a page of a LIST, the words of an error, the
//! bytes of a range. A store that never ends its answer would take all memory. So an answer to a ranged request may have
//! as many bytes as the range, an error [`ERROR`], and everything else [`ANSWER`]: several times the longest page of 1,000
//! keys. A longer one fails, and is not tried again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use http::{Request, Response, header};
use opendal::{Buffer, Error, ErrorKind, HttpBody, HttpTransport, Result};
use opendal_http_transport_reqwest::ReqwestTransport;

/// Most bytes of an answer to a request without a range.
const ANSWER: u64 = 32 << 20;
/// Most bytes of the words of an error.
const ERROR: u64 = 1 << 20;

/// The client of HTTP, with that bound.
pub(crate) struct Bounded(pub(crate) ReqwestTransport);

impl HttpTransport for Bounded {
    async fn fetch(&self, request: Request<Buffer>) -> Result<Response<HttpBody>> {
        let range = request.headers().get(header::RANGE).and_then(|range| range_len(range.to_str().ok()?));
        let answer = self.0.fetch(request).await?;
        let most = if answer.status().is_success() { range.unwrap_or(ANSWER) } else { ERROR };
        Ok(answer.map(|body| body.map_inner(|inner| Box::new(Bound { inner, most, left: most }))))
    }
}

/// Bytes of `bytes=FIRST-LAST`.
fn range_len(range: &str) -> Option<u64> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
}

/// A body that may not be longer.
struct Bound {
    inner: Box<dyn Stream<Item = Result<Buffer>> + Send + Sync + Unpin>,
    most: u64,
    left: u64,
}

impl Stream for Bound {
    type Item = Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.inner).poll_next(context);
        let Poll::Ready(Some(Ok(bytes))) = &next else { return next };
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => {
                self.left = left;
                next
            }
            None => {
                let why = io::Error::other(format!("the answer is longer than {} bytes", self.most));
                Poll::Ready(Some(
                    Err(Error::new(ErrorKind::Unexpected, "too long an answer").set_source(why)),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use opendal::Operator;
    use opendal::services::S3;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use crate::options::ObjectOptions;
    use crate::store::Store;
    use crate::version::Version;

    /// The bytes that a store sends whose answers end after this many only.
    const LONG: u64 = 128 << 20;

    /// Answers each request with a status and a body of [`LONG`] bytes, as far as the client takes them.
    async fn serve(listener: TcpListener, status: &'static str, sent: Arc<AtomicU64>) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let sent = sent.clone();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 8192]).await;
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {LONG}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let chunk = vec![b'x'; 64 << 10];
                while sent.load(Relaxed) < LONG && stream.write_all(&chunk).await.is_ok() {
                    sent.fetch_add(chunk.len() as u64, Relaxed);
                }
            });
        }
    }

    /// The errno of a GET of 100 bytes, or of a LIST, and the bytes that the store could send.
    async fn asked(status: &'static str, lists: bool) -> (Option<i32>, u64) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let sent = Arc::new(AtomicU64::new(0));
        let server = tokio::spawn(serve(listener, status, sent.clone()));
        let builder = S3::default().bucket("b").region("r").endpoint(&endpoint);
        let builder = builder.access_key_id("id").secret_access_key("secret").disable_config_load();
        let options = ObjectOptions { retries: 0, ..ObjectOptions::default() };
        let store = Store::new(Operator::new(builder).expect("an operator"), "", &options);
        let outcome = if lists {
            match store.list("").await {
                Ok(mut listing) => listing.more(1, &mut Vec::new()).await.map(drop),
                Err(errno) => Err(errno),
            }
        } else {
            store.read("k", &Version { size: 1 << 30, ..Version::default() }, 0..100).await.map(drop)
        };
        server.abort();
        (outcome.err(), sent.load(Relaxed))
    }

    /// Sockets hold a few MiB beside what was taken.
    #[tokio::test]
    async fn an_answer_without_end_is_an_error_and_takes_bounded_memory() {
        for (status, lists, most) in [
            ("206 Partial Content", false, 0),
            ("200 OK", false, 0),
            ("500 Internal Server Error", false, super::ERROR),
            ("200 OK", true, super::ANSWER),
            ("500 Internal Server Error", true, super::ERROR),
        ] {
            let (errno, sent) = asked(status, lists).await;
            assert_eq!(errno, Some(libc::EIO), "{status}");
            assert!(sent <= most + (24 << 20), "{status}: {sent} bytes were taken");
        }
    }

    #[test]
    fn the_length_of_a_range() {
        assert_eq!(super::range_len("bytes=5-9"), Some(5));
        for other in ["bytes=-5", "bytes=5-", "bytes=9-5", "5-9", "bytes=0-18446744073709551615"] {
            assert_eq!(super::range_len(other), None, "{other}");
        }
    }
}
