//! The library is built in layers, which `CONTRIBUTING.md` lists. Folders and files use only what is below them, so
//! there is no circle. No file imports from the root of the crate, which is for applications. And it grows only on purpose:
//! `sizes.txt` has how long it may be.

mod graph;
mod size;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use graph::{Graph, Sources, Uses};
use size::Sizes;

/// The folders of `src/`, from the top.
const LAYERS: [&str; 21] = [
    "lib",
    "guide",
    "testing",
    "address",
    "client",
    "acquire",
    "limiter",
    "lease",
    "key",
    "renewal",
    "release",
    "coalescer",
    "lease_state",
    "store",
    "runtime",
    "telemetry",
    "retry",
    "rules",
    "messages",
    "model",
    "random",
];

/// The layers of the client core: what happens between a call and the requests to the store.
const CORE: [&str; 8] = [
    "acquire",
    "lease",
    "key",
    "renewal",
    "release",
    "coalescer",
    "lease_state",
    "runtime",
];

fn sources(folder: &Path) -> Sources {
    let mut sources = Sources::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below)).unwrap() {
            let path = below.join(entry.unwrap().file_name());
            if folder.join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(folder.join(&path)).unwrap();
                sources.insert(path.to_str().unwrap().to_owned(), text);
            }
        }
    }
    sources
}

/// The layer of a file: its folder, or the file itself if it is in no folder.
fn layer(file: &str) -> &str {
    let folder = file.split('/').next().unwrap_or(file);
    folder.trim_end_matches(".rs")
}

/// The violations of the layers in this graph.
fn faults(graph: &Graph, layers: &[&str]) -> Vec<String> {
    let height = |file| layers.iter().position(|it| *it == layer(file));
    let mut faults: Vec<_> = graph
        .from_root
        .iter()
        .map(|it| format!("from the root: {it}"))
        .collect();
    for (file, used) in &graph.uses {
        if height(file).is_none() {
            faults.push(format!("{file} is of no layer"));
        }
        for used in used {
            if height(file) > height(used) {
                faults.push(format!("upwards: {file} uses {used}"));
            }
        }
    }
    faults.extend(
        circles(&graph.uses)
            .iter()
            .map(|it| format!("a circle: {}", it.join(", "))),
    );
    faults
}

/// The files that use each other, directly or by way of others.
fn circles(uses: &Uses) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&String> = uses[from].iter().collect();
        while let Some(file) = next.pop() {
            if seen.insert(file) {
                next.extend(uses.get(file).into_iter().flatten());
            }
        }
        seen
    };
    let mut circles = BTreeSet::new();
    for file in uses.keys() {
        let seen = reach(file);
        if seen.contains(file) {
            let back = seen.into_iter().filter(|it| reach(it).contains(file));
            circles.insert(back.cloned().collect::<Vec<_>>());
        }
    }
    circles.into_iter().collect()
}

#[test]
fn arrows_point_down() {
    let sources = sources(&leasehold_tests::project().join("src"));
    let graph = graph::of(&sources).unwrap();
    let faults = faults(&graph, &LAYERS);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The files that no module declares, so that they are not compiled.
fn orphans(sources: &Sources) -> Vec<&str> {
    let is_declared = |file: &str| {
        let path = Path::new(file);
        let name = path.file_stem().and_then(|it| it.to_str()).unwrap();
        let folder = path.parent().and_then(Path::to_str).unwrap();
        let above = match folder {
            "" => "lib.rs".to_owned(),
            folder => format!("{folder}.rs"),
        };
        let declaration = format!("mod {name};");
        name == "lib"
            || sources[&above]
                .lines()
                .any(|line| line.ends_with(&declaration))
    };
    let all = sources.keys().map(String::as_str);
    all.filter(|file| !is_declared(file)).collect()
}

#[test]
fn each_file_is_compiled() {
    let mut sources = sources(&leasehold_tests::project().join("src"));
    assert_eq!(orphans(&sources), Vec::<&str>::new());
    sources.insert("key/forgotten.rs".to_owned(), String::new());
    assert_eq!(orphans(&sources), ["key/forgotten.rs"], "the control");
}

/// The sizes of the library and of its client core, as `sizes.txt` has them.
fn sizes() -> (String, Sizes) {
    let sources = sources(&leasehold_tests::project().join("src"));
    let graph = graph::of(&sources).unwrap();
    let (mut library, mut core) = (Sizes::default(), Sizes::default());
    for file in graph.uses.keys() {
        library.add(file, &sources[file]).unwrap();
        if CORE.contains(&layer(file)) {
            core.add(file, &sources[file]).unwrap();
        }
    }
    let text = format!(
        "src: {} lines of code\nthe client core:\n{core}",
        library.lines
    );
    (text, core)
}

/// `scripts/size` prints the sizes, and `scripts/size --write` accepts them.
#[test]
fn sizes_do_not_rise_unnoticed() {
    let kept = leasehold_tests::project().join("tests/layers/sizes.txt");
    let (now, core) = sizes();
    println!("{now}\n{}\n{}", core.long.join("\n"), core.wide.join("\n"));
    if std::env::var_os("LEASEHOLD_WRITE_SIZES").is_some() {
        fs::write(&kept, now).unwrap();
        return;
    }
    let before = fs::read_to_string(&kept).unwrap();
    let numbers = |text: &str| -> Vec<usize> {
        let words = text.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let (least, most) = (numbers(&now), numbers(&before));
    let has_risen = least.iter().zip(&most).any(|(now, before)| now > before);
    assert!(
        least.len() == most.len() && !has_risen,
        "it has grown. If that is on purpose: scripts/size --write\nbefore:\n{before}\nnow:\n{now}"
    );
}

/// The violations in a library of an upper and a lower folder.
fn faults_of(files: &[(&str, &str)]) -> Vec<String> {
    let root = "mod upper; mod lower; pub use crate::upper::Top; pub mod tops { pub use crate::upper::Top; }";
    let root = [("lib.rs", root)];
    let files = root.iter().chain(files);
    let sources = files
        .map(|(file, text)| (file.to_string(), text.to_string()))
        .collect();
    faults(&graph::of(&sources).unwrap(), &["lib", "upper", "lower"])
}

#[test]
fn an_arrow_down_is_none() {
    let upper = ("upper.rs", "mod part; pub use part::Top;");
    let part = (
        "upper/part.rs",
        "use crate::lower::{self, Base}; pub struct Top(Base); fn f() { lower::g() }",
    );
    let lower = (
        "lower.rs",
        "pub struct Base; pub fn g() {} #[cfg(test)] mod tests { use crate::upper::Top; }",
    );
    assert_eq!(faults_of(&[upper, part, lower]), Vec::<String>::new());
}

#[test]
fn an_arrow_upwards_is_found() {
    let upper = ("upper.rs", "mod part; pub use part::Top;");
    let part = ("upper/part.rs", "pub struct Top;");
    for lower in [
        "use crate::upper::Top;",
        "use super::upper::Top as Other;",
        "fn f(_: crate::upper::Top) {}",
        "mod inner { use super::super::upper::*; }",
    ] {
        let lower = ("lower.rs", lower);
        let found = faults_of(&[upper, part, lower]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("upwards: lower.rs uses upper"),
            "{found:?}"
        );
    }
}

#[test]
fn an_import_from_the_root_is_found() {
    for name in ["Top", "tops::Top"] {
        let upper = format!("pub struct Top; struct Other(crate::{name});");
        let found = faults_of(&[("upper.rs", &upper), ("lower.rs", "")]);
        assert_eq!(found, [format!("from the root: upper.rs: crate::{name}")]);
    }
}

#[test]
fn a_circle_is_found() {
    let upper = ("upper.rs", "mod one; mod other; pub use one::Top;");
    let one = (
        "upper/one.rs",
        "use super::other::Other; pub struct Top(Other);",
    );
    let other = (
        "upper/other.rs",
        "use super::one; pub struct Other(Box<one::Top>);",
    );
    let found = faults_of(&[upper, one, other, ("lower.rs", "")]);
    assert_eq!(found, ["a circle: upper/one.rs, upper/other.rs"]);
}
