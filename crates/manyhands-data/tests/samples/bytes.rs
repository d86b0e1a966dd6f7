//! A libsvm file, changed by chance: no panic. The body is that of the fuzz target (`fuzz/`).

#[path = "../../../../fuzz/bodies/libsvm.rs"]
mod libsvm;
#[path = "../../../../fuzz/bodies/mutations.rs"]
mod mutations;

use mutations::{Chance, mutated};

#[test]
fn changed_lines_of_libsvm_files_are_errors_and_no_panics() {
    let seeds = libsvm::seeds();
    let n_rows = seeds.iter().map(|seed| manyhands_data::parse_libsvm(&seed[1..], None).unwrap());
    assert_eq!(n_rows.collect::<Vec<_>>(), [3, 3, 2, 2, 2, 2]);
    for number in 0..20_000 {
        libsvm::body(&mutated(&seeds, &mut Chance::new(number)));
    }
}
