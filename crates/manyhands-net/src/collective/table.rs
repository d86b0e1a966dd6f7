//! Which way of an all-reduce in tree order is the fastest, as measured: the table that [`Algorithm::Auto`] goes by.
//!
//! Measured between processes of one machine of two cores, whose "hosts" are blocks of ranks linked by TCP over loopback. There a byte between hosts costs little
//! more than one within; on a real network the way over hosts pays earlier. To measure again, for 4 and 8 processes, with each `--algorithm`:
//!
//! ```text
//! collective_speed --processes N --transport tcp                        values of ranks, all apart
//! collective_speed --processes N --transport shm [--hosts 2]            values of ranks, on one host or two
//! collective_speed --processes N --transport shm --hosts 2 --leaves 8   sums over leaves
//! ```

use std::ops::Range;

use super::algorithm::Algorithm;

/// What is summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Summed {
    /// One value of each rank.
    Ranks,
    /// Partial sums over leaves, any number of each rank.
    Leaves,
}

/// Who shares memory with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    /// All with all.
    OneHost,
    /// The ranks of each of several hosts.
    Hosts,
    /// Nobody with anybody, or ranks do not agree about it.
    Apart,
}

/// Where a way is faster than the direct exchange.
struct Row {
    summed: Summed,
    topology: Topology,
    /// From so many ranks on.
    n_ranks: usize,
    /// What each rank brings of one sum.
    bytes: Range<usize>,
    fastest: Algorithm,
}

const KIB: usize = 1 << 10;
const ALL: usize = usize::MAX;

/// The first that fits counts; where none does, the direct exchange is the fastest. Halving and doubling, of powers of two only, took 40 to 90 % of its time;
/// sums over 8 leaves took 60 % of it over two hosts of 2 ranks from 64 KiB to 1 MiB, and 50 to 75 % over two hosts of 4 (of larger ones every second run was slower there).
const TABLE: [Row; 8] = [
    row(Summed::Ranks, Topology::Hosts, 3, 512 * KIB..ALL, Algorithm::Hierarchical),
    row(Summed::Ranks, Topology::Hosts, 8, 0..512 * KIB, Algorithm::HalvingDoubling),
    row(Summed::Ranks, Topology::Hosts, 4, 16 * KIB..512 * KIB, Algorithm::HalvingDoubling),
    row(Summed::Ranks, Topology::Apart, 8, 0..512 * KIB, Algorithm::HalvingDoubling),
    row(Summed::Ranks, Topology::Apart, 4, 16 * KIB..512 * KIB, Algorithm::HalvingDoubling),
    row(Summed::Leaves, Topology::Hosts, 8, 0..ALL, Algorithm::Hierarchical),
    row(Summed::Leaves, Topology::Hosts, 4, 16 * KIB..ALL, Algorithm::Hierarchical),
    // Two ranks and one: alike here, but fewer bytes.
    row(Summed::Leaves, Topology::Hosts, 3, 512 * KIB..ALL, Algorithm::Hierarchical),
];

const fn row(
    summed: Summed,
    topology: Topology,
    n_ranks: usize,
    bytes: Range<usize>,
    fastest: Algorithm,
) -> Row {
    Row { summed, topology, n_ranks, bytes, fastest }
}

/// What the table says: a function of what all ranks know.
pub(super) fn fastest(
    summed: Summed,
    topology: Topology,
    n_ranks: usize,
    n_bytes: usize,
) -> Algorithm {
    let fits = |row: &&Row| {
        row.summed == summed
            && row.topology == topology
            && row.n_ranks <= n_ranks
            && row.bytes.contains(&n_bytes)
    };
    TABLE.iter().find(fits).map_or(Algorithm::Direct, |row| row.fastest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_keeps_to_ways_in_tree_order_that_can_be() {
        for row in &TABLE {
            assert!(row.fastest != Algorithm::Ring && row.fastest != Algorithm::Auto);
            let has_hosts = row.topology == Topology::Hosts;
            assert!(row.fastest != Algorithm::Hierarchical || has_hosts);
            assert!(row.fastest != Algorithm::HalvingDoubling || row.summed == Summed::Ranks);
            // Two ranks have one way only.
            assert!(row.n_ranks > 2 && !row.bytes.is_empty());
        }
    }

    #[test]
    fn the_first_row_that_fits_counts() {
        let fastest =
            |summed, topology, n_ranks, kib| fastest(summed, topology, n_ranks, kib * KIB);
        use Algorithm::{Direct, HalvingDoubling, Hierarchical};
        assert_eq!(fastest(Summed::Ranks, Topology::OneHost, 8, 64), Direct);
        assert_eq!(fastest(Summed::Ranks, Topology::Hosts, 8, 4), HalvingDoubling);
        assert_eq!(fastest(Summed::Ranks, Topology::Apart, 4, 4), Direct);
        assert_eq!(fastest(Summed::Ranks, Topology::Hosts, 4, 512), Hierarchical);
        assert_eq!(fastest(Summed::Leaves, Topology::Hosts, 3, 64), Direct);
        assert_eq!(fastest(Summed::Leaves, Topology::Hosts, 4, 64), Hierarchical);
        assert_eq!(fastest(Summed::Leaves, Topology::Hosts, 3, 64 << 10), Hierarchical);
        assert_eq!(fastest(Summed::Leaves, Topology::Apart, 8, 64 << 10), Direct);
    }
}
