//! Network namespaces as machines: ranks meet at an address, and links between machines are encrypted.

use super::*;

/// Two network namespaces with a cable between them, and no way to anywhere else.
struct Hosts {
    names: [String; 2],
    /// Of the first, as it stands in `host:port`.
    address: &'static str,
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    let ended = Command::new("ip").args(arguments).stderr(Stdio::null()).status();
    ended.is_ok_and(|status| status.success())
}

impl Hosts {
    /// None where this user or system cannot make them.
    fn new(tag: &str, address: &'static str, cards: [&str; 2]) -> Option<Hosts> {
        let number = std::process::id();
        let hosts =
            Hosts { names: ["a", "b"].map(|name| format!("mh{number}{tag}{name}")), address };
        let [a, b] = [&hosts.names[0][..], &hosts.names[1][..]];
        let is_made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&["-n", a, "link", "add", "v", "type", "veth", "peer", "name", "v", "netns", b])
            && [a, b].iter().zip(cards).all(|(host, card)| {
                // Usable at once, without asking the neighbours whether it is taken.
                let nodad: &[&str] = if card.contains(':') { &["nodad"] } else { &[] };
                ip(&[&["-n", host, "addr", "add", card, "dev", "v"], nodad].concat())
                    && ip(&["-n", host, "link", "set", "v", "up"])
                    && ip(&["-n", host, "link", "set", "lo", "up"])
            });
        is_made.then_some(hosts)
    }

    /// Ranks 0 and 1 are on one machine, the others on the other.
    fn ranks(&self, body: &str, folder: &std::path::Path, secrets: [&str; 4]) -> Ranks {
        Ranks::start(secrets.iter().enumerate().map(|(rank, secret)| {
            let rank_command = rank_command(body, folder);
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.names[rank / 2]]);
            command.arg(rank_command.get_program()).args(rank_command.get_args());
            command.env(BODY, body).env("MANYHANDS_SECRET", secret);
            command.env("MANYHANDS_RANK", rank.to_string()).env("MANYHANDS_SIZE", "4");
            command.env("MANYHANDS_RENDEZVOUS", format!("{}:7000", self.address));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        }))
    }
}

#[test]
fn ranks_on_two_machines_make_a_world() {
    let Some(hosts) = Hosts::new("", "10.99.7.1", ["10.99.7.1/24", "10.99.7.2/24"]) else {
        println!("skipped: no network namespaces can be made here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let said = hosts.ranks("machines", folder.path(), ["the secret of both machines"; 4]).said();
    for (rank, said) in said.iter().enumerate() {
        let kind = |other: usize| match other / 2 == rank / 2 {
            true => "shared memory",
            false => "tcp, encrypted",
        };
        let kinds: Vec<&str> = (0..4).filter(|other| *other != rank).map(kind).collect();
        let expected = format!("{rank}: local {}/2, sum 6, {}", rank % 2, kinds.join("; "));
        assert_eq!(said.lines, [expected], "{}", said.all);
    }
    let secrets =
        [&["the secret of both machines"; 3][..], &["another secret of some length"]].concat();
    let said = hosts.ranks("impatient", folder.path(), secrets.try_into().unwrap()).said();
    let told = &said[0].lines[0];
    assert!(told.starts_with("rank 3 never came within 1.5 s; 4 were to come"), "{told}");
    let told = &said[3].lines[0];
    assert!(told.starts_with("rank 3 cannot join: no handshake with 10.99.7.1:7000"), "{told}");
}

/// Checks that ranks meet and are told addresses at which they are reached.
fn check_addresses(hosts: &Hosts, own: [&str; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let said = hosts.ranks("addresses", folder.path(), ["the secret of both machines"; 4]).said();
    for (rank, said) in said.iter().enumerate() {
        let expected = format!("sum 6, rank 0 is at {}, this is {}", own[0], own[rank / 2]);
        assert_eq!(said.lines, [expected], "{}", said.all);
    }
}

#[test]
fn machines_without_a_way_to_anywhere_know_their_addresses() {
    let Some(hosts) = Hosts::new("w", "10.99.8.1", ["10.99.8.1/24", "10.99.8.2/24"]) else {
        println!("skipped: no network namespaces can be made here");
        return;
    };
    check_addresses(&hosts, ["10.99.8.1", "10.99.8.2"]);
}

#[test]
fn machines_that_speak_ipv6_only_make_a_world() {
    let cards = ["fd99:7::1/64", "fd99:7::2/64"];
    let Some(hosts) = Hosts::new("x", "[fd99:7::1]", cards) else {
        println!("skipped: no network namespaces with IPv6 can be made here");
        return;
    };
    check_addresses(&hosts, ["fd99:7::1", "fd99:7::2"]);
}
