use proptest::prelude::*;

use super::*;

#[test]
fn bytes_that_are_no_text_are_read_only_when_bytes_are_asked_for() {
    let folder = Folder::new();
    folder.write("t.txt", b"ab\ncd\xff\n");
    let error = folder.error(&one("t.txt"), &How::default());
    assert_eq!(error, "line 2 of t.txt is not valid UTF-8; save the file as UTF-8");
    let options = ReadOptions { bytes: true, ..Default::default() };
    let rows = folder.read(&one("t.txt"), &How { options, ..How::default() }).unwrap();
    assert_eq!(rows.column(0).as_binary::<i32>().value(0), b"ab\ncd\xff\n");
}

proptest! {
    #[test]
    fn chunks_of_text_are_the_text(
        text in "[a-c \n日é🦀]{0,300}",
        block_bytes in 1usize..100,
        n_threads in 1usize..4,
    ) {
        let folder = Folder::new();
        folder.write("t.txt", &text);
        let how = How { block_bytes, n_threads, ..How::default() };
        let rows = folder.read(&one("t.txt"), &how).unwrap();
        let found: String = words(&rows, "text").into_iter().flatten().collect();
        prop_assert_eq!(found, text);
    }
}
