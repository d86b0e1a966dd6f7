//! What a launcher's environment says: which rank this process is, of how many, and where the ranks meet.
//!
//! The decision is a function of the variables alone. Where several launchers have left their variables, the innermost counts: whoever runs
//! `mpirun` or `torchrun` inside a Slurm job means those.

use std::collections::BTreeMap;
use std::fmt;

use crate::host::split_address;

/// The variable with the rank of a process that was started by hand or by manyhands.
pub const RANK_VARIABLE: &str = "MANYHANDS_RANK";
/// The variable with the number of ranks.
pub const SIZE_VARIABLE: &str = "MANYHANDS_SIZE";
/// The variable with the place among the ranks of one machine.
pub const LOCAL_RANK_VARIABLE: &str = "MANYHANDS_LOCAL_RANK";
/// The variable with the `host:port` where rank 0 listens; it counts with every launcher.
pub const RENDEZVOUS_VARIABLE: &str = "MANYHANDS_RENDEZVOUS";

/// Ports that are derived from the number of a job: from here on, so many. Below those that systems give to outgoing connections.
const DERIVED_PORTS: (u64, u64) = (20_000, 12_000);
/// Numbers of Slurm steps from here on are not of tasks that `srun` started.
const SLURM_SPECIAL_STEPS: u64 = 0xffff_fff0;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `MANYHANDS_RANK` and its like.
    Manyhands,
    /// `horovodrun`, or anything that sets its variables.
    Horovod,
    /// `torchrun`, or anything that sets its variables.
    Torchrun,
    /// `mpirun` of OpenMPI.
    OpenMpi,
    /// `srun` of Slurm.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().name)
    }
}

/// Where the ranks of a launch meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Nowhere: there is one rank.
    Alone,
    /// All are on this machine: in a private folder, under the name of the job.
    Here {
        /// What tells this job from others on this machine.
        job: String,
    },
    /// Rank 0 listens at this `host:port`.
    At(String),
}

/// What a launcher says of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Who said it.
    pub launcher: Launcher,
    /// This process's rank, from 0.
    pub rank: usize,
    /// How many ranks there are.
    pub size: usize,
    /// The place among the ranks of this machine, where the launcher says it.
    pub local_rank: Option<usize>,
    /// How many ranks this machine has, where the launcher says it.
    pub local_size: Option<usize>,
    /// Where the ranks meet.
    pub meeting: Meeting,
}

/// Why a launcher's variables cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// Some are set, and others that belong to them are not.
    #[error("{set} is set, but {missing} is not: {launcher} sets both")]
    HalfSet {
        /// Whose variables they are.
        launcher: Launcher,
        /// The one that is there.
        set: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// Not a number.
    #[error("{variable} should be a number, but is {value:?}")]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// What it is set to.
        value: String,
    },
    /// A rank beyond the number of ranks.
    #[error("{variable} is {rank}, but {size_variable} is {size}: ranks go from 0 to one less")]
    OutOfRange {
        /// The variable of the rank.
        variable: &'static str,
        /// The rank.
        rank: usize,
        /// The variable of the number of ranks.
        size_variable: &'static str,
        /// The number of ranks.
        size: usize,
    },
    /// More ranks on this machine than there are.
    #[error("{variable} is {local_size}, which is more than the {size} of {size_variable}")]
    TooManyLocal {
        /// The variable of the number of ranks on this machine.
        variable: &'static str,
        /// That number.
        local_size: usize,
        /// The variable of the number of ranks.
        size_variable: &'static str,
        /// The number of ranks.
        size: usize,
    },
    /// An address that is none.
    #[error(
        "{variable} should be host:port (an IPv6 address in brackets, as in [::1]:7070), but is {value:?}"
    )]
    NotAnAddress {
        /// The variable.
        variable: &'static str,
        /// What it is set to.
        value: String,
    },
    /// Nothing says where the ranks meet.
    #[error(
        "{launcher} started {size} ranks and says nothing of where rank 0 can be reached: set {RENDEZVOUS_VARIABLE} to host:port of rank 0"
    )]
    NoMeeting {
        /// The launcher.
        launcher: Launcher,
        /// How many ranks.
        size: usize,
    },
}

/// The names of a launcher's variables.
struct Words {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: Option<&'static str>,
}

impl Launcher {
    /// Innermost first.
    const ALL: [Launcher; 5] =
        [Self::Manyhands, Self::Horovod, Self::Torchrun, Self::OpenMpi, Self::Slurm];

    fn words(self) -> Words {
        let words = |name, [rank, size, local_rank]: [&'static str; 3], local_size| Words {
            name,
            rank,
            size,
            local_rank,
            local_size,
        };
        match self {
            Self::Manyhands => {
                words("manyhands", [RANK_VARIABLE, SIZE_VARIABLE, LOCAL_RANK_VARIABLE], None)
            }
            Self::Horovod => words(
                "Horovod",
                ["HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"],
                Some("HOROVOD_LOCAL_SIZE"),
            ),
            Self::Torchrun => {
                words("torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK"], Some("LOCAL_WORLD_SIZE"))
            }
            Self::OpenMpi => words(
                "OpenMPI",
                ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
                Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
            ),
            Self::Slurm => words("Slurm", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"], None),
        }
    }
}

impl Launch {
    /// What the environment of this process says; none where no launcher started it.
    pub fn from_environment() -> Result<Option<Launch>, LaunchError> {
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((key.into_string().ok()?, value.into_string().ok()?))
        };
        Launch::from_variables(&std::env::vars_os().filter_map(text).collect())
    }

    /// What these variables say; none where there are none of a launcher.
    pub fn from_variables(
        variables: &BTreeMap<String, String>,
    ) -> Result<Option<Launch>, LaunchError> {
        let variables = Variables(variables);
        let Some(launcher) = variables.launcher()? else { return Ok(None) };
        let words = launcher.words();
        let half_set = |set, missing| LaunchError::HalfSet { launcher, set, missing };
        let rank = variables.number(words.rank)?.ok_or(half_set(words.size, words.rank))?;
        let size = variables.number(words.size)?.ok_or(half_set(words.rank, words.size))?;
        let local_rank = variables.number(words.local_rank)?;
        let local_size = match words.local_size {
            Some(variable) => variables.number(variable)?,
            None => None,
        };
        if let (Some(variable), Some(local_size)) = (words.local_size, local_size)
            && local_size > size
        {
            let size_variable = words.size;
            return Err(LaunchError::TooManyLocal { variable, local_size, size_variable, size });
        }
        let ranks = [
            (words.rank, Some(rank), words.size, size),
            (
                words.local_rank,
                local_rank,
                words.local_size.unwrap_or(words.size),
                local_size.unwrap_or(size),
            ),
        ];
        for (variable, rank, size_variable, size) in ranks {
            if let Some(rank) = rank.filter(|rank| *rank >= size) {
                return Err(LaunchError::OutOfRange { variable, rank, size_variable, size });
            }
        }
        let mut launch =
            Launch { launcher, rank, size, local_rank, local_size, meeting: Meeting::Alone };
        launch.meeting = variables.meeting(&launch)?;
        Ok(Some(launch))
    }
}

struct Variables<'a>(&'a BTreeMap<String, String>);

impl Variables<'_> {
    /// The value of a variable; one that is set to nothing is not set.
    fn get(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    fn number(&self, variable: &'static str) -> Result<Option<usize>, LaunchError> {
        let Some(value) = self.get(variable) else { return Ok(None) };
        let not_a_number = |_| LaunchError::NotANumber { variable, value: value.to_string() };
        value.parse().map(Some).map_err(not_a_number)
    }

    fn launcher(&self) -> Result<Option<Launcher>, LaunchError> {
        let has_rank = |launcher: &Launcher| {
            self.get(launcher.words().rank).is_some()
                && (*launcher != Launcher::Slurm || self.is_slurm_task())
        };
        if let Some(launcher) = Launcher::ALL.into_iter().find(has_rank) {
            return Ok(Some(launcher));
        }
        // A size without a rank is a mistake, but for Slurm, whose batch scripts and shells have one.
        let others = Launcher::ALL.into_iter().filter(|launcher| *launcher != Launcher::Slurm);
        for launcher in others {
            let Words { size, rank, .. } = launcher.words();
            if self.get(size).is_some() {
                return Err(LaunchError::HalfSet { launcher, set: size, missing: rank });
            }
        }
        Ok(None)
    }

    /// Whether `srun` started this process. A batch script has the same variables, though it is alone.
    fn is_slurm_task(&self) -> bool {
        let step = self.get("SLURM_STEP_ID").or(self.get("SLURM_STEPID"));
        step.and_then(|step| step.parse().ok()).is_some_and(|step: u64| step < SLURM_SPECIAL_STEPS)
    }

    fn meeting(&self, launch: &Launch) -> Result<Meeting, LaunchError> {
        let Launch { launcher, size, local_size, .. } = *launch;
        if size == 1 {
            return Ok(Meeting::Alone);
        }
        if let Some(address) = self.get(RENDEZVOUS_VARIABLE) {
            return meeting_at(RENDEZVOUS_VARIABLE, address, address);
        }
        let is_here = local_size == Some(size);
        let no_meeting = LaunchError::NoMeeting { launcher, size };
        match launcher {
            Launcher::Manyhands => Err(no_meeting),
            Launcher::Torchrun => self.torchrun_meeting(is_here),
            Launcher::OpenMpi if is_here => {
                let ids = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"];
                let (set, missing) = (launcher.words().rank, ids[0]);
                let id = ids.iter().find_map(|id| self.get(id));
                let id = id.ok_or(LaunchError::HalfSet { launcher, set, missing })?;
                Ok(Meeting::Here { job: format!("openmpi-{id}") })
            }
            Launcher::Horovod if is_here => {
                let parts = ["HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"];
                let [Some(address), Some(port)] = parts.map(|part| self.get(part)) else {
                    return Err(no_meeting);
                };
                Ok(Meeting::Here { job: format!("horovod-{address}-{port}") })
            }
            // The address of Horovod's rendezvous is that of its own server, not of rank 0.
            Launcher::OpenMpi | Launcher::Horovod => Err(no_meeting),
            Launcher::Slurm => self.slurm_meeting(no_meeting),
        }
    }

    fn torchrun_meeting(&self, is_here: bool) -> Result<Meeting, LaunchError> {
        let (host, port) = (self.get("MASTER_ADDR"), self.number("MASTER_PORT")?);
        let [run, restart] = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];
        let suffix = [run, restart].map(|part| self.get(part).unwrap_or("0")).join("-");
        let half_set =
            |set, missing| LaunchError::HalfSet { launcher: Launcher::Torchrun, set, missing };
        match (host, port) {
            (_, port) if is_here => {
                let port = port.unwrap_or(0);
                Ok(Meeting::Here { job: format!("torchrun-{port}-{suffix}") })
            }
            (Some(host), Some(port)) => {
                // The launcher's own store listens at the port where it says so; rank 0 takes the next.
                let is_taken = self
                    .get("TORCHELASTIC_USE_AGENT_STORE")
                    .is_some_and(|value| value.eq_ignore_ascii_case("true"));
                let address = joined(host, port as u64 + u64::from(is_taken));
                meeting_at("MASTER_ADDR", &address, &format!("torchrun-{port}-{suffix}"))
            }
            (Some(_), None) => Err(half_set("MASTER_ADDR", "MASTER_PORT")),
            (None, _) => Err(half_set("RANK", "MASTER_ADDR")),
        }
    }

    fn slurm_meeting(&self, no_meeting: LaunchError) -> Result<Meeting, LaunchError> {
        let launcher = Launcher::Slurm;
        let missing =
            LaunchError::HalfSet { launcher, set: launcher.words().rank, missing: "SLURM_JOB_ID" };
        let job = self.get("SLURM_JOB_ID").or(self.get("SLURM_JOBID")).ok_or(missing)?;
        let step = self.get("SLURM_STEP_ID").or(self.get("SLURM_STEPID")).unwrap_or("0");
        let nodes = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"];
        if nodes.iter().find_map(|nodes| self.get(nodes)) == Some("1") {
            return Ok(Meeting::Here { job: format!("slurm-{job}-{step}") });
        }
        // Rank 0 is on the first node; the node where `srun` was called is often another.
        let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        let first = lists.iter().find_map(|list| self.get(list)).map(first_node);
        let launch_node = self.get("SLURM_LAUNCH_NODE_IPADDR").map(str::to_string);
        let host = first.or(launch_node).ok_or(no_meeting)?;
        let mixed = format!("{job}.{step}")
            .bytes()
            .fold(0u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Ok(Meeting::At(joined(&host, DERIVED_PORTS.0 + (mixed >> 16) % DERIVED_PORTS.1)))
    }
}

/// A meeting at an address; one that only this machine can reach needs no more than a name.
fn meeting_at(variable: &'static str, address: &str, job: &str) -> Result<Meeting, LaunchError> {
    let bad = || LaunchError::NotAnAddress { variable, value: address.to_string() };
    let (host, _) = split_address(address).filter(|(_, port)| *port != 0).ok_or_else(bad)?;
    Ok(match is_loopback(host) {
        true => Meeting::Here { job: format!("at-{job}") },
        false => Meeting::At(address.to_string()),
    })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn joined(host: &str, port: u64) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// The first of a list of nodes as Slurm writes it: `gpu[003-005,9],login` begins with `gpu003`.
fn first_node(list: &str) -> String {
    let mut name = String::new();
    let mut is_inside = false;
    let mut is_passed = false;
    for character in list.chars() {
        match character {
            '[' => (is_inside, is_passed) = (true, false),
            ']' => (is_inside, is_passed) = (false, false),
            ',' if !is_inside => break,
            ',' | '-' if is_inside => is_passed = true,
            _ if is_inside && is_passed => {}
            other => name.push(other),
        }
    }
    name
}

#[cfg(test)]
mod tests;
