//! Collectives, sub-groups, tickets and averages among real processes.

use super::*;

#[test]
fn collectives_and_parameters() {
    for said in run_ranks("collectives", 3) {
        let expected = "the ranks have parameters of different number or sizes; links: \
                        shared memory, shared memory";
        assert_eq!(said.lines, [expected]);
    }
}

#[test]
fn overlapping_groups_in_two_threads_at_the_same_time() {
    for said in run_ranks("subgroups", 4) {
        assert_eq!(said.lines, ["done"]);
    }
}

#[test]
fn tickets_are_carried_out_in_order_and_waited_for_in_any() {
    for said in run_ranks("tickets", 3) {
        assert_eq!(said.lines, ["there is no rank 3 among 3"]);
    }
}

#[test]
fn grouped_all_reduces_have_the_bits_of_single_ones() {
    for said in run_ranks("grouped", 3) {
        assert_eq!(said.lines, ["same"]);
    }
}

#[test]
fn ranks_with_less_data_join_in_and_all_end_alike() {
    // Epoch e: "b" averages 1 + 2 + 3; "a" averages ranks 0, 1, 2, then 1, 2, then 2, each plus e.
    let expected_a = (1.0 + 1.5 + 2.0) * 2.0 + 3.0;
    for (rank, said) in run_ranks("uneven", 3).iter().enumerate() {
        let brought: Vec<usize> = (0..2).flat_map(|_| (0..=rank).map(|batch| 3 - batch)).collect();
        assert_eq!(said.lines, [format!("{expected_a} 12 brought {brought:?}")], "rank {rank}");
    }
}

#[test]
fn gradients_may_become_ready_in_any_order() {
    for said in run_ranks("order", 2) {
        assert_eq!(said.lines, ["a 0.5, b 10.5, c 20.5"; 3]);
    }
}

#[test]
fn compressed_averages_are_the_same_everywhere_and_right_in_the_long_run() {
    let said = run_ranks("compressed", 3);
    assert_eq!(said[0].lines.len(), 4);
    assert!(said.iter().all(|one| one.lines == said[0].lines), "{said:?}");
}

#[test]
fn misuse_of_averages_is_named() {
    for said in run_ranks("differ", 2) {
        let expected = [
            "there is no parameter of the name \"c\"",
            "the gradient of \"a\" has 1 elements, not 2",
            "\"b\" has no gradient in this step",
            "\"a\" has two gradients in one step",
            "a step has begun: it must end before this rank joins the others",
            "the ranks average parameters of different names or sizes",
        ];
        assert_eq!(said.lines, [expected.join("; ")]);
    }
}
