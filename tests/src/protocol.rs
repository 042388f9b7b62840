//! The statements in `docs/protocol/`, as a program in another language would take them from there.

use diffy::Patch;

/// The statements of one kind with their names, in the order of the document.
pub fn statements(document: &str, kind: &str) -> Vec<(String, String)> {
    let mark = format!("<!-- statement: {kind} ");
    let blocks = document.split(&mark).skip(1);
    let mut statements = Vec::new();
    for block in blocks {
        let (name, rest) = block.split_once(" -->\n```").unwrap();
        let (language, rest) = rest.split_once('\n').unwrap();
        let (text, _) = rest.split_once("\n```\n").unwrap();
        let text = match language {
            "diff" => patched(&statements, text),
            _ => text.to_owned(),
        };
        statements.push((name.to_owned(), text));
    }
    statements
}

/// The statement that a patch makes. The first line of the patch names the statement that it is
/// for.
fn patched(before: &[(String, String)], patch: &str) -> String {
    let patch = format!("{patch}\n");
    let patch = Patch::from_str(&patch).unwrap();
    let like = patch.original().unwrap();
    let (_, like) = before.iter().find(|(name, _)| name == like).unwrap();
    let text = diffy::apply(&format!("{like}\n"), &patch).unwrap();
    text.trim_end().to_owned()
}
