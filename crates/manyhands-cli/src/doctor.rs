//! `manyhands doctor`: what this machine has, and what would be used.

use std::fs;
use std::path::Path;

use manyhands::device::{Isa, KERNEL_SET};
use serde::Serialize;

use crate::arguments::Doctor;
use crate::exit::Failure;
use crate::figures::{bytes, counted};
use crate::output::{print, print_json};

pub(crate) fn run(arguments: &Doctor) -> Result<(), Failure> {
    let machine = Machine::look();
    if arguments.json { print_json(&machine) } else { print(&describe(&machine)) }
}

/// What was found. What the machine does not tell is absent.
#[derive(Serialize)]
struct Machine {
    version: &'static str,
    system: String,
    /// Cores that this process may use, and those of the machine.
    cores: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores_of_machine: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processor: Option<String>,
    instructions: &'static str,
    kernel_set: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_free_bytes: Option<u64>,
    /// Energy counters of the processor that this user may read.
    energy_counters: Vec<String>,
    /// Accelerators that are present. None is used yet.
    accelerators: Vec<String>,
    default_set_up: String,
}

impl Machine {
    fn look() -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let read = |path: &str| fs::read_to_string(path).ok();
        let info = read("/proc/cpuinfo").unwrap_or_default();
        let memory = read("/proc/meminfo").unwrap_or_default();
        Machine {
            version: env!("CARGO_PKG_VERSION"),
            system: format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH),
            cores,
            cores_of_machine: Some(lines_of(&info, "processor").count()).filter(|n| *n > 0),
            processor: lines_of(&info, "model name").next().map(String::from),
            instructions: Isa::detect().name(),
            kernel_set: KERNEL_SET,
            memory_bytes: kibibytes(&memory, "MemTotal"),
            memory_free_bytes: kibibytes(&memory, "MemAvailable"),
            memory_limit_bytes: memory_limit(),
            disk_free_bytes: disk_free(),
            energy_counters: energy_counters(Path::new("/sys/class/powercap")),
            accelerators: accelerators(Path::new("/dev")),
            default_set_up: default_set_up(cores),
        }
    }
}

/// The values of the lines of /proc with such a name.
fn lines_of<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// A line of /proc/meminfo, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let value = lines_of(text, name).next()?.strip_suffix("kB")?;
    value.trim().parse::<u64>().ok().map(|n| n * 1024)
}

/// The smallest limit on the memory of this process: of its control groups, and of its address space.
fn memory_limit() -> Option<u64> {
    let address_space = rustix::process::getrlimit(rustix::process::Resource::As).current;
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_limits(&group, Path::new("/sys/fs/cgroup")).into_iter().chain(address_space).min()
}

/// The memory limits of a process's control groups: of its own and of each above it.
fn group_limits(groups: &str, root: &Path) -> Vec<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        for folder in Path::new(path.trim_start_matches('/')).ancestors() {
            let limit = fs::read_to_string(root.join(folder).join(file)).ok();
            limits.extend(limit.and_then(|limit| limit.trim().parse::<u64>().ok()));
        }
    }
    // The first version of control groups writes "no limit" as a number that no machine has.
    limits.retain(|limit| *limit < 1 << 60);
    limits
}

/// Bytes that this user may still write in the folder at hand.
fn disk_free() -> Option<u64> {
    let disk = rustix::fs::statvfs(".").ok()?;
    Some(disk.f_bavail * disk.f_frsize)
}

/// The energy counters of packages that can be read.
fn energy_counters(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let readable = |folder: &Path| fs::read_to_string(folder.join("energy_uj")).is_ok();
    let mut names: Vec<String> = entries
        .filter(|entry| readable(&entry.path()))
        .filter_map(|entry| fs::read_to_string(entry.path().join("name")).ok())
        .map(|name| name.trim().to_string())
        .filter(|name| name.starts_with("package"))
        .collect();
    names.sort();
    names
}

/// Accelerators by their device files.
fn accelerators(dev: &Path) -> Vec<String> {
    let entries = fs::read_dir(dev).into_iter().flatten().flatten();
    let names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let is_numbered = |name: &str, stem: &str| {
        let number = name.strip_prefix(stem);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let n_nvidia = names.iter().filter(|name| is_numbered(name, "nvidia")).count();
    let mut found = Vec::new();
    if n_nvidia > 0 {
        found.push(format!("{n_nvidia} of NVIDIA (/dev/nvidia0)"));
    }
    if names.iter().any(|name| name == "kfd") {
        found.push("AMD (/dev/kfd)".to_string());
    }
    found
}

/// How a job that says nothing about it would use the cores.
fn default_set_up(cores: usize) -> String {
    if cores == 1 {
        "1 worker x 1 thread: there is one core".to_string()
    } else {
        format!(
            "1 worker x {} or {} x 1 thread, whichever is faster on the first steps of a job",
            counted(cores, "thread"),
            counted(cores, "worker")
        )
    }
}

fn describe(machine: &Machine) -> String {
    let mut lines = vec![format!("manyhands {}, {}", machine.version, machine.system)];
    let mut line = |term: &str, about: String| lines.push(format!("  {term:<14}{about}"));
    let amount = |amount: Option<u64>| amount.map_or("unknown".to_string(), bytes);
    if let Some(processor) = &machine.processor {
        line("processor", processor.clone());
    }
    line(
        "cores",
        match machine.cores_of_machine {
            Some(all) if all > machine.cores => {
                format!("{} of the machine's {all} may be used", machine.cores)
            }
            _ => machine.cores.to_string(),
        },
    );
    line("instructions", format!("{}, kernel set {}", machine.instructions, machine.kernel_set));
    let limit = match machine.memory_limit_bytes {
        Some(limit) => format!("this process may take {}", bytes(limit)),
        None => "no limit is set for this process".to_string(),
    };
    let (total, free) = (amount(machine.memory_bytes), amount(machine.memory_free_bytes));
    line("memory", format!("{total}, {free} free; {limit}"));
    line("disk", format!("{} free in this folder", amount(machine.disk_free_bytes)));
    line(
        "energy",
        match machine.energy_counters.as_slice() {
            [] => "no counter that can be read; reports leave it out".to_string(),
            counters => format!("counted for {}", counters.join(", ")),
        },
    );
    line(
        "accelerators",
        match machine.accelerators.as_slice() {
            [] => "none found".to_string(),
            found => format!("{}; present, not used by this version", found.join(", ")),
        },
    );
    line("set-up", machine.default_set_up.clone());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_of_nested_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("jobs/one");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("jobs/memory.max"), "1048576\n").unwrap();
        assert_eq!(group_limits("0::/jobs/one\n", root.path()), [1 << 20]);
        assert!(group_limits("0::/other\n", root.path()).is_empty());
    }

    #[test]
    fn device_files_are_accelerators() {
        let dev = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "kfd", "null"] {
            fs::write(dev.path().join(name), "").unwrap();
        }
        assert_eq!(accelerators(dev.path()), ["2 of NVIDIA (/dev/nvidia0)", "AMD (/dev/kfd)"]);
    }

    #[test]
    fn lines_of_proc_are_read() {
        let text = "MemTotal:       24689764 kB\nMemAvailable:   1024 kB\n";
        assert_eq!(kibibytes(text, "MemAvailable"), Some(1 << 20));
        assert_eq!(kibibytes(text, "Swap"), None);
    }

    #[test]
    fn counters_without_permission_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let package = root.path().join("intel-rapl:0");
        fs::create_dir(&package).unwrap();
        fs::write(package.join("name"), "package-0\n").unwrap();
        assert!(energy_counters(root.path()).is_empty());
        fs::write(package.join("energy_uj"), "12\n").unwrap();
        assert_eq!(energy_counters(root.path()), ["package-0"]);
    }
}
