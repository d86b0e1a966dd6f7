//! Which machine this is: ranks of one machine share memory, and need no encryption between them.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs, UdpSocket};
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

/// The address of this machine that others are most likely to reach: the one from which it would reach them.
pub fn own_address() -> Option<IpAddr> {
    // An address that is kept for documentation: it stands for anywhere.
    own_address_towards((Ipv4Addr::new(192, 0, 2, 1), 9))
}

/// The address from which this machine reaches another.
pub fn own_address_towards(other: impl ToSocketAddrs) -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent: connecting a datagram socket only chooses the way.
    socket.connect(other).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A number drawn by chance.
pub fn random_number() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
