//! What each launcher's variables come to.

use super::*;

fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
    let owned = variables.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    Launch::from_variables(&owned.collect())
}

fn fine(variables: &[(&str, &str)]) -> Launch {
    read(variables).unwrap().unwrap()
}

fn refusal(variables: &[(&str, &str)]) -> String {
    read(variables).unwrap_err().to_string()
}

const OPEN_MPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("PMIX_NAMESPACE", "prterun-host-77@1"),
];
const SLURM: [(&str, &str); 5] = [
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_JOB_ID", "4242"),
    ("SLURM_STEP_ID", "0"),
];

#[test]
fn no_launcher_is_no_launch() {
    assert_eq!(read(&[("PATH", "/bin"), ("MASTER_ADDR", "somewhere")]), Ok(None));
    // A variable that is set to nothing is not set.
    assert_eq!(read(&[("RANK", ""), ("WORLD_SIZE", " ")]), Ok(None));
}

#[test]
fn openmpi_on_one_machine_meets_by_its_job() {
    let launch = fine(&OPEN_MPI);
    assert_eq!(launch.launcher, Launcher::OpenMpi);
    assert_eq!((launch.rank, launch.size), (3, 4));
    assert_eq!((launch.local_rank, launch.local_size), (Some(3), Some(4)));
    assert_eq!(launch.meeting, Meeting::Here { job: "openmpi-prterun-host-77@1".into() });
}

#[test]
fn openmpi_on_several_machines_needs_an_address() {
    let mut variables = OPEN_MPI.to_vec();
    (variables[2], variables[3]) =
        (("OMPI_COMM_WORLD_LOCAL_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"));
    assert_eq!(
        refusal(&variables),
        "OpenMPI started 4 ranks and says nothing of where rank 0 can be reached: set \
         MANYHANDS_RENDEZVOUS to host:port of rank 0"
    );
    variables.push((RENDEZVOUS_VARIABLE, "node1:7000"));
    assert_eq!(fine(&variables).meeting, Meeting::At("node1:7000".into()));
}

#[test]
fn slurm_meets_on_its_first_node() {
    let mut variables = SLURM.to_vec();
    variables.push(("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"));
    let Meeting::At(address) = fine(&variables).meeting else { panic!("an address") };
    let port = address.strip_prefix("10.0.0.9:").unwrap().parse::<u64>().unwrap();
    assert!((20_000..32_000).contains(&port), "{address}");
    variables.push(("SLURM_JOB_NODELIST", "gpu[003-005,9],login"));
    let Meeting::At(address) = fine(&variables).meeting else { panic!("an address") };
    assert!(address.starts_with("gpu003:"), "{address}");
    variables.push(("SLURM_NNODES", "1"));
    assert_eq!(fine(&variables).meeting, Meeting::Here { job: "slurm-4242-0".into() });
}

#[test]
fn a_batch_script_of_slurm_is_alone() {
    assert_eq!(read(&SLURM[..4]), Ok(None));
    let mut batch = SLURM.to_vec();
    batch[4] = ("SLURM_STEP_ID", "4294967291");
    assert_eq!(read(&batch), Ok(None));
}

#[test]
fn first_nodes_of_lists() {
    for (list, first) in [
        ("node7", "node7"),
        ("a1,a2", "a1"),
        ("n[1-3]", "n1"),
        ("n[08,11-12]", "n08"),
        ("r[1-2]n[3-4]", "r1n3"),
        ("gpu-a[2-3]-ib", "gpu-a2-ib"),
    ] {
        assert_eq!(first_node(list), first, "{list}");
    }
}

#[test]
fn torchrun_meets_beside_its_store() {
    let mut variables = vec![
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "10.1.2.3"),
        ("MASTER_PORT", "29500"),
    ];
    assert_eq!(fine(&variables).meeting, Meeting::At("10.1.2.3:29500".into()));
    variables.push(("TORCHELASTIC_USE_AGENT_STORE", "True"));
    assert_eq!(fine(&variables).meeting, Meeting::At("10.1.2.3:29501".into()));
    variables.push(("LOCAL_WORLD_SIZE", "4"));
    assert_eq!(fine(&variables).meeting, Meeting::Here { job: "torchrun-29500-0-0".into() });
}

#[test]
fn loopback_addresses_need_no_secret() {
    for address in ["localhost:7", "127.0.0.1:7", "[::1]:7"] {
        let launch = fine(&[
            ("MANYHANDS_RANK", "0"),
            ("MANYHANDS_SIZE", "2"),
            (RENDEZVOUS_VARIABLE, address),
        ]);
        assert_eq!(launch.meeting, Meeting::Here { job: format!("at-{address}") });
    }
}

#[test]
fn the_innermost_launcher_counts() {
    let both: Vec<_> = SLURM.into_iter().chain(OPEN_MPI).collect();
    assert_eq!(fine(&both).launcher, Launcher::OpenMpi);
    // Scripts for Slurm often set these for PyTorch, without a rank.
    let mut scripted = SLURM.to_vec();
    scripted.extend([("WORLD_SIZE", "8"), ("MASTER_ADDR", "a"), ("SLURM_NODELIST", "a")]);
    assert_eq!(fine(&scripted).launcher, Launcher::Slurm);
    let own = [("MANYHANDS_RANK", "0"), ("MANYHANDS_SIZE", "1")];
    let all: Vec<_> = both.into_iter().chain(own).collect();
    let launch = fine(&all);
    assert_eq!((launch.launcher, launch.size), (Launcher::Manyhands, 1));
    assert_eq!(launch.meeting, Meeting::Alone);
}

#[test]
fn horovod_is_recognised() {
    let launch = fine(&[
        ("HOROVOD_RANK", "0"),
        ("HOROVOD_SIZE", "2"),
        ("HOROVOD_LOCAL_RANK", "0"),
        ("HOROVOD_LOCAL_SIZE", "2"),
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", "4444"),
    ]);
    assert_eq!(launch.launcher, Launcher::Horovod);
    assert_eq!(launch.meeting, Meeting::Here { job: "horovod-10.0.0.1-4444".into() });
}

#[test]
fn what_does_not_fit_together_is_named() {
    let check = |variables: &[(&str, &str)], expected: &str| {
        assert_eq!(refusal(variables), expected);
    };
    check(&[("RANK", "0")], "RANK is set, but WORLD_SIZE is not: torchrun sets both");
    check(&[("WORLD_SIZE", "2")], "WORLD_SIZE is set, but RANK is not: torchrun sets both");
    check(
        &[("RANK", "0"), ("WORLD_SIZE", "2")],
        "RANK is set, but MASTER_ADDR is not: torchrun sets both",
    );
    check(
        &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")],
        "MASTER_ADDR is set, but MASTER_PORT is not: torchrun sets both",
    );
    check(
        &[("HOROVOD_RANK", "two"), ("HOROVOD_SIZE", "2")],
        "HOROVOD_RANK should be a number, but is \"two\"",
    );
    check(
        &[("MANYHANDS_RANK", "4"), ("MANYHANDS_SIZE", "4")],
        "MANYHANDS_RANK is 4, but MANYHANDS_SIZE is 4: ranks go from 0 to one less",
    );
    check(
        &[("MANYHANDS_RANK", "0"), ("MANYHANDS_SIZE", "0")],
        "MANYHANDS_RANK is 0, but MANYHANDS_SIZE is 0: ranks go from 0 to one less",
    );
    check(
        &[
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
        ],
        "OMPI_COMM_WORLD_LOCAL_SIZE is 3, which is more than the 2 of OMPI_COMM_WORLD_SIZE",
    );
    check(
        &[("MANYHANDS_RANK", "0"), ("MANYHANDS_SIZE", "2"), (RENDEZVOUS_VARIABLE, "here")],
        "MANYHANDS_RENDEZVOUS should be host:port (an IPv6 address in brackets, as in [::1]:7070), but is \"here\"",
    );
    check(
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0")],
        "SLURM_PROCID is set, but SLURM_JOB_ID is not: Slurm sets both",
    );
}
