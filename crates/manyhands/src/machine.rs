//! What this machine has: for `doctor`, for reports, and for budgets of memory.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What this machine has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name in the network.
    pub host: String,
    /// The operating system and its version.
    pub system: String,
    /// The model name of the processor.
    pub processor: String,
    /// Cores that this process may use: those of the machine, less what affinity and control groups forbid.
    pub n_cores: usize,
    /// Instruction sets that matter for training, such as `avx2`.
    pub instruction_sets: Vec<String>,
    /// The memory of the machine.
    pub memory_bytes: Option<u64>,
    /// Memory that is free or can be freed now.
    pub available_memory_bytes: Option<u64>,
    /// The limit that a control group (a container, a batch system) sets on this process.
    pub memory_limit_bytes: Option<u64>,
}

impl Machine {
    /// Looks at this machine. What it does not tell is left out.
    pub fn look() -> Machine {
        let names = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine {
            host: text(names.nodename()),
            system: format!("{} {}", text(names.sysname()), text(names.release())),
            processor: processor_name(&processors).unwrap_or_else(|| text(names.machine())),
            n_cores: std::thread::available_parallelism().map_or(1, usize::from),
            instruction_sets: instruction_sets(),
            memory_bytes: kilobytes(&memory, "MemTotal"),
            available_memory_bytes: kilobytes(&memory, "MemAvailable"),
            memory_limit_bytes: memory_limit(&groups, Path::new("/sys/fs/cgroup")),
        }
    }

    /// The memory that this process may use at most.
    pub fn usable_memory_bytes(&self) -> Option<u64> {
        self.memory_bytes.into_iter().chain(self.memory_limit_bytes).min()
    }
}

/// Room on the disk of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSpace {
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// All bytes of the file system.
    pub total_bytes: u64,
}

/// The room on the disk of a folder, or of the nearest folder around it that exists.
pub fn disk_space(folder: &Path) -> io::Result<DiskSpace> {
    let here = Path::new(".");
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(here);
    let existing = if existing.as_os_str().is_empty() { here } else { existing };
    let found = rustix::fs::statvfs(existing)?;
    Ok(DiskSpace {
        free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

/// The most memory that this process has had in use so far.
pub fn peak_memory_bytes() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// The value of a line such as `MemTotal:  32 kB`, in bytes.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn processor_name(text: &str) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, name) = fields.find(|(key, _)| key.trim() == "model name")?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The smallest memory limit of the control groups around this process, given `/proc/self/cgroup` and where they are mounted.
fn memory_limit(groups: &str, mount: &Path) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = if controllers.is_empty() {
            (mount.to_path_buf(), "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            (mount.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        // A container often sees its own group as the root while the path is that of the machine, so missing levels are
        // passed over.
        let inside = root.join(group.trim_start_matches('/'));
        let levels = inside.ancestors().take_while(|level| level.starts_with(&root));
        let read =
            |level: &Path| fs::read_to_string(level.join(file)).ok()?.trim().parse::<u64>().ok();
        limits.extend(levels.filter_map(read));
    }
    // "No limit" is the word `max` in the second version and a number near 2^63 in the first.
    limits.into_iter().filter(|&limit| limit < 1 << 60).min()
}

#[cfg(target_arch = "x86_64")]
fn instruction_sets() -> Vec<String> {
    let found = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512dq", is_x86_feature_detected!("avx512dq")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    found.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string()).collect()
}

#[cfg(target_arch = "aarch64")]
fn instruction_sets() -> Vec<String> {
    use std::arch::is_aarch64_feature_detected;
    let found = [
        ("neon", is_aarch64_feature_detected!("neon")),
        ("fp16", is_aarch64_feature_detected!("fp16")),
        ("bf16", is_aarch64_feature_detected!("bf16")),
        ("dotprod", is_aarch64_feature_detected!("dotprod")),
        ("sve", is_aarch64_feature_detected!("sve")),
    ];
    found.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string()).collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn instruction_sets() -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cores_and_memory() {
        let machine = Machine::look();
        assert!(machine.n_cores > 0);
        assert!(!machine.processor.is_empty());
        let memory = machine.memory_bytes.unwrap();
        assert!(machine.available_memory_bytes.unwrap() <= memory);
        assert!(machine.usable_memory_bytes().unwrap() <= memory);
        assert!(peak_memory_bytes().unwrap() > 100_000);
    }

    #[test]
    fn the_disk_of_a_folder_that_is_not_there_yet_is_that_of_the_folder_around_it() {
        let folder = tempfile::tempdir().unwrap();
        let around = disk_space(folder.path()).unwrap();
        let inside = disk_space(&folder.path().join("not/yet")).unwrap();
        assert_eq!(around.total_bytes, inside.total_bytes);
        assert!(around.free_bytes <= around.total_bytes && around.total_bytes > 0);
        assert!(disk_space(Path::new("relative")).is_ok());
    }

    fn group(mount: &Path, path: &str, file: &str, content: &str) {
        fs::create_dir_all(mount.join(path)).unwrap();
        fs::write(mount.join(path).join(file), content).unwrap();
    }

    #[test]
    fn the_smallest_limit_of_the_groups_around_counts() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "a/b", "memory.max", "max\n");
        group(mount.path(), "a", "memory.max", "2000000\n");
        assert_eq!(memory_limit("0::/a/b\n", mount.path()), Some(2_000_000));
        group(mount.path(), "a/b", "memory.max", "1000000\n");
        assert_eq!(memory_limit("0::/a/b\n", mount.path()), Some(1_000_000));
        assert_eq!(memory_limit("0::/elsewhere\n", mount.path()), None);
    }

    #[test]
    fn control_groups_of_the_first_version_are_read_too() {
        let mount = tempfile::tempdir().unwrap();
        let groups = "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n";
        group(mount.path(), "memory", "memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(memory_limit(groups, mount.path()), None);
        group(mount.path(), "memory/job", "memory.limit_in_bytes", "4096\n");
        assert_eq!(memory_limit(groups, mount.path()), Some(4096));
    }

    #[test]
    fn names_and_sizes_are_taken_from_their_lines() {
        let text = "processor\t: 0\nmodel name\t: Some  CPU @ 2GHz\n";
        assert_eq!(processor_name(text).unwrap(), "Some CPU @ 2GHz");
        assert_eq!(kilobytes("MemTotalX: 1 kB\nMemTotal:    3 kB\n", "MemTotal"), Some(3072));
    }
}
