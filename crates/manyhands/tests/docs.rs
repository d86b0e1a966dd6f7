//! The pages of docs/ say what the parser and the catalogs say. `UPDATE_EXPECT=1` rewrites them.

use expect_test::expect_file;
use manyhands::{Job, Registry, docs};

#[test]
fn the_page_of_the_job_is_up_to_date() {
    expect_file!["../../../docs/job.md"].assert_eq(&docs::job_page(&Registry::default()));
}

#[test]
fn the_schema_of_the_job_is_up_to_date() {
    let schema = serde_json::to_string_pretty(&Job::schema()).unwrap();
    expect_file!["../../../docs/job.schema.json"].assert_eq(&format!("{schema}\n"));
}

/// Every entry that a job can name says what it is, and every setting what it does.
#[test]
fn everything_in_the_catalogs_is_documented() {
    fn check<T: ?Sized + 'static>(catalog: &manyhands::catalog::Catalog<T>) {
        assert!(!catalog.entries().is_empty());
        for entry in catalog.entries() {
            assert!(!entry.about().is_empty(), "{}", entry.name());
            for setting in entry.settings() {
                assert!(!setting.about.is_empty(), "{} of {}", setting.name, entry.name());
            }
        }
    }
    let Registry { layers, losses, metrics, optimizers, schedules } = Registry::default();
    check(&layers);
    check(&losses);
    check(&metrics);
    check(&optimizers);
    check(&schedules);
}
