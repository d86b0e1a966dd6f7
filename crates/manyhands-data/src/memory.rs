//! How much memory is free for data: the least of what the machine, the control group and the limit on address space leave.

use std::fs::read_to_string;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// How many bytes this process can still take, or `None` where the system does not tell.
pub fn available() -> Option<u64> {
    let limits = [machine(), control_group(), address_space()];
    limits.into_iter().flatten().min()
}

fn machine() -> Option<u64> {
    kibibytes("/proc/meminfo", "MemAvailable:")
}

/// Address space that a thread takes for its stack and its share of the heap, used or not.
const THREAD_BYTES: u64 = 72 << 20;

fn address_space() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let taken = kibibytes("/proc/self/status", "VmSize:")?;
    // The threads that will read, and those that fill batches and train.
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from) as u64 + 2;
    Some(limit.saturating_sub(taken + n_threads * THREAD_BYTES))
}

fn kibibytes(file: &str, key: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The least that this process's control group and those above it leave.
fn control_group() -> Option<u64> {
    let groups = read_to_string("/proc/self/cgroup").ok()?;
    let mut least = None;
    for line in groups.lines() {
        let mut words = line.splitn(3, ':').skip(1);
        let (controllers, path) = (words.next()?, words.next()?);
        let (root, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            names if names.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        for group in path.ancestors() {
            let left = group_leaves(&Path::new(root).join(group), limit, usage);
            least = [least, left].into_iter().flatten().min();
        }
    }
    least
}

fn group_leaves(group: &Path, limit: &str, usage: &str) -> Option<u64> {
    let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, usage) = (number(limit)?, number(usage)?);
    // Pages of files that nobody uses count as used but give way.
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let gives_way = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "))
        .and_then(|n| n.trim().parse::<u64>().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(gives_way)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn some_memory_is_free_where_this_runs() {
        assert!(super::available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
