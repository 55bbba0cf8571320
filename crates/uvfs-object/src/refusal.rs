//! Why a store refuses a mount: one sentence, with what is to be done.
//!
//! The store's code, and the kind of the innermost error, choose the sentence. Nothing else of an answer is repeated: a
//! server may repeat a request's headers in it. The names of the access key, the secret and the token are said, their
//! values never.

use std::error::Error;
use std::io;

use crate::store::root_cause;

/// The code of the store's answer, as the S3 service prints it.
pub(crate) fn code(error: &opendal::Error) -> Option<&str> {
    let (_, rest) = error.message().split_once("code: \"")?;
    rest.split_once('"').map(|(code, _)| code).filter(|code| !code.is_empty())
}

/// The region that AWS tells in its message, if it is one.
fn expected_region(error: &opendal::Error) -> Option<&str> {
    let (_, rest) = error.message().split_once("expecting '")?;
    let (region, _) = rest.split_once('\'')?;
    let is_region = |region: &&str| {
        !region.is_empty()
            && region.len() < 40
            && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    Some(region).filter(is_region)
}

/// The sentence for a code. `None`: the code says enough, or nothing is known about it.
fn of_code(code: &str, bucket: &str, region: Option<&str>) -> Option<String> {
    let said = match code {
        "NoSuchBucket" => return Some(format!("the store has no bucket {bucket:?}")),
        "InvalidBucketName" => return Some(format!("{bucket:?} cannot be the name of a bucket")),
        "InvalidAccessKeyId" | "NotSignedUp" => "the store does not know the access key: check AWS_ACCESS_KEY_ID, or the profile",
        "SignatureDoesNotMatch" => {
            "the secret does not belong to the access key: check AWS_SECRET_ACCESS_KEY, or the profile"
        }
        "ExpiredToken" | "TokenRefreshRequired" => "the credentials have expired: get new ones",
        "InvalidToken" => "the session token is not valid: get new credentials, or unset AWS_SESSION_TOKEN",
        "RequestTimeTooSkewed" => "the clocks of this machine and of the store differ: set this one",
        "AccessDenied" | "AllAccessDisabled" => {
            "access is denied: the credentials need permission to list and read the bucket (s3:ListBucket, s3:GetObject)"
        }
        "AuthorizationHeaderMalformed"
        | "AuthorizationQueryParametersError"
        | "IllegalLocationConstraintException"
        | "PermanentRedirect"
        | "TemporaryRedirect"
        | "InvalidRegion" => {
            return Some(match region {
                Some(region) => format!("the bucket is in another region: give region={region}"),
                None => "the bucket is in another region: give region=, and its endpoint=".into(),
            });
        }
        _ => return None,
    };
    Some(said.to_owned())
}

/// The first error of a kind in a chain.
fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut cause = Some(error);
    while let Some(this) = cause {
        if let Some(io) = this.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        cause = this.source();
    }
    None
}

/// The sentence for an innermost error: the connection, its encryption, the credentials.
fn of_cause(cause: &str, kind: Option<io::ErrorKind>) -> Option<&'static str> {
    let has = |part: &str| cause.contains(part);
    if has("certificate") {
        return Some(if has("NotValidForName") || has("not valid for") {
            "the server's certificate is for another name: give the name that it has in endpoint="
        } else if has("Expired") || has("expired") {
            "the server's certificate has expired"
        } else if has("No CA certificates") || has("no root certificates") {
            "this machine has no root certificates: install them (ca-certificates), or name a file of them in SSL_CERT_FILE"
        } else {
            "the server's certificate is not trusted: name the file of its authority in SSL_CERT_FILE"
        });
    }
    if has("InvalidContentType") || has("corrupt message") {
        return Some("the server does not speak TLS: endpoint= begins with http:// there");
    }
    if has("lookup address") || has("dns error") {
        return Some("the server's name is not known: check endpoint=");
    }
    match kind? {
        io::ErrorKind::ConnectionRefused => Some("nobody listens there: check endpoint="),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            Some("there is no way to the server: check endpoint= and the network")
        }
        _ => None,
    }
}

/// Whether a request could not be signed, since nothing has told credentials.
fn has_no_credentials(error: &opendal::Error) -> bool {
    let mut cause = error.source();
    while let Some(this) = cause {
        if this.to_string().contains("credential") {
            return true;
        }
        cause = this.source();
    }
    error.message().contains("credential")
}

/// Why the first LIST failed.
pub(crate) fn reason(error: &opendal::Error, bucket: &str) -> Option<String> {
    if let Some(code) = code(error) {
        return of_code(code, bucket, expected_region(error)).map(|said| format!("{said} ({code})"));
    }
    if is_foreign(error) {
        return Some("the answer is not that of an S3 server: check endpoint=".into());
    }
    let cause = root_cause(error)?;
    if let Some(said) = of_cause(&cause, io_kind(error)) {
        return Some(format!("{said} ({})", cause.lines().next().unwrap_or_default()));
    }
    has_no_credentials(error).then(|| {
        "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile".into()
    })
}

/// An answer without a code: a page for people, or nothing.
fn is_foreign(error: &opendal::Error) -> bool {
    let text = error.message().trim_start();
    text.starts_with('<') || text.contains("code: \"\"") || error.kind() == opendal::ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use opendal::ErrorKind;

    use super::*;

    fn answered(code: &str, message: &str) -> opendal::Error {
        let text = format!("S3Error {{ code: \"{code}\", message: \"{message}\", resource: \"\" }}");
        opendal::Error::new(ErrorKind::PermissionDenied, text)
    }

    #[test]
    fn each_code_is_a_sentence_with_a_remedy_and_without_the_answers_words() {
        for (code, said) in [
            ("NoSuchBucket", "the store has no bucket \"demo\" (NoSuchBucket)"),
            ("ExpiredToken", "the credentials have expired: get new ones (ExpiredToken)"),
            ("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
            ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
            ("AccessDenied", "s3:ListBucket"),
            ("PermanentRedirect", "give region="),
        ] {
            let sentence = reason(&answered(code, "… topsecret …"), "demo").expect(code);
            assert!(sentence.contains(said) && !sentence.contains("topsecret"), "{sentence}");
        }
        assert_eq!(reason(&answered("NeverHeardOf", ""), "demo"), None);
    }

    #[test]
    fn the_region_that_the_store_expects_is_said_if_it_is_one() {
        let told = answered("AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-west-1'");
        let said = reason(&told, "demo").expect("known");
        assert!(said.contains("give region=eu-west-1"), "{said}");
        let odd = answered("AuthorizationHeaderMalformed", "expecting 'a b\\n\\nc'");
        assert!(!reason(&odd, "demo").expect("known").contains("a b"));
    }

    #[test]
    fn connections_are_told_by_their_innermost_error() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = opendal::Error::new(ErrorKind::Unexpected, "send http request").set_source(refused);
        assert!(reason(&error, "demo").expect("known").starts_with("nobody listens there"));
        let untrusted = io::Error::other("invalid peer certificate: UnknownIssuer");
        let error = opendal::Error::new(ErrorKind::Unexpected, "send http request").set_source(untrusted);
        assert!(reason(&error, "demo").expect("known").contains("SSL_CERT_FILE"));
        let page = opendal::Error::new(ErrorKind::NotFound, "<html>404</html>");
        assert!(reason(&page, "demo").expect("known").starts_with("the answer is not that of an S3 server"));
    }
}
