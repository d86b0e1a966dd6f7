//! A small web server and object store on loopback, with faults to order: HTTP/1.1 with ranges, and the list of a bucket as S3
//! and Google have it, and as Azure has it.
//! Standard library only, since tests of other crates include this file too.

#![allow(dead_code)] // not every test orders every fault

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How many keys a page of a list has.
const PAGE_KEYS: usize = 2;

/// What goes wrong. Counts say how many of the next requests it hits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Bodies of so many requests end, with the connection, behind `cut_at` bytes.
    pub(crate) n_cuts: usize,
    pub(crate) cut_at: usize,
    /// So many requests are answered with 503.
    pub(crate) n_busy: usize,
    /// Bodies of so many requests stop in the middle, and the connection stays open.
    pub(crate) n_stalls: usize,
    /// So many requests get no answer, and the connection stays open.
    pub(crate) n_silent: usize,
    /// After so many requests every object is another one.
    pub(crate) changes_after: Option<usize>,
    /// Ranges are ignored.
    pub(crate) no_ranges: bool,
    /// The length of a body is not said.
    pub(crate) no_length: bool,
    /// Everything is answered with this status.
    pub(crate) status: Option<u16>,
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) range: Option<(usize, usize)>,
}

#[derive(Default)]
struct State {
    files: Mutex<BTreeMap<String, Arc<Vec<u8>>>>,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
    n_body_bytes: AtomicU64,
    is_over: AtomicBool,
}

/// The server; it ends when it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<State>,
}

impl Server {
    pub(crate) fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for connection in listener.incoming() {
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (shared, Ok(connection)) = (shared.clone(), connection) else { continue };
                thread::spawn(move || shared.serve(connection));
            }
        });
        Server { address, state }
    }

    /// Serves bytes under `/name`.
    pub(crate) fn put(&self, name: &str, bytes: impl Into<Vec<u8>>) {
        self.state.files.lock().unwrap().insert(format!("/{name}"), Arc::new(bytes.into()));
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// Where the server is, without a path.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn order(&self, faults: Faults) {
        *self.state.faults.lock().unwrap() = faults;
        self.state.requests.lock().unwrap().clear();
        self.state.n_body_bytes.store(0, Ordering::Relaxed);
    }

    /// The requests since the last order.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    /// The bytes of bodies that were sent since the last order.
    pub(crate) fn n_body_bytes(&self) -> u64 {
        self.state.n_body_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        // Wakes the one who waits for connections.
        let _ = TcpStream::connect(self.address);
    }
}

/// The head of a request.
struct Head {
    method: String,
    target: String,
    headers: BTreeMap<String, String>,
}

fn read_head(input: &mut impl BufRead) -> Option<Head> {
    let mut line = String::new();
    let mut next = |line: &mut String| {
        line.clear();
        input.read_line(line).ok().filter(|&n| n > 0).map(|_| line.trim_end().to_string())
    };
    let first = next(&mut line)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
    let mut headers = BTreeMap::new();
    loop {
        let header = next(&mut line)?;
        let Some((name, value)) = header.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    Some(Head { method, target, headers })
}

impl State {
    fn serve(&self, connection: TcpStream) -> Option<()> {
        connection.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        connection.set_nodelay(true).ok()?;
        let mut input = BufReader::new(connection.try_clone().ok()?);
        let mut output = connection;
        while let Some(head) = read_head(&mut input) {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            self.answer(&head, &mut output)?;
        }
        Some(())
    }

    fn answer(&self, head: &Head, output: &mut TcpStream) -> Option<()> {
        let (path, query) = head.target.split_once('?').unwrap_or((&head.target, ""));
        let path = decoded(path);
        let range = head.headers.get("range").and_then(|range| {
            let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((start.parse().ok()?, end.parse().ok()?))
        });
        self.requests.lock().unwrap().push(Request {
            method: head.method.clone(),
            target: head.target.clone(),
            range,
        });
        let is_bucket = path.trim_start_matches('/').split('/').next()?.starts_with("bucket");
        assert!(
            !is_bucket || head.headers.contains_key("authorization"),
            "{} is not signed",
            head.target
        );
        let faults = self.take_faults();
        if faults.n_silent > 0 {
            self.rest();
            return None;
        }
        let status = if faults.n_busy > 0 { Some(503) } else { faults.status };
        if let Some(status) = status {
            return plain(output, status, b"<Error><Code>Ordered</Code></Error>");
        }
        if query.contains("list-type=2") || query.contains("comp=list") {
            return plain(output, 200, self.list(&path, query).as_bytes());
        }
        let file = self.files.lock().unwrap().get(&path).cloned();
        match file {
            Some(bytes) => self.send(output, head, &bytes, range, &faults),
            None => plain(output, 404, b"nothing here"),
        }
    }

    /// What is ordered for this request.
    fn take_faults(&self) -> Faults {
        let mut faults = self.faults.lock().unwrap();
        let now = faults.clone();
        let faults = &mut *faults;
        for count in
            [&mut faults.n_cuts, &mut faults.n_busy, &mut faults.n_stalls, &mut faults.n_silent]
        {
            *count = count.saturating_sub(1);
        }
        now
    }

    fn send(
        &self,
        output: &mut TcpStream,
        head: &Head,
        bytes: &[u8],
        range: Option<(usize, usize)>,
        faults: &Faults,
    ) -> Option<()> {
        let n_requests = self.requests.lock().unwrap().len();
        let version = faults.changes_after.is_some_and(|after| n_requests > after) as u8;
        let range = range.filter(|_| !faults.no_ranges);
        let (mut start, mut end, mut status) = (0, bytes.len(), "200 OK");
        let mut headers = format!("ETag: \"v{version}\"\r\nLast-Modified: {MODIFIED}\r\n");
        if let Some((first, last)) = range {
            if first >= bytes.len() {
                return plain(output, 416, b"");
            }
            (start, end, status) = (first, bytes.len().min(last + 1), "206 Partial Content");
            headers += &format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
        }
        headers += &if faults.no_length {
            "Connection: close\r\n".to_string()
        } else {
            format!("Content-Length: {}\r\n", end - start)
        };
        output.write_all(format!("HTTP/1.1 {status}\r\n{headers}\r\n").as_bytes()).ok()?;
        if head.method == "HEAD" {
            return Some(());
        }
        let body = &bytes[start..end];
        if faults.n_cuts > 0 && faults.cut_at < body.len() {
            self.send_body(output, &body[..faults.cut_at])?;
            return None;
        }
        if faults.n_stalls > 0 {
            self.send_body(output, &body[..body.len() / 2])?;
            self.rest();
            return None;
        }
        self.send_body(output, body)?;
        if faults.no_length { None } else { Some(()) }
    }

    /// Does nothing for ten seconds, or until the end.
    fn rest(&self) {
        for _ in 0..500 {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn send_body(&self, output: &mut TcpStream, body: &[u8]) -> Option<()> {
        for piece in body.chunks(64 << 10) {
            output.write_all(piece).ok()?;
            self.n_body_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        Some(())
    }

    /// A page of a list.
    fn list(&self, bucket: &str, query: &str) -> String {
        let argument = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let value = pairs.filter(|pair| pair.0 == name).map(|pair| pair.1).next();
            decoded(&value.unwrap_or_default().replace('+', " "))
        };
        let is_azure = query.contains("comp=list");
        let (prefix, delimiter) = (argument("prefix"), argument("delimiter"));
        let after = argument(if is_azure { "marker" } else { "continuation-token" });
        let bucket = format!("{}/", bucket.trim_end_matches('/'));
        let files = self.files.lock().unwrap();
        let keys = files.iter().filter_map(|(path, bytes)| {
            let key = path.strip_prefix(&bucket)?;
            let rest = key.strip_prefix(&prefix)?;
            let is_below = !delimiter.is_empty() && rest.contains(&delimiter);
            (!is_below && key > after.as_str()).then_some((key, bytes.len()))
        });
        let keys: Vec<(&str, usize)> = keys.collect();
        let more = keys.get(PAGE_KEYS).map(|_| keys[PAGE_KEYS - 1].0);
        let page = keys.iter().take(PAGE_KEYS);
        if is_azure { azure_page(page, more) } else { s3_page(page, more) }
    }
}

fn s3_page<'a>(keys: impl Iterator<Item = &'a (&'a str, usize)>, more: Option<&str>) -> String {
    let mut page = String::from("<ListBucketResult>");
    for (key, n_bytes) in keys {
        page += &format!(
            "<Contents><Key>{key}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>\
             <ETag>\"v0\"</ETag><Size>{n_bytes}</Size></Contents>"
        );
    }
    page += &format!("<IsTruncated>{}</IsTruncated>", more.is_some());
    if let Some(last) = more {
        page += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
    }
    page + "</ListBucketResult>"
}

fn azure_page<'a>(keys: impl Iterator<Item = &'a (&'a str, usize)>, more: Option<&str>) -> String {
    let mut page = String::from("<EnumerationResults><Blobs>");
    for (key, n_bytes) in keys {
        page += &format!(
            "<Blob><Name>{key}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>\
             <Etag>\"v0\"</Etag><Content-Length>{n_bytes}</Content-Length>\
             <Content-Type>text/csv</Content-Type></Properties></Blob>"
        );
    }
    let more = more.unwrap_or_default();
    page + &format!("</Blobs><NextMarker>{more}</NextMarker></EnumerationResults>")
}

const MODIFIED: &str = "Wed, 21 Oct 2015 07:28:00 GMT";

fn plain(output: &mut TcpStream, status: u16, body: &[u8]) -> Option<()> {
    let head = format!("HTTP/1.1 {status} Ordered\r\nContent-Length: {}\r\n\r\n", body.len());
    output.write_all(head.as_bytes()).ok()?;
    output.write_all(body).ok()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let code = (first == b'%').then(|| behind.get(..2)).flatten();
        let code =
            code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
