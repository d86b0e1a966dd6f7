//! All ranks of a program that a launcher started: collectives for any training loop in Rust.
//!
//! ```
//! use manyhands_net::collective::Reduction;
//! use manyhands_net::world::World;
//!
//! # fn main() -> Result<(), manyhands_net::world::WorldError> {
//! // Alone, or under `mpirun`, `srun`, `torchrun`: from the launcher's variables.
//! let mut world = World::init()?;
//! let mut gradient = vec![0.5f32; 1000];
//! world.all_reduce(&mut gradient, Reduction::Mean)?;
//! println!("rank {} of {}: {}", world.rank(), world.size(), gradient[0]);
//! # Ok(())
//! # }
//! ```
//!
//! A [`World`] is a [`Group`] of all ranks, so that every collective can be called on it. [`World::group`] makes groups of some ranks, `World::start_*` start
//! operations that go on in the background, and [`Averaged`] averages gradients while the backward pass still runs.
//!
//! A rank whose process ends is noticed at once, by all who are in an operation with it. One that stays alive and never comes is given up after
//! some time, five minutes unless told: a rank may evaluate or write a checkpoint that long while the others wait. The variable `MANYHANDS_PATIENCE`
//! ([`PATIENCE_VARIABLE`], in seconds) or [`World::set_patience`] says otherwise. The error of every rank then names which rank is where, as in `barrier,
//! call 3 failed after 300.0 s on rank 0: rank 1 has not come; rank 2 is in barrier, call 3`.

mod averaged;
mod error;
mod fabric;
mod folder;
mod rendezvous;
mod ticket;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use averaged::{Averaged, Joined};
pub use error::WorldError;
pub use ticket::Ticket;

use crate::collective::{CollectiveError, Element, Group, Reduction};
use crate::host::{all_of_family, host_id, split_address};
use crate::launch::{Launch, Meeting};
use crate::secure::Secret;
use crate::station::{Route, Station};
use fabric::Fabric;
use folder::NotePlace;
use rendezvous::{Member, Reception, Roster, Sought};
use ticket::Background;

/// How long ranks wait for each other at the start.
const WITHIN: Duration = Duration::from_secs(120);
/// How long an operation that does not move is waited for, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(300);
/// The variable with the seconds that an operation which does not move is waited for, as in `MANYHANDS_PATIENCE=60`.
pub const PATIENCE_VARIABLE: &str = "MANYHANDS_PATIENCE";
/// Parameters smaller than this travel together.
pub(crate) const BUCKET_BYTES: usize = 4 << 20;

/// All ranks of a program. All collectives of [`Group`] can be called on it.
pub struct World {
    group: Group,
    local_rank: usize,
    local_size: usize,
    fabric: Arc<Fabric>,
    background: OnceLock<Background>,
}

impl World {
    /// The world of the launcher that started this process; one rank alone where there is none.
    pub fn init() -> Result<World, WorldError> {
        match Launch::from_environment()? {
            Some(launch) => World::launched(&launch, WITHIN),
            None => World::alone(),
        }
    }

    /// The world of a launch, whose ranks wait this long for each other at the start.
    pub fn launched(launch: &Launch, within: Duration) -> Result<World, WorldError> {
        let Launch { rank, size, .. } = *launch;
        let (roster, station) = match &launch.meeting {
            Meeting::Alone => return World::alone(),
            Meeting::Here { job } => meet_here(job, rank, size, within)?,
            Meeting::At(address) => {
                let secret = Secret::from_environment()
                    .map_err(|source| WorldError::Secret { address: address.clone(), source })?;
                meet_at(address, rank, size, secret, within)?
            }
        };
        let local = (launch.local_rank, launch.local_size);
        World::linked(rank, roster, Some(station), local, within)
    }

    /// The world whose rank 0 listens at `address` (`host:port`). All ranks must know the secret.
    pub fn at(
        address: &str,
        rank: usize,
        size: usize,
        secret: Secret,
    ) -> Result<World, WorldError> {
        if rank >= size {
            let sentence = format!("there can be no rank {rank} among {size} ranks");
            return Err(WorldError::Misuse(sentence));
        }
        if size == 1 {
            return World::alone();
        }
        let (roster, station) = meet_at(address, rank, size, secret, WITHIN)?;
        World::linked(rank, roster, Some(station), (None, None), WITHIN)
    }

    /// A world of one rank.
    pub fn alone() -> Result<World, WorldError> {
        let member = Member { addresses: Vec::new(), host: host_id().to_string() };
        World::linked(0, Roster { number: 0, members: vec![member] }, None, (None, None), WITHIN)
    }

    fn linked(
        rank: usize,
        roster: Roster,
        station: Option<Station>,
        local: (Option<usize>, Option<usize>),
        within: Duration,
    ) -> Result<World, WorldError> {
        let patience = patience_of(std::env::var(PATIENCE_VARIABLE).ok().as_deref())?;
        let fabric = Arc::new(Fabric::new(rank, roster, station, within, patience));
        let near = fabric.near();
        let place = near.iter().position(|near| *near == rank).unwrap_or(0);
        let all: Vec<usize> = (0..fabric.size()).collect();
        let group = fabric.group("world", &all, Arc::default())?;
        Ok(World {
            group,
            local_rank: local.0.unwrap_or(place),
            local_size: local.1.unwrap_or(near.len()),
            fabric,
            background: OnceLock::new(),
        })
    }

    /// The place of this rank among those of its machine, from 0: which GPU to take.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// How many ranks this machine has.
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// The address at which the machine of a rank is reached from here; for this rank itself, the one at which others reach it. None where no rank but this
    /// one was there to know it.
    pub fn address_of(&self, rank: usize) -> Option<IpAddr> {
        self.fabric.address_of(rank)
    }

    /// Waits this long for ranks that are there and do not come, in all operations from now on, whatever [`PATIENCE_VARIABLE`] says.
    pub fn set_patience(&mut self, patience: Duration) {
        self.fabric.set_patience(patience);
        self.group.set_patience(patience);
    }

    /// A group of some ranks with links of its own: it can be used at the same time as others, also from another thread.
    ///
    /// All of the ranks must call this, with the same list; the order of the list is that of the ranks in the group. Other ranks need not, and get none.
    pub fn group(&self, ranks: &[usize]) -> Result<Option<Group>, WorldError> {
        let mut seen = vec![false; self.size()];
        for rank in ranks {
            match seen.get_mut(*rank) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => {
                    return Err(WorldError::Misuse(format!("rank {rank} is twice in the group")));
                }
                None => {
                    let sentence = format!("there is no rank {rank} among {}", self.size());
                    return Err(WorldError::Misuse(sentence));
                }
            }
        }
        if !seen[self.rank()] {
            return Ok(None);
        }
        let name = self.fabric.next_name("group", ranks);
        self.fabric.group(&name, ranks, Arc::default()).map(Some)
    }

    /// All ranks get the root's parameters, whose number and sizes must be the same on all. Small ones travel together.
    pub fn broadcast_parameters<T: Element>(
        &mut self,
        parameters: &mut [&mut [T]],
        root: usize,
    ) -> Result<(), WorldError> {
        let sizes = mix(parameters.iter().map(|parameter| parameter.len() as u64)) as i64;
        let (mut least, mut most) = ([sizes], [sizes]);
        self.group.all_reduce(&mut least, Reduction::Min)?;
        self.group.all_reduce(&mut most, Reduction::Max)?;
        if least != most {
            let sentence = "the ranks have parameters of different number or sizes";
            return Err(WorldError::Misuse(sentence.to_string()));
        }
        let lens: Vec<usize> = parameters.iter().map(|parameter| parameter.len()).collect();
        for bucket in ticket::buckets::<T>(&lens) {
            if let [one] = &mut parameters[bucket.clone()] {
                self.group.broadcast(one, root)?;
                continue;
            }
            let mut packed: Vec<T> = Vec::new();
            parameters[bucket.clone()].iter().for_each(|part| packed.extend_from_slice(part));
            self.group.broadcast(&mut packed, root)?;
            let mut rest = &packed[..];
            for parameter in &mut parameters[bucket] {
                let (front, back) = rest.split_at(parameter.len());
                parameter.copy_from_slice(front);
                rest = back;
            }
        }
        Ok(())
    }

    /// How many ranks say yes: with it a loop over uneven data goes on until no rank has any left, as in
    /// `while world.count(batch.is_some())? > 0`.
    pub fn count(&mut self, yes: bool) -> Result<usize, CollectiveError> {
        let mut count = [i64::from(yes)];
        self.group.all_reduce(&mut count, Reduction::Sum)?;
        Ok(count[0] as usize)
    }
}

impl Deref for World {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Group {
        &mut self.group
    }
}

/// Ranks of one machine meet by a note in a private folder.
fn meet_here(
    job: &str,
    rank: usize,
    size: usize,
    within: Duration,
) -> Result<(Roster, Station), WorldError> {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let place = NotePlace::of(job)?;
    let open = |secret: &Secret| Ok(Station::open(here, secret.clone(), Route::Auto)?);
    if rank > 0 {
        return rendezvous::visit(&Sought::Noted(place), rank, size, within, open);
    }
    let secret = Secret::random().map_err(WorldError::LocalSecret)?;
    let station = open(&secret)?;
    let (tcp, address) = listen(SocketAddr::new(here, 0))?;
    let note = place.write(&address.to_string(), &secret)?;
    let member = Member::at(&station);
    let roster = rendezvous::receive(tcp, Reception { size, member, within, secret: &secret })?;
    drop(note);
    Ok((roster, station))
}

/// Ranks meet at an address of rank 0.
fn meet_at(
    address: &str,
    rank: usize,
    size: usize,
    secret: Secret,
    within: Duration,
) -> Result<(Roster, Station), WorldError> {
    let bad = || WorldError::Misuse(format!("{address:?} is not host:port"));
    let (host, port) = split_address(address).ok_or_else(bad)?;
    let ip = match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => ip,
        Ok(ip) => all_of_family(ip),
        _ if host == "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        // Rank 0 listens by the family that its name has for it; IPv4 where it has both.
        _ => all_of_name(address),
    };
    let open = |secret: &Secret| Ok(Station::open(ip, secret.clone(), Route::Auto)?);
    if rank > 0 {
        return rendezvous::visit(&Sought::At(address.into(), secret), rank, size, within, open);
    }
    let station = open(&secret)?;
    let (tcp, _) = listen(SocketAddr::new(ip, port))?;
    let member = Member::at(&station);
    let roster = rendezvous::receive(tcp, Reception { size, member, within, secret: &secret })?;
    Ok((roster, station))
}

/// All addresses of the family of a name.
fn all_of_name(address: &str) -> IpAddr {
    let found: Vec<SocketAddr> = address.to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    match !found.is_empty() && found.iter().all(SocketAddr::is_ipv6) {
        true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    }
}

fn listen(place: SocketAddr) -> Result<(TcpListener, SocketAddr), WorldError> {
    let failed = |source| WorldError::Listen { address: place.to_string(), source };
    let tcp = TcpListener::bind(place).map_err(failed)?;
    let address = tcp.local_addr().map_err(failed)?;
    Ok((tcp, address))
}

/// The patience that a text asks for; the usual one without a text.
fn patience_of(text: Option<&str>) -> Result<Duration, WorldError> {
    let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
        return Ok(PATIENCE);
    };
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let patience = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // Beyond a lifetime there is nothing to tell apart, and times can still be added.
    let longest = Duration::from_secs(100 * 365 * 24 * 3600);
    patience
        .map(|patience| patience.min(longest))
        .ok_or_else(|| WorldError::Patience { value: text.to_string() })
}

/// FNV-1a over words: a check against mistakes, not against malice.
fn mix(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_number_of_seconds() {
        let patience = |text| patience_of(Some(text)).unwrap().as_secs_f64();
        assert_eq!(patience_of(None).unwrap(), PATIENCE);
        assert_eq!((patience(""), patience(" 60 "), patience("0.5")), (300.0, 60.0, 0.5));
        assert!(patience("1e12") < 4e9);
        for bad in ["0", "-1", "nan", "1 min", "1e30"] {
            let sentence = patience_of(Some(bad)).unwrap_err().to_string();
            assert!(sentence.starts_with("MANYHANDS_PATIENCE should be"), "{sentence}");
        }
    }
}
