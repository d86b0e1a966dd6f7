//! The HTTP client that all stores share: its patience, its certificates, and which of its failures pass.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use rustls::RootCertStore;

/// How long is waited, and how often it is tried. Nothing that a user sets: these bound a hang, they do not tune speed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For a connection, with the look-up of the name and the proof of who answers.
    pub(super) connect: Duration,
    /// For the next bytes of an answer.
    pub(super) read: Duration,
    /// Tries in a row that bring not one byte.
    pub(super) n_tries: u32,
    /// Between the first two tries; twice as long each time.
    pub(super) pause: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
            n_tries: 5,
            pause: Duration::from_millis(200),
        }
    }
}

/// Where a machine in a cloud asks who it is. Anywhere else nobody answers there.
const WHO_AM_I: &[&str] = &["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// How long a machine that is in a cloud may take to be told who it is.
const WHO_AM_I_PATIENCE: Duration = Duration::from_secs(2);

/// The client, and what it trusts.
#[derive(Clone, Debug)]
pub(super) struct Web {
    client: reqwest::Client,
    pub(super) patience: Patience,
    /// How many authorities vouch for `https` servers.
    n_authorities: usize,
}

impl Web {
    /// A client that trusts these authorities.
    pub(super) fn new(patience: Patience, roots: RootCertStore) -> Result<Web, String> {
        let n_authorities = roots.len();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|err| err.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .http1_only()
            .connect_timeout(patience.connect)
            .read_timeout(patience.read)
            .user_agent(concat!("manyhands/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|err| err.to_string())?;
        Ok(Web { client, patience, n_authorities })
    }
}

/// The authorities that the machine trusts; `SSL_CERT_FILE` and `SSL_CERT_DIR` name others.
pub(super) fn authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

impl HttpConnector for Web {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_plain = options.get_config_value(&ClientConfigKey::AllowHttp);
        let allows_plain = allows_plain.as_deref() == Some("true");
        Ok(HttpClient::new(Caller { web: self.clone(), allows_plain }))
    }
}

/// The client as one store uses it.
#[derive(Debug)]
struct Caller {
    web: Web,
    /// Whether it may ask without encryption.
    allows_plain: bool,
}

#[async_trait]
impl HttpService for Caller {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri().clone();
        let (host, is_secure) = (uri.host().unwrap_or_default(), uri.scheme_str() == Some("https"));
        let failed = |told| HttpError::new(HttpErrorKind::Unknown, told);
        if !is_secure && !self.allows_plain {
            return Err(failed(Told::Unencrypted));
        }
        let answer = self.web.client.call(request);
        let answer = if WHO_AM_I.contains(&host) {
            let answer = tokio::time::timeout(WHO_AM_I_PATIENCE, answer).await;
            answer.ok().and_then(Result::ok).ok_or_else(|| failed(Told::Nobody))?
        } else {
            let trusts_nobody = is_secure && self.web.n_authorities == 0;
            answer.await.map_err(|err| match trusts_nobody && is_about_certificates(&err) {
                true => failed(Told::NoAuthorities),
                false => err,
            })?
        };
        match told_by(host, answer.status().as_u16()) {
            None => Ok(answer),
            Some(told) => Err(failed(told)),
        }
    }
}

fn is_about_certificates(err: &HttpError) -> bool {
    let chain = std::iter::successors(Some(err as &dyn Error), |&one| one.source());
    chain.last().is_some_and(|first| first.to_string().contains("certificate"))
}

/// What a status tells, where stores would make nothing, or something else, of it.
fn told_by(host: &str, status: u16) -> Option<Told> {
    match status {
        200..=299 => None,
        // No role, or something in between that lets nobody ask.
        _ if WHO_AM_I.contains(&host) => Some(Told::Nobody),
        408 | 429 | 500..=599 => Some(Told::Busy(status)),
        416 => Some(Told::NoSuchBytes),
        _ => None,
    }
}

/// What an answer, or none, tells beyond what the stores make of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The server cannot answer at the moment.
    Busy(u16),
    /// The object ends before the bytes that were asked for.
    NoSuchBytes,
    /// No keys are given, and no cloud says who the machine is.
    Nobody,
    /// The endpoint is `http://`, which was not allowed.
    Unencrypted,
    /// No certificate is trusted on this machine.
    NoAuthorities,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Told::Busy(status) => write!(f, "the server answers with status {status}"),
            Told::NoSuchBytes => f.write_str("it is shorter than it was said to be"),
            Told::Nobody => f.write_str("no keys are set, and this machine has none from a cloud"),
            Told::Unencrypted => {
                f.write_str("the endpoint is http://, which AWS_ALLOW_HTTP=true (GOOGLE_, AZURE_) allows")
            }
            Told::NoAuthorities => f.write_str(
                "this machine trusts no certificates; install `ca-certificates` or set SSL_CERT_FILE",
            ),
        }
    }
}

impl Error for Told {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_passes_says_nothing_or_says_that_nobody_knows_the_machine() {
        assert_eq!(told_by("host", 200), None);
        assert_eq!(told_by("host", 404), None);
        assert_eq!(told_by("host", 416), Some(Told::NoSuchBytes));
        for status in [408, 429, 500, 503] {
            assert_eq!(told_by("host", status), Some(Told::Busy(status)));
        }
        for status in [403, 404, 500] {
            assert_eq!(told_by(WHO_AM_I[0], status), Some(Told::Nobody));
        }
        assert_eq!(told_by(WHO_AM_I[0], 200), None);
    }
}
