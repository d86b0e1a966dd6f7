//! The energy that the processor packages took during a run, where the machine tells.
//!
//! Linux shows the counters of Intel and AMD processors under `/sys/class/powercap`; most systems let only the superuser read
//! them. A counter starts over at its range (some 40 minutes at full power), so it has to be sampled now and then.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Why there is no number.
type Reason = String;

/// Adds up the energy of all packages from when it was started.
#[derive(Debug)]
pub struct EnergyMeter {
    packages: Result<Vec<Package>, Reason>,
}

/// The counter of one processor package, in microjoules.
#[derive(Debug)]
struct Package {
    folder: PathBuf,
    range: u64,
    last: u64,
    total: u64,
}

impl EnergyMeter {
    /// Starts counting.
    pub fn start() -> EnergyMeter {
        EnergyMeter::start_at(Path::new("/sys/class/powercap"))
    }

    fn start_at(root: &Path) -> EnergyMeter {
        EnergyMeter { packages: packages(root) }
    }

    /// Looks at the counters; called more often than they start over, nothing is lost.
    pub fn sample(&mut self) {
        let Ok(packages) = &mut self.packages else { return };
        let sampled = packages.iter_mut().try_for_each(|package| {
            let now = read_counter(&package.folder.join("energy_uj"))?;
            package.total += elapsed(package.last, now, package.range);
            package.last = now;
            Ok(())
        });
        if let Err(reason) = sampled {
            self.packages = Err(reason);
        }
    }

    /// Joules since the start, or why there is no number.
    pub fn joules(&mut self) -> Result<f64, String> {
        self.sample();
        match &self.packages {
            Ok(packages) => {
                Ok(packages.iter().map(|package| package.total).sum::<u64>() as f64 / 1e6)
            }
            Err(reason) => Err(reason.clone()),
        }
    }
}

/// The packages of the machine. Zones inside a package (`intel-rapl:0:1`) are part of its count; the platform (`psys`) holds
/// the packages.
fn packages(root: &Path) -> Result<Vec<Package>, Reason> {
    let silent = || "this machine does not tell".to_string();
    let mut packages = Vec::new();
    for entry in fs::read_dir(root).map_err(|_| silent())?.flatten() {
        let (name, folder) = (entry.file_name(), entry.path());
        let zone = name.to_str().and_then(|name| name.strip_prefix("intel-rapl:"));
        if zone.is_none_or(|zone| zone.contains(':')) {
            continue;
        }
        let named = fs::read_to_string(folder.join("name")).unwrap_or_default();
        if !named.trim().starts_with("package") {
            continue;
        }
        let last = read_counter(&folder.join("energy_uj"))?;
        let range = read_counter(&folder.join("max_energy_range_uj"))?;
        packages.push(Package { folder, range, last, total: 0 });
    }
    if packages.is_empty() { Err(silent()) } else { Ok(packages) }
}

fn read_counter(path: &Path) -> Result<u64, Reason> {
    let text = fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("only the superuser may read {}", path.display())
        }
        _ => format!("{} could not be read: {error}", path.display()),
    })?;
    text.trim().parse().map_err(|_| format!("{} does not hold a number", path.display()))
}

/// From one reading to the next of a counter that starts over after `range`.
fn elapsed(before: u64, now: u64, range: u64) -> u64 {
    if now >= before { now - before } else { range.saturating_sub(before).saturating_add(now) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(root: &Path, zone: &str, name: &str, microjoules: u64) {
        let folder = root.join(zone);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        fs::write(folder.join("energy_uj"), format!("{microjoules}\n")).unwrap();
        fs::write(folder.join("max_energy_range_uj"), "10000000\n").unwrap();
    }

    #[test]
    fn packages_are_added_up_and_their_parts_are_not_counted_twice() {
        let root = tempfile::tempdir().unwrap();
        let zones = [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:1", "package-1"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:2", "psys"),
        ];
        for (zone, name) in zones {
            set(root.path(), zone, name, 1_000_000);
        }
        let mut meter = EnergyMeter::start_at(root.path());
        for (zone, name) in zones {
            set(root.path(), zone, name, 1_500_000);
        }
        assert_eq!(meter.joules(), Ok(1.0));
    }

    #[test]
    fn a_counter_that_starts_over_loses_nothing_when_sampled() {
        let root = tempfile::tempdir().unwrap();
        set(root.path(), "intel-rapl:0", "package-0", 9_000_000);
        let mut meter = EnergyMeter::start_at(root.path());
        for microjoules in [1_000_000, 8_000_000, 500_000] {
            set(root.path(), "intel-rapl:0", "package-0", microjoules);
            meter.sample();
        }
        assert_eq!(meter.joules(), Ok(2.0 + 7.0 + 2.5));
    }

    #[test]
    fn a_machine_without_counters_says_so() {
        let root = tempfile::tempdir().unwrap();
        let reason = Err("this machine does not tell".to_string());
        assert_eq!(EnergyMeter::start_at(root.path()).joules(), reason);
        assert_eq!(EnergyMeter::start_at(&root.path().join("none")).joules(), reason);
    }

    #[test]
    fn a_counter_that_goes_away_is_named() {
        let root = tempfile::tempdir().unwrap();
        set(root.path(), "intel-rapl:0", "package-0", 0);
        let mut meter = EnergyMeter::start_at(root.path());
        fs::remove_file(root.path().join("intel-rapl:0/energy_uj")).unwrap();
        assert!(meter.joules().unwrap_err().contains("intel-rapl:0/energy_uj could not be read"));
    }
}
