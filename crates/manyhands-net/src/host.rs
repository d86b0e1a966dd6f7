//! Which machine this is: ranks of one machine share memory, and need no encryption between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::OnceLock;

/// What tells machines apart: the identity of the system's boot and of its network, since processes in different network namespaces are on different hosts
/// as far as connections go.
pub fn host_id() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        // A machine that does not tell must not be taken for another: then links to it are encrypted, and no memory is shared.
        let unlike_any =
            |_| random_number().unwrap_or_else(|_| std::process::id().into()).to_string();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.unwrap_or_else(unlike_any);
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        format!("{}/{}", boot.trim(), network.display())
    })
}

/// The name of this machine, for people.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The address of this machine that others are most likely to reach: the one from which it would reach them, or, without a way to anywhere, one of
/// its cards'.
pub fn own_address() -> Option<IpAddr> {
    // Addresses that are kept for documentation: they stand for anywhere.
    let anywhere: [IpAddr; 2] =
        [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    let towards = anywhere.iter().find_map(|ip| own_address_towards((*ip, 9)));
    towards.filter(|ip| !ip.is_loopback()).or_else(card_address)
}

/// The address from which this machine reaches another, of whichever family that has.
pub fn own_address_towards(other: impl ToSocketAddrs) -> Option<IpAddr> {
    let towards = |place: SocketAddr| {
        let socket = UdpSocket::bind((all_of_family(place.ip()), 0)).ok()?;
        // Nothing is sent: connecting a datagram socket only chooses the way.
        socket.connect(place).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
    };
    other.to_socket_addrs().ok()?.find_map(towards)
}

/// The address to listen on for others of a cluster whose coordinator is at `host:port`: loopback where that is, else all addresses of the family by
/// which it is reached. A name of this machine's own that means loopback (127.0.1.1, as some systems have it) says nothing of where the others are.
pub fn bind_towards(coordinator: &str) -> IpAddr {
    let host = split_address(coordinator).map_or(coordinator, |(host, _)| host);
    match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => ip,
        Ok(ip) => all_of_family(ip),
        Err(_) if host == "localhost" => Ipv4Addr::LOCALHOST.into(),
        Err(_) => {
            all_of_family(own_address_towards(coordinator).unwrap_or(Ipv4Addr::UNSPECIFIED.into()))
        }
    }
}

/// The address that others are told, where a process listens on all: the one from which it reaches the coordinator. Loopback would lead others to themselves.
pub fn public_address(coordinator: &str) -> Option<IpAddr> {
    let towards = own_address_towards(coordinator);
    let is_named_loopback = split_address(coordinator)
        .is_some_and(|(host, _)| host == "localhost" || host.parse::<IpAddr>().is_ok());
    match towards {
        Some(ip) if !ip.is_loopback() || is_named_loopback => Some(ip),
        other => own_address().or(other),
    }
}

/// All addresses of the family of one.
pub fn all_of_family(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Host and port of `host:port`. A host of IPv6 stands in brackets, as in `[::1]:7070`, and is given without them.
pub fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|ip| ip.parse::<Ipv6Addr>().is_ok())?,
        // Without brackets nobody knows where the address ends.
        None => Some(host).filter(|host| !host.is_empty() && !host.contains(':'))?,
    };
    Some((host, port))
}

/// An address of one of the machine's cards, for machines that have no way to anywhere but their neighbours.
fn card_address() -> Option<IpAddr> {
    let of_file = |path: &str, parse: fn(&str) -> Option<IpAddr>| {
        std::fs::read_to_string(path).ok().and_then(|text| parse(&text))
    };
    of_file("/proc/net/fib_trie", card_address_v4)
        .or_else(|| of_file("/proc/net/if_inet6", card_address_v6))
}

/// The first address of this machine in the system's table of ways, loopback aside.
fn card_address_v4(table: &str) -> Option<IpAddr> {
    let mut last = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last.filter(|address| !address.is_loopback())
        {
            return Some(address.into());
        }
    }
    None
}

/// The first address in the system's list that is not for one link only.
fn card_address_v6(list: &str) -> Option<IpAddr> {
    list.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let bits = u128::from_str_radix(words.next()?, 16).ok()?;
        let is_everywhere = words.nth(2) == Some("00");
        is_everywhere.then(|| Ipv6Addr::from_bits(bits).into())
    })
}

/// A number drawn by chance.
pub fn random_number() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_are_split_and_others_refused() {
        assert_eq!(split_address("a.b:7070"), Some(("a.b", 7070)));
        assert_eq!(split_address("10.0.0.1:1"), Some(("10.0.0.1", 1)));
        assert_eq!(split_address("[::1]:7070"), Some(("::1", 7070)));
        for bad in ["::1:7070", "[::1]", "[a]:1", "[::1:7070", ":7070", "a", "a:b", "a:70000"] {
            assert_eq!(split_address(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_own_address_is_of_the_family_of_the_other() {
        assert_eq!(own_address_towards("127.0.0.1:9"), Some(Ipv4Addr::LOCALHOST.into()));
        if UdpSocket::bind("[::1]:0").is_ok() {
            assert_eq!(own_address_towards("[::1]:9"), Some(Ipv6Addr::LOCALHOST.into()));
        }
        assert_eq!(own_address_towards("no.such.host.invalid:9"), None);
        assert!(own_address().is_none_or(|ip| !ip.is_loopback() && !ip.is_unspecified()));
    }

    #[test]
    fn who_listens_for_a_cluster_listens_where_its_coordinator_reaches() {
        let bind = |coordinator| bind_towards(coordinator).to_string();
        assert_eq!(bind("localhost:7070"), "127.0.0.1");
        assert_eq!(bind("127.0.0.1:7070"), "127.0.0.1");
        assert_eq!(bind("[::1]:7070"), "::1");
        assert_eq!(bind("10.1.2.3:7070"), "0.0.0.0");
        assert_eq!(bind("[fd00::1]:7070"), "::");
        assert_eq!(public_address("127.0.0.1:7070"), Some(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn without_a_way_to_anywhere_a_card_has_an_address() {
        let table = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.0.0.0\n        /24 link \
                     UNICAST\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n";
        assert_eq!(card_address_v4(table), Some(Ipv4Addr::new(10, 0, 0, 7).into()));
        assert_eq!(card_address_v4(""), None);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe800000000000000000000000000001 02 40 20 80     eth0\n\
                    fd000000000000000000000000000005 02 40 00 80     eth0\n";
        assert_eq!(card_address_v6(list), Some("fd00::5".parse().unwrap()));
        assert_eq!(card_address_v6(&list[..110]), None);
    }
}
