//! The statements of `docs/protocol/`, as a program in another language would take them from there.

/// The statements of one kind, by their names, in the order of the document.
pub fn statements(document: &str, kind: &str) -> Vec<(String, String)> {
    let mark = format!("<!-- statement: {kind} ");
    let blocks = document.split(&mark).skip(1);
    let statements = blocks.map(|block| {
        let (name, rest) = block.split_once(" -->\n```").unwrap();
        let (_language, rest) = rest.split_once('\n').unwrap();
        let (text, _) = rest.split_once("\n```\n").unwrap();
        (name.to_owned(), text.to_owned())
    });
    statements.collect()
}
