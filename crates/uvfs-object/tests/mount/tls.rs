//! Encryption, credentials of the environment, and secrets. Certificates' roots and credentials belong to a process, so each
//! mount here is that of a child: this program once more, with [`CHILD`] in its environment.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::{NamedTempFile, TempDir};
use tokio_rustls::TlsAcceptor;
use uvfs_object::{Location, ObjectOptions, mount};

use crate::bucket::{BUCKET, Bucket, Fault, KEY, SECRET};
use crate::fixture::{Served, bytes, options};

/// The endpoint of a child's mount; the directory comes after a space.
const CHILD: &str = "UVFS_TEST_OBJECT_CHILD";
const MOUNTED: &str = "mounted";

/// The work of a child: it mounts, says so or why not, and unmounts at the end of standard input. Its log is as talkative
/// as can be.
pub fn child() -> bool {
    let Ok(asked) = std::env::var(CHILD) else { return false };
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(std::io::stderr).init();
    let (endpoint, dir) = asked.split_once(' ').expect("an endpoint and a directory");
    let call_timeout = Duration::from_secs(15);
    let options =
        ObjectOptions { endpoint: Some(endpoint.to_owned()), retries: 1, call_timeout, ..options() };
    let location = Location::parse(&format!("s3://{BUCKET}")).expect("a location");
    match mount(&location, &options, dir.as_ref()) {
        Ok(_mounted) => {
            println!("{MOUNTED}");
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        Err(error) => println!("{error}"),
    }
    true
}

struct Mounting {
    child: Child,
    said: String,
    log: NamedTempFile,
    dir: TempDir,
}

impl Mounting {
    fn new(endpoint: &str, environment: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let log = NamedTempFile::new().expect("a file");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        for name in
            ["AWS_SESSION_TOKEN", "AWS_PROFILE", "SSL_CERT_DIR", "SSL_CERT_FILE", "http_proxy", "https_proxy"]
        {
            command.env_remove(name);
        }
        command
            .env(CHILD, format!("{endpoint} {}", dir.path().display()))
            .envs([("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)])
            .envs([("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_CONFIG_FILE", "/dev/null")])
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.reopen().expect("the file"));
        let mut child = command.spawn().expect("this program");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("a line");
        let log_so_far = std::fs::read_to_string(log.path()).unwrap_or_default();
        assert!(
            !said.is_empty(),
            "the child said nothing: {}",
            log_so_far.lines().last().unwrap_or_default()
        );
        Self { child, said: said.trim_end().to_owned(), log, dir }
    }

    fn file(&self, name: &str) -> std::io::Result<Vec<u8>> {
        std::fs::read(self.dir.path().join(name))
    }

    /// End it; returns its log.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("ended").success());
        std::fs::read_to_string(self.log.path()).expect("the log")
    }
}

fn said(endpoint: &str, environment: &[(&str, &str)]) -> String {
    let mounting = Mounting::new(endpoint, environment);
    let said = mounting.said.clone();
    assert!(!mounting.end().contains(SECRET));
    said
}

/// An authority, and a server that has a certificate for a name from it.
struct Encrypted {
    authority: NamedTempFile,
    port: u16,
    _runtime: tokio::runtime::Runtime,
}

impl Encrypted {
    fn new(bucket: &Bucket, name: &str) -> Self {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        let mut authority = NamedTempFile::new().expect("a file");
        authority.write_all(issuer.pem().as_bytes()).expect("written");
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config =
            rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], private)
                .expect("a certificate of the key");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (acceptor, service) = (TlsAcceptor::from(Arc::new(config)), bucket.service());
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, service) = (acceptor.clone(), service.clone());
                tokio::spawn(async move {
                    // A client that does not trust the certificate goes away.
                    let Ok(socket) = acceptor.accept(socket).await else { return };
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(socket), service)
                        .await;
                });
            }
        });
        Self { authority, port, _runtime: runtime }
    }

    fn trusted(&self) -> [(&str, &str); 1] {
        [("SSL_CERT_FILE", self.authority.path().to_str().expect("a path"))]
    }
}

pub fn encrypted() {
    let bucket = Bucket::default();
    bucket.put("d/f", bytes(3 << 20, 1));
    let server = Encrypted::new(&bucket, "localhost");
    let endpoint = format!("https://localhost:{}", server.port);
    let mounting = Mounting::new(&endpoint, &server.trusted());
    assert_eq!(mounting.said, MOUNTED);
    assert!(mounting.file("d/f").expect("read") == bytes(3 << 20, 1));
    mounting.end();
    // Neither the roots of the system nor another authority's will do.
    for environment in [&[][..], &Encrypted::new(&bucket, "localhost").trusted()] {
        let said = said(&endpoint, environment);
        assert!(
            said.starts_with("cannot list s3://demo/: the server's certificate is not trusted"),
            "{said}"
        );
        assert!(said.contains("SSL_CERT_FILE"), "{said}");
    }
    let named = Encrypted::new(&bucket, "store.example");
    let said_of_name = said(&format!("https://localhost:{}", named.port), &named.trusted());
    assert!(said_of_name.contains("certificate is for another name"), "{said_of_name}");
    // The protocol is the other one.
    let plain = Served::new();
    let said_of_plain = said(&format!("https://{}", plain.address), &server.trusted());
    assert!(said_of_plain.contains("http://"), "{said_of_plain}");
    let said_of_tls = said(&format!("http://localhost:{}", server.port), &[]);
    assert!(said_of_tls.starts_with("cannot list s3://demo/: ") && said_of_tls.len() < 300, "{said_of_tls}");
}

pub fn rootless() {
    let served = Served::new();
    served.bucket.put("f", "x");
    let no_roots = [("SSL_CERT_FILE", "/dev/null")];
    // No certificate can be checked, and none has to be.
    let mounting = Mounting::new(&format!("http://{}", served.address), &no_roots);
    assert_eq!(mounting.said, MOUNTED);
    assert_eq!(mounting.file("f").expect("read"), b"x");
    assert!(mounting.end().contains("certificates cannot be checked"));
    let server = Encrypted::new(&served.bucket, "localhost");
    let said = said(&format!("https://localhost:{}", server.port), &no_roots);
    assert!(said.contains("certificate is not trusted"), "{said}");
}

pub fn secrets() {
    let served = Served::new();
    served.bucket.put("f", bytes(100_000, 1));
    const TOKEN: &str = "a-session-token-that-nobody-may-see";
    let mounting = Mounting::new(&format!("http://{}", served.address), &[("AWS_SESSION_TOKEN", TOKEN)]);
    assert_eq!(mounting.said, MOUNTED);
    served.bucket.plan_gets(&[Fault::SlowDown, Fault::Denied]);
    assert!(mounting.file("f").is_err());
    assert!(mounting.file("f").is_ok());
    let arguments = std::fs::read(format!("/proc/{}/cmdline", mounting.child.id())).expect("its arguments");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("the mounts");
    assert!(mounts.contains(mounting.dir.path().to_str().expect("a path")));
    let log = mounting.end();
    assert!(log.contains("TRACE") && log.lines().count() > 20, "the log is talkative");
    for shown in [&String::from_utf8_lossy(&arguments), mounts.as_str(), log.as_str()] {
        let secret = [SECRET, TOKEN, "Signature="].into_iter().find(|secret| shown.contains(secret));
        assert_eq!(secret, None);
    }
}

pub fn sentences() {
    let served = Served::new();
    let endpoint = format!("http://{}", served.address);
    let begins = |said: &str, expected: &str| {
        assert!(said.starts_with(&format!("cannot list s3://demo/: {expected}")), "{said}");
    };
    begins(&said(&endpoint, &[("AWS_ACCESS_KEY_ID", "wrong")]), "the store does not know the access key");
    begins(
        &said(&endpoint, &[("AWS_SECRET_ACCESS_KEY", "wrong")]),
        "the secret does not belong to the access key",
    );
    begins(
        &said(&endpoint, &[("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")]),
        "no credentials were found",
    );
    let refused = |code| {
        served.bucket.plan_lists(&[Fault::Refused(code); 4]);
        let said = said(&endpoint, &[]);
        served.bucket.plan_lists(&[]);
        assert!(said.contains(code) && !said.contains(crate::bucket::REPEATED), "{said}");
        said
    };
    begins(&refused("NoSuchBucket"), "the store has no bucket \"demo\"");
    begins(&refused("ExpiredToken"), "the credentials have expired");
    begins(
        &refused("AuthorizationHeaderMalformed"),
        "the bucket is in another region: give region=eu-west-1",
    );
    begins(&refused("PermanentRedirect"), "the bucket is in another region");
    begins(&refused("RequestTimeTooSkewed"), "the clocks of this machine and of the store differ");
    begins(&refused("AccessDenied"), "access is denied");
    begins(&said("http://nowhere.invalid", &[]), "the server's name is not known");
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    begins(&said(&format!("http://{free}"), &[]), "nobody listens there");
    begins(&said(&page(), &[]), "the answer is not that of an S3 server");
}

/// A server that answers each request with a page; ends with the tests.
fn page() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
            let lines = BufReader::new(&socket).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let page = "<html>nothing here</html>";
            let head = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Type: text/html\r\n";
            let _ = write!(&socket, "{head}Content-Length: {}\r\n\r\n{page}", page.len());
        }
    });
    format!("http://{address}")
}
