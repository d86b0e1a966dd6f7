//! Every launcher's variables lead to the same world.

use std::net::TcpListener;

use super::*;

/// Starts four ranks, each with the variables of its rank, and checks what they say.
fn check_launcher(name: &str, variables: impl Fn(usize) -> Vec<(&'static str, String)>) {
    let folder = tempfile::tempdir().unwrap();
    let said = Ranks::start((0..4).map(|rank| {
        let mut command = rank_command("sum", folder.path());
        command.envs(variables(rank));
        command
    }))
    .said();
    for (rank, said) in said.iter().enumerate() {
        let expected = format!("{name} {rank}/4 local {rank}/4 sum 10 4");
        assert_eq!(said.lines, [expected], "{}", said.all);
    }
    let left = std::fs::read_dir(folder.path()).unwrap();
    let notes = left.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    assert_eq!(notes.count(), 0, "nothing of the meeting is left behind");
}

#[test]
fn own_variables() {
    check_launcher("manyhands", |rank| {
        vec![
            ("MANYHANDS_RANK", rank.to_string()),
            ("MANYHANDS_SIZE", "4".into()),
            ("MANYHANDS_RENDEZVOUS", "127.0.0.1:7777".into()),
        ]
    });
}

#[test]
fn openmpi_variables() {
    check_launcher("OpenMPI", |rank| {
        vec![
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "4".into()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4".into()),
            ("PMIX_NAMESPACE", "1234".into()),
        ]
    });
}

#[test]
fn slurm_variables() {
    check_launcher("Slurm", |rank| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_NTASKS", "4".into()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_JOB_ID", "77".into()),
            ("SLURM_STEP_ID", "0".into()),
            ("SLURM_NNODES", "1".into()),
        ]
    });
}

#[test]
fn torchrun_variables() {
    check_launcher("torchrun", |rank| {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "4".into()),
            ("LOCAL_RANK", rank.to_string()),
            ("MASTER_ADDR", "localhost".into()),
            ("MASTER_PORT", "29500".into()),
        ]
    });
}

#[test]
fn horovod_variables() {
    check_launcher("Horovod", |rank| {
        vec![
            ("HOROVOD_RANK", rank.to_string()),
            ("HOROVOD_SIZE", "4".into()),
            ("HOROVOD_LOCAL_RANK", rank.to_string()),
            ("HOROVOD_LOCAL_SIZE", "4".into()),
            ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1".into()),
            ("HOROVOD_GLOO_RENDEZVOUS_PORT", "4567".into()),
        ]
    });
}

/// An address of this machine that is not loopback, as another machine would use it.
fn own_address() -> Option<String> {
    // No packet is sent: this only asks which way it would go.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    probe.connect("198.51.100.1:9").ok()?;
    let ip = probe.local_addr().ok().map(|address| address.ip())?;
    let free = TcpListener::bind((ip, 0)).ok()?.local_addr().ok()?;
    (!ip.is_loopback() && ip.is_ipv4()).then(|| free.to_string())
}

#[test]
fn an_address_that_others_can_reach_needs_a_secret_and_works_with_one() {
    let Some(address) = own_address() else {
        println!("skipped: this machine has no address but loopback");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let commands = |secret: Option<&'static str>| {
        let (folder, address) = (folder.path().to_path_buf(), address.clone());
        (0..3).map(move |rank| {
            let mut command = rank_command("sum", &folder);
            command.env("MANYHANDS_RANK", rank.to_string()).env("MANYHANDS_SIZE", "3");
            command.env("MANYHANDS_RENDEZVOUS", &address);
            command.envs(secret.map(|secret| ("MANYHANDS_SECRET", secret)));
            command
        })
    };
    for said in Ranks::start(commands(None)).said() {
        assert!(!said.is_fine);
        assert!(said.all.contains("need the same secret in MANYHANDS_SECRET"), "{}", said.all);
    }
    let said = Ranks::start(commands(Some("a secret of some length"))).said();
    for (rank, said) in said.iter().enumerate() {
        let expected = format!("manyhands {rank}/3 local {rank}/3 sum 6 3");
        assert_eq!(said.lines, [expected], "{}", said.all);
    }
}

#[test]
fn without_a_launcher_a_rank_is_alone() {
    let folder = tempfile::tempdir().unwrap();
    let said = Ranks::start([rank_command("sum", folder.path())]).said();
    assert_eq!(said[0].lines, ["nobody 0/1 local 0/1 sum 1 1"], "{}", said[0].all);
}

/// `mpirun` with so many ranks; none where it is not installed.
fn mpirun(n: usize, folder: &std::path::Path) -> Option<Command> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: mpirun is not installed");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("XDG_RUNTIME_DIR", folder);
    command.args(["--oversubscribe", "-n", &n.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

/// A body on ranks that the real `mpirun` starts: all that they print, in any order.
fn under_mpirun(body: &str, n: usize, folder: &std::path::Path) -> Option<Said> {
    let mut command = mpirun(n, folder)?;
    let rank = rank_command(body, folder);
    command.arg(rank.get_program()).args(rank.get_args()).env(BODY, body);
    Some(Ranks::start([command]).said().remove(0))
}

#[test]
fn the_real_mpirun_makes_a_world() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut said) = under_mpirun("sum", 4, folder.path()) else { return };
    said.lines.sort();
    let expected: Vec<String> =
        (0..4).map(|rank| format!("OpenMPI {rank}/4 local {rank}/4 sum 10 4")).collect();
    assert_eq!(said.lines, expected, "{}", said.all);
}

/// The loss and weights that each rank of the example printed.
fn weights(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.split_once("loss "));
    lines.map(|(_, rest)| rest.to_string()).collect()
}

#[test]
fn the_example_ends_with_the_same_weights_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let alone = Ranks::start([rank_command("example", folder.path())]).said().remove(0);
    let by_variables = Ranks::start((0..3).map(|rank| {
        let mut command = rank_command("example", folder.path());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3");
        command.env("MASTER_ADDR", "localhost").env("MASTER_PORT", "29511");
        command
    }));
    let by_variables = by_variables.said().into_iter().map(|said| said.all).collect();
    let mut runs: Vec<(usize, String)> = vec![(1, alone.all), (3, by_variables)];
    if let Some(said) = under_mpirun("example", 4, folder.path()) {
        runs.push((4, said.all));
    }
    for (n, text) in runs {
        let found = weights(&text);
        assert_eq!(found.len(), n, "{text}");
        assert!(found.iter().all(|one| one == &found[0]), "{text}");
        let loss: f64 = found[0].split(',').next().unwrap().parse().unwrap();
        assert!(loss < 0.05, "{text}");
    }
}
