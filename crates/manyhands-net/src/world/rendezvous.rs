//! How ranks find each other: rank 0 listens, the others come and say where they are reached, and all get the roster.
//!
//! Every connection proves the secret first (N1) and is encrypted. Nothing waits without a deadline (N2): rank 0 tells those who came which
//! ranks did not.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::{WorldError, in_words};
use super::folder::NotePlace;
use crate::host::{host_id, random_number};
use crate::secure::{Purpose, Secret, SecureLink};
use crate::station::Station;
use crate::transport::wait::{Interest, Waiting};
use crate::transport::{Link, LinkError, TcpLink};
use crate::wire::{
    Admitted, DialError, Doorman, DoormanSettings, FrameReader, Socket, dial, write_frame,
};

/// What connections to rank 0 while the ranks meet are for.
const MEETING: Purpose = Purpose(3);
/// Between two looks for rank 0.
const RETRY: Duration = Duration::from_millis(20);
/// How long one attempt to reach rank 0 may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How much longer than rank 0 the others wait, so that they hear what it says when it gives up.
const GRACE: Duration = Duration::from_secs(3);
/// Bytes that a roster may have for each rank.
const PER_RANK: usize = 2048;

/// Where one rank is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) addresses: Vec<String>,
    pub(super) host: String,
}

impl Member {
    /// Where this process is reached.
    pub(super) fn at(station: &Station) -> Member {
        Member { addresses: station.addresses(None), host: host_id().to_string() }
    }
}

/// All ranks, and a number that tells this world from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Roster {
    pub(super) number: u64,
    pub(super) members: Vec<Member>,
}

/// What a rank says of itself when it comes.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    rank: usize,
    size: usize,
    /// Tells a second attempt of a process from another process.
    visitor: u64,
    member: Member,
}

/// What rank 0 says to each who came.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Roster(Roster),
    GaveUp(String),
}

/// What rank 0 brings to a meeting.
pub(super) struct Reception<'a> {
    pub(super) size: usize,
    pub(super) member: Member,
    pub(super) within: Duration,
    pub(super) secret: &'a Secret,
}

struct Arrived {
    hello: Hello,
    link: [Option<Box<dyn Link>>; 1],
    /// This machine as the visitor knows it, and the visitor as this machine knows it.
    ends: Option<(IpAddr, IpAddr)>,
}

/// Rank 0: waits until all others have come, and tells all of all.
pub(super) fn receive(tcp: TcpListener, reception: Reception<'_>) -> Result<Roster, WorldError> {
    let start = Instant::now();
    let (sender, arrivals) = mpsc::channel();
    let mut settings = DoormanSettings::new(reception.secret.clone(), [MEETING], Vec::new());
    settings.max_unproven = settings.max_unproven.max(reception.size);
    let doorman = Doorman::start(tcp, None, settings, move |admitted| {
        // Nobody listens any more once all have come.
        let _ = sender.send(admitted);
    })?;
    let mut arrived: Vec<Option<Arrived>> = (0..reception.size).map(|_| None).collect();
    let outcome = collect(&reception, &arrivals, &mut arrived, start);
    drop(doorman);
    let roster = outcome.map(|()| {
        let number = random_number().unwrap_or_else(|_| u64::from(std::process::id()));
        let own = std::iter::once(reception.member.clone());
        let others = arrived.iter().flatten().map(|one| filled_in(&one.hello.member, one.ends));
        Roster { number, members: own.chain(others).collect() }
    });
    let deadline = Instant::now() + GRACE;
    for (rank, one) in arrived.iter_mut().enumerate() {
        let Some(Arrived { link, ends, hello, .. }) = one else { continue };
        let answer = match &roster {
            Ok(roster) => Answer::Roster(seen_by(roster, &hello.member.host, *ends)),
            Err(error) => Answer::GaveUp(error.to_string()),
        };
        let told = tell(link, &answer, reception.size, rank, deadline);
        if roster.is_ok() {
            told?;
        }
    }
    let own_host = reception.member.host.as_str();
    roster.map(|roster| known_to_others(roster, own_host, &arrived))
}

/// The roster as rank 0 keeps it: it itself is where those of other machines found it.
fn known_to_others(mut roster: Roster, own_host: &str, arrived: &[Option<Arrived>]) -> Roster {
    let come = arrived.iter().flatten();
    let far = come.clone().find(|one| one.hello.member.host != own_host);
    if let Some((here, _)) = far.or(come.clone().next()).and_then(|one| one.ends) {
        let fill = |ip: IpAddr| if ip.is_unspecified() { here } else { ip };
        roster.members[0] = with_ips(&roster.members[0], fill);
    }
    roster
}

fn collect(
    reception: &Reception<'_>,
    arrivals: &mpsc::Receiver<Admitted>,
    arrived: &mut [Option<Arrived>],
    start: Instant,
) -> Result<(), WorldError> {
    let missing = |arrived: &[Option<Arrived>]| -> Vec<usize> {
        (1..reception.size).filter(|rank| arrived[*rank].is_none()).collect()
    };
    loop {
        // Who has gone away since has not come.
        for place in arrived.iter_mut() {
            if place.as_mut().is_some_and(|one| !is_there(&mut one.link)) {
                *place = None;
            }
        }
        if missing(arrived).is_empty() {
            return Ok(());
        }
        let left = reception.within.saturating_sub(start.elapsed());
        let Ok(admitted) = arrivals.recv_timeout(left) else {
            let (ranks, size) = (in_words(&missing(arrived)), reception.size);
            return Err(WorldError::NeverCame { ranks, size, after: start.elapsed() });
        };
        let Some(one) = welcome(admitted) else { continue };
        let Hello { rank, size, visitor, .. } = one.hello;
        if size != reception.size || rank == 0 || rank >= size {
            let sentence = format!(
                "a process came as rank {rank} of {size}; there can be ranks 1 to {} of {}",
                reception.size - 1,
                reception.size
            );
            return Err(WorldError::Disagreement(sentence));
        }
        if let Some(before) = &mut arrived[rank]
            && before.hello.visitor != visitor
            && is_there(&mut before.link)
        {
            let sentence = format!("two processes say that they are rank {rank} of {size}");
            return Err(WorldError::Disagreement(sentence));
        }
        arrived[rank] = Some(one);
    }
}

/// A visitor who knows the secret; none where what it says makes no sense.
fn welcome(admitted: Admitted) -> Option<Arrived> {
    let hello = serde_json::from_slice(&admitted.established.hello).ok()?;
    let ends = ends(&admitted.socket);
    Some(Arrived { hello, link: [Some(encrypted(admitted).ok()?)], ends })
}

fn ends(socket: &Socket) -> Option<(IpAddr, IpAddr)> {
    match socket {
        Socket::Tcp(stream) => {
            Some((stream.local_addr().ok()?.ip(), stream.peer_addr().ok()?.ip()))
        }
        Socket::Unix(_) => None,
    }
}

fn encrypted(admitted: Admitted) -> Result<Box<dyn Link>, LinkError> {
    match admitted.socket {
        Socket::Tcp(stream) => {
            Ok(Box::new(SecureLink::new(TcpLink::new(stream)?, admitted.established.keys)))
        }
        // Ranks meet over TCP only.
        Socket::Unix(_) => Err(LinkError::Closed),
    }
}

/// Whether a visitor has not gone away. Visitors say nothing after their hello.
fn is_there(link: &mut [Option<Box<dyn Link>>; 1]) -> bool {
    link[0].as_mut().is_some_and(|link| link.try_receive(&mut [0; 16]).is_ok())
}

/// A member with an address in the place of "all addresses": the one it came from.
fn filled_in(member: &Member, ends: Option<(IpAddr, IpAddr)>) -> Member {
    let fill = |ip: IpAddr| if ip.is_unspecified() { ends.map_or(ip, |ends| ends.1) } else { ip };
    with_ips(member, fill)
}

/// The roster as a rank of a host needs it. For a rank of another machine, those of rank 0's machine are where it found rank 0.
fn seen_by(roster: &Roster, host: &str, ends: Option<(IpAddr, IpAddr)>) -> Roster {
    let zero = &roster.members[0].host;
    let fill = |ip: IpAddr| match ends {
        Some((here, _)) if ip.is_unspecified() || (ip.is_loopback() && host != zero) => here,
        _ => ip,
    };
    let seen = |member: &Member| match &member.host == zero {
        true => with_ips(member, fill),
        false => member.clone(),
    };
    Roster { number: roster.number, members: roster.members.iter().map(seen).collect() }
}

fn with_ips(member: &Member, ip: impl Fn(IpAddr) -> IpAddr) -> Member {
    let changed = |address: &String| match address.parse::<SocketAddr>() {
        Ok(place) => SocketAddr::new(ip(place.ip()), place.port()).to_string(),
        Err(_) => address.clone(),
    };
    Member { addresses: member.addresses.iter().map(changed).collect(), host: member.host.clone() }
}

fn tell(
    link: &mut [Option<Box<dyn Link>>; 1],
    answer: &Answer,
    size: usize,
    rank: usize,
    deadline: Instant,
) -> Result<(), WorldError> {
    let failed = |source| WorldError::WentAway { rank, source };
    let mut bytes = Vec::new();
    write_frame(&mut bytes, answer, longest(size))
        .map_err(|source| WorldError::Frame { rank, source })?;
    let mut n_sent = 0;
    let mut waiting = Waiting::new();
    while let Some(open) = &mut link[0] {
        n_sent += open.try_send(&bytes[n_sent..]).map_err(failed)?;
        if n_sent == bytes.len() && open.try_flush().map_err(failed)? {
            break;
        }
        if Instant::now() >= deadline {
            return Err(failed(LinkError::Io(std::io::ErrorKind::TimedOut.into())));
        }
        // Whatever it is that fails, the next attempt to send says it.
        let _ = waiting.wait(link, |_| Interest::ReceiveOrRoom, None, deadline);
    }
    Ok(())
}

fn longest(size: usize) -> usize {
    4096 + size * PER_RANK
}

/// Where the others look for rank 0.
pub(super) enum Sought {
    At(String, Secret),
    Noted(NotePlace),
}

/// Another rank: looks for rank 0 until it answers, and waits for the roster. The station is opened with the secret that rank 0 has.
pub(super) fn visit(
    sought: &Sought,
    rank: usize,
    size: usize,
    within: Duration,
    open: impl Fn(&Secret) -> Result<Station, WorldError>,
) -> Result<(Roster, Station), WorldError> {
    let start = Instant::now();
    let visitor = random_number().unwrap_or_else(|_| u64::from(std::process::id()));
    let mut opened: Option<(Secret, Station)> = None;
    loop {
        let found = match sought {
            Sought::At(address, secret) => Some((address.clone(), secret.clone())),
            Sought::Noted(place) => place.read()?,
        };
        let reason = match found {
            Some((address, secret)) => {
                let kept = opened.take().filter(|(known, _)| known.text() == secret.text());
                let station = match kept {
                    Some((_, station)) => station,
                    None => open(&secret)?,
                };
                let hello = Hello { rank, size, visitor, member: Member::at(&station) };
                let hello = serde_json::to_vec(&hello).unwrap_or_default();
                let left = within.saturating_sub(start.elapsed()).min(ATTEMPT);
                match dial(&address, &secret, MEETING, &hello, left) {
                    Ok(admitted) => {
                        let roster = hear(admitted, rank, size, start + within + GRACE)?;
                        return Ok((roster, station));
                    }
                    // Another secret at a known address is a mistake; in a note it is of a run that is over.
                    Err(source @ DialError::Handshake { .. })
                        if matches!(sought, Sought::At(..)) =>
                    {
                        return Err(WorldError::Dial { rank, source });
                    }
                    Err(error) => {
                        opened = Some((secret, station));
                        error.to_string()
                    }
                }
            }
            None => "it has left no word where it is".to_string(),
        };
        if start.elapsed() >= within {
            return Err(WorldError::NoRankZero { rank, reason, after: start.elapsed() });
        }
        std::thread::sleep(RETRY);
    }
}

/// Waits for what rank 0 says.
fn hear(
    admitted: Admitted,
    rank: usize,
    size: usize,
    deadline: Instant,
) -> Result<Roster, WorldError> {
    let start = Instant::now();
    let failed = |source| WorldError::WentAway { rank: 0, source };
    let mut link = [Some(encrypted(admitted).map_err(failed)?)];
    let mut reader = FrameReader::new(longest(size));
    let mut chunk = [0; 4096];
    let mut waiting = Waiting::new();
    while let Some(open) = &mut link[0] {
        let n = open.try_receive(&mut chunk).map_err(failed)?;
        let answer = reader.next::<Answer>(&mut &chunk[..n]);
        match answer.map_err(|source| WorldError::Frame { rank: 0, source })? {
            Some(Answer::Roster(roster)) if roster.members.len() == size => return Ok(roster),
            Some(Answer::Roster(_)) => break,
            Some(Answer::GaveUp(reason)) => return Err(WorldError::Refused(reason)),
            None => {}
        }
        if Instant::now() >= deadline {
            let reason = "it answers, but has not said who takes part".to_string();
            return Err(WorldError::NoRankZero { rank, reason, after: start.elapsed() });
        }
        let _ = waiting.wait(&mut link, |_| Interest::Receive, None, deadline);
    }
    Err(WorldError::Disagreement(format!("rank 0 has a roster of other than {size} ranks")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(host: &str, address: &str) -> Member {
        Member { addresses: vec!["unix:@name".into(), address.into()], host: host.into() }
    }

    fn ends(here: &str, there: &str) -> Option<(IpAddr, IpAddr)> {
        Some((here.parse().unwrap(), there.parse().unwrap()))
    }

    #[test]
    fn every_rank_gets_addresses_that_it_can_reach() {
        // Rank 0 listens on all addresses, rank 1 is beside it and came by loopback, rank 2 is on another machine.
        let own = member("a", "0.0.0.0:10");
        let near = filled_in(&member("a", "0.0.0.0:11"), ends("127.0.0.1", "127.0.0.1"));
        let far = filled_in(&member("b", "0.0.0.0:12"), ends("10.0.0.1", "10.0.0.2"));
        assert_eq!(near.addresses, ["unix:@name", "127.0.0.1:11"]);
        assert_eq!(far.addresses, ["unix:@name", "10.0.0.2:12"]);
        let roster = Roster { number: 1, members: vec![own, near, far] };
        let places = |roster: Roster| -> Vec<String> {
            roster.members.into_iter().map(|member| member.addresses[1].clone()).collect()
        };
        let by_near = places(seen_by(&roster, "a", ends("127.0.0.1", "127.0.0.1")));
        assert_eq!(by_near, ["127.0.0.1:10", "127.0.0.1:11", "10.0.0.2:12"]);
        let by_far = places(seen_by(&roster, "b", ends("10.0.0.1", "10.0.0.2")));
        assert_eq!(by_far, ["10.0.0.1:10", "10.0.0.1:11", "10.0.0.2:12"]);
    }
}
