//! Ranks that never come, die or disagree: the others are told who, in bounded time.

use super::*;

/// Ranks of a world of `size`, of which only some are started.
fn some_ranks(body: &str, ranks: &[(usize, usize)]) -> Vec<Said> {
    let folder = tempfile::tempdir().unwrap();
    Ranks::start(ranks.iter().map(|(rank, size)| {
        let mut command = rank_command(body, folder.path());
        command.env("MANYHANDS_RANK", rank.to_string()).env("MANYHANDS_SIZE", size.to_string());
        command.env("MANYHANDS_RENDEZVOUS", "localhost:1");
        command
    }))
    .said()
}

#[test]
fn ranks_that_never_come_are_named_to_all_who_came() {
    let said = some_ranks("impatient", &[(0, 4), (2, 4)]);
    assert!(said[0].lines[0].starts_with("ranks 1 and 3 never came within 1.5 s"), "{said:?}");
    let told = "rank 0 gave up: ranks 1 and 3 never came within 1.5 s; 4 were to come";
    assert_eq!(said[1].lines, [told]);
}

#[test]
fn without_rank_0_the_others_say_so() {
    let said = some_ranks("impatient", &[(1, 2)]);
    let told = &said[0].lines[0];
    assert!(told.starts_with("rank 1 did not find rank 0 within 1.5 s: it has left no"), "{told}");
}

#[test]
fn a_rank_twice_and_worlds_of_different_sizes_are_disagreements() {
    let said = some_ranks("impatient", &[(0, 3), (1, 3), (1, 3)]);
    assert_eq!(said[0].lines, ["two processes say that they are rank 1 of 3"]);
    let said = some_ranks("impatient", &[(0, 3), (1, 5)]);
    assert_eq!(said[0].lines, ["a process came as rank 1 of 5; there can be ranks 1 to 2 of 3"]);
}

#[test]
fn a_rank_that_dies_is_named_by_the_others() {
    let said = some_ranks("dies", &[(0, 4), (1, 4), (2, 4), (3, 4)]);
    for said in &said[..3] {
        let told = &said.lines[0];
        // Who hears of it from another first has seen nothing of rank 3 itself.
        let is_named = told.contains("rank 3 is lost") || told.contains("rank 3 has not come");
        assert!(is_named, "{told}");
        assert!(told.contains("all_reduce of 10000 f32 (sum), call 10"), "{told}");
    }
}

#[test]
fn the_patience_of_the_environment_is_kept_and_the_late_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = Ranks::start((0..3).map(|rank| {
        let mut command = rank_command("late", folder.path());
        command.env("MANYHANDS_RANK", rank.to_string()).env("MANYHANDS_SIZE", "3");
        command.env("MANYHANDS_RENDEZVOUS", "localhost:2").env("MANYHANDS_PATIENCE", "0.5");
        command
    }));
    let said = ranks.said();
    for rank in [0, 2] {
        let told = &said[rank].lines[0];
        assert!(told.starts_with("barrier, call 1 failed after "), "{told}");
        assert!(told.contains("rank 1 has not come"), "{told}");
        assert!(told.contains(&format!("rank {} is in barrier, call 1", 2 - rank)), "{told}");
    }
}

#[test]
fn a_rank_that_never_asks_for_a_group_is_named() {
    let said = some_ranks("group of some", &[(0, 3), (1, 3), (2, 3)]);
    let told = &said[0].lines[0];
    assert!(told.contains("rank 1: it did not come within 2.0 s"), "{told}");
    assert!(!told.contains("rank 2:"), "{told}");
}

#[test]
fn a_death_reaches_whoever_waits_for_a_ticket() {
    let said = some_ranks("dies in background", &[(0, 3), (1, 3), (2, 3)]);
    for said in &said[..2] {
        let (first, second) = said.lines[0].split_once(" | ").unwrap();
        assert!(first.contains("rank 2"), "{first}");
        assert!(second.starts_with("the group is of no use since"), "{second}");
    }
}

#[test]
fn a_note_that_a_dead_run_left_behind_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let command = |body: &str, rank: usize| {
        let mut command = rank_command(body, folder.path());
        command.env("MANYHANDS_RANK", rank.to_string()).env("MANYHANDS_SIZE", "2");
        command.env("MANYHANDS_RENDEZVOUS", "localhost:1");
        command
    };
    // Rank 0 of an earlier run is killed while it waits.
    let mut earlier = Ranks::start([command("sum", 0)]);
    let start = Instant::now();
    let n_notes = || {
        let folders = std::fs::read_dir(folder.path()).unwrap();
        folders.flat_map(|one| std::fs::read_dir(one.unwrap().path()).unwrap()).count()
    };
    while n_notes() == 0 {
        assert!(start.elapsed() < LONGEST);
        std::thread::sleep(Duration::from_millis(5));
    }
    earlier.0[0].kill().unwrap();
    earlier.0[0].wait().unwrap();
    assert_eq!(n_notes(), 1, "it could not clean up");
    let mut later = Ranks::start([command("sum", 1)]);
    std::thread::sleep(Duration::from_millis(100)); // so that rank 1 finds the old note
    later.0.push(command("sum", 0).spawn().unwrap());
    for said in later.said() {
        assert!(said.lines[0].ends_with("sum 3 2"), "{}", said.all);
    }
}
