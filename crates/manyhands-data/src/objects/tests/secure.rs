//! Encrypted connections: who is trusted is read from, who is not is named.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::super::stores::{Settings, register};
use super::super::stream::ObjectStream;
use super::super::web::Web;
use super::PATIENCE;

/// Of `localhost`, signed by itself, for the years 2000 to 2129; its key is no secret.
const CERTIFICATE: &[u8] = include_bytes!("cert.der");
const KEY: &[u8] = include_bytes!("key.der");

const BODY: &str = "v\n1\n2\n";

/// Answers everything with [`BODY`], encrypted; the port.
fn start() -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(KEY));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(CERTIFICATE)], key)
        .unwrap();
    let (listener, config) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(config));
    let port = listener.local_addr().unwrap().port();
    // Ends with the process: nobody has to wait for it.
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let config = config.clone();
            thread::spawn(move || answer(connection, config));
        }
    });
    port
}

fn answer(connection: TcpStream, config: Arc<ServerConfig>) -> Option<()> {
    let mut stream = StreamOwned::new(ServerConnection::new(config).ok()?, connection);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
    stream.write_all(answer.as_bytes()).ok()?;
    stream.flush().ok()
}

#[test]
fn a_trusted_server_is_read_and_another_is_named() {
    let url = format!("https://localhost:{}/t.csv", start());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(CERTIFICATE)).unwrap();
    register(&url, &Settings::default(), &Web::new(PATIENCE, roots).unwrap());
    let mut text = String::new();
    ObjectStream::open(&url).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, BODY);

    let fail = |roots: RootCertStore, other: &str| {
        let url = url.replace("t.csv", other);
        register(&url, &Settings::default(), &Web::new(PATIENCE, roots).unwrap());
        ObjectStream::open(&url).map(|_| ()).unwrap_err().to_string()
    };
    let sentence = fail(RootCertStore::empty(), "nobody.csv");
    assert!(sentence.contains("install `ca-certificates` or set SSL_CERT_FILE"), "{sentence}");
    // Somebody is trusted, but not this one.
    let mut roots = RootCertStore::empty();
    let mut other = CERTIFICATE.to_vec();
    let name = other.windows(4).rposition(|word| word == b"test").unwrap();
    other[name..name + 4].copy_from_slice(b"TEST");
    roots.add(CertificateDer::from(other)).unwrap();
    let sentence = fail(roots, "other.csv");
    assert!(sentence.contains("invalid peer certificate"), "{sentence}");
}
