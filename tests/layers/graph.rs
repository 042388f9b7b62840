//! Which file of a crate uses which other files. The names in `use` declarations and in written-out paths are followed
//! through re-exports to the file that defines them.
//!
//! What is behind `#[cfg(test)]` is left out, and so is what a macro makes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use syn::{
    Attribute, Item, ItemUse, Path, UseTree,
    visit::{self, Visit},
};

/// The path of a module from the root of the crate, such as `["store", "memory"]`.
type Module = Vec<String>;

/// The files of a crate, by their paths below `src`, with their texts.
pub type Sources = BTreeMap<String, String>;

/// Which file uses which other ones.
pub type Uses = BTreeMap<String, BTreeSet<String>>;

#[derive(Default)]
struct Scope {
    file: String,
    /// The names that are defined here.
    items: BTreeSet<String>,
    /// Whether a macro is called here that may define more names.
    calls_macros: bool,
    children: BTreeSet<String>,
    /// Each imported name, and the path that it stands for.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Each path that is named here.
    named: Vec<Vec<String>>,
}

/// Which file uses which others, and each name that is imported from the root of the crate.
pub struct Graph {
    pub uses: Uses,
    pub from_root: Vec<String>,
}

pub fn of(sources: &Sources) -> Result<Graph> {
    let mut scopes = BTreeMap::new();
    read(sources, "lib.rs", Vec::new(), &mut scopes)?;
    let (mut uses, mut from_root): (Uses, _) = (Uses::new(), Vec::new());
    for (module, scope) in &scopes {
        let used = uses.entry(scope.file.clone()).or_default();
        let imported = scope.imports.values().chain(&scope.globs);
        for path in imported.chain(&scope.named) {
            let Some(absolute) = scope.absolute(module, path)? else {
                continue;
            };
            // A module of `lib.rs` itself belongs to the root too.
            let is_of_root = |first: &String| {
                let module = scopes.get(std::slice::from_ref(first));
                module.is_none_or(|module| module.file == "lib.rs")
            };
            if scope.file != "lib.rs" && absolute.first().is_some_and(is_of_root) {
                let name = absolute.join("::");
                from_root.push(format!("{}: crate::{name}", scope.file));
                continue;
            }
            let target = definition(&scopes, &absolute, 0)
                .with_context(|| format!("{}: {}", scope.file, path.join("::")))?;
            if target != scope.file {
                used.insert(target);
            }
        }
    }
    Ok(Graph { uses, from_root })
}

/// Reads a file, and the modules that it declares.
fn read(
    sources: &Sources,
    file: &str,
    module: Module,
    scopes: &mut BTreeMap<Module, Scope>,
) -> Result<()> {
    let text = sources.get(file).with_context(|| format!("no {file}"))?;
    let items = syn::parse_file(text)
        .with_context(|| file.to_owned())?
        .items;
    read_items(sources, file, module, items, scopes)
}

fn read_items(
    sources: &Sources,
    file: &str,
    module: Module,
    items: Vec<Item>,
    scopes: &mut BTreeMap<Module, Scope>,
) -> Result<()> {
    let mut scope = Scope {
        file: file.to_owned(),
        ..Scope::default()
    };
    for item in items.into_iter().filter(|item| !is_test(attributes(item))) {
        match item {
            Item::Mod(item) => {
                let name = item.ident.to_string();
                let child = [module.clone(), vec![name.clone()]].concat();
                scope.children.insert(name);
                match item.content {
                    Some((_, items)) => read_items(sources, file, child, items, scopes)?,
                    None => read(sources, &file_of(sources, &child)?, child, scopes)?,
                }
            }
            Item::Use(item) => scope.import(&item),
            item => {
                scope.calls_macros |= matches!(&item, Item::Macro(it) if it.ident.is_none());
                scope.items.extend(name(&item));
                scope.visit_item(&item);
            }
        }
    }
    scopes.insert(module, scope);
    Ok(())
}

fn file_of(sources: &Sources, module: &[String]) -> Result<String> {
    let stem = module.join("/");
    let likely = [format!("{stem}.rs"), format!("{stem}/mod.rs")];
    let there = likely.iter().find(|file| sources.contains_key(*file));
    there.cloned().with_context(|| format!("no {}", likely[0]))
}

impl Scope {
    /// The path from the root of the crate; `None` if the path leads out of the crate, or to something that this module
    /// defines.
    fn absolute(&self, module: &[String], path: &[String]) -> Result<Option<Vec<String>>> {
        if let Some(path) = absolute(module, path)? {
            return Ok(Some(path));
        }
        let first = path.first().context("an empty path")?;
        if self.children.contains(first) {
            return Ok(Some([module, path].concat()));
        }
        match self.imports.get(first) {
            // This is a path such as `rules::is_full`, after `use crate::rules`.
            Some(import) if path.len() > 1 && import != path => {
                let base = self.absolute(module, import)?;
                Ok(base.map(|base| [&base[..], &path[1..]].concat()))
            }
            _ => Ok(None),
        }
    }

    fn import(&mut self, item: &ItemUse) {
        if item.leading_colon.is_none() {
            self.import_tree(&item.tree, Vec::new());
        }
    }

    fn import_tree(&mut self, tree: &UseTree, mut path: Vec<String>) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import_tree(&tree.tree, path);
            }
            UseTree::Group(tree) => {
                for tree in &tree.items {
                    self.import_tree(tree, path.clone());
                }
            }
            UseTree::Glob(_) => self.globs.push(path),
            UseTree::Name(tree) if tree.ident == "self" => {
                let name = path.last().cloned().unwrap_or_default();
                self.imports.insert(name, path);
            }
            UseTree::Name(tree) => {
                path.push(tree.ident.to_string());
                self.imports.insert(tree.ident.to_string(), path);
            }
            UseTree::Rename(tree) => {
                path.push(tree.ident.to_string());
                // Several names may be renamed to `_`.
                let name = match tree.rename.to_string() {
                    name if name == "_" => path.join("::"),
                    name => name,
                };
                self.imports.insert(name, path);
            }
        }
    }
}

impl<'a> Visit<'a> for Scope {
    fn visit_path(&mut self, path: &'a Path) {
        let names: Vec<_> = path
            .segments
            .iter()
            .map(|it| it.ident.to_string())
            .collect();
        // The import or the definition of the first name already says what such a path uses, unless that name is a
        // child module.
        if path.leading_colon.is_none() && names.len() > 1 {
            self.named.push(names);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.import(item);
    }
}

/// The path from the root of the crate, for a path that says where it begins.
fn absolute(module: &[String], path: &[String]) -> Result<Option<Vec<String>>> {
    let mut base = match path.first().map(String::as_str) {
        Some("crate") => Vec::new(),
        Some("self" | "super") => module.to_vec(),
        _ => return Ok(None),
    };
    for (number, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" | "self" if number == 0 => {}
            "super" => ensure!(base.pop().is_some(), "{} leads out", path.join("::")),
            _ => base.push(name.clone()),
        }
    }
    Ok(Some(base))
}

/// The file that defines what this path from the root names.
fn definition(scopes: &BTreeMap<Module, Scope>, path: &[String], depth: usize) -> Result<String> {
    ensure!(depth < 32, "{} comes back to itself", path.join("::"));
    let mut module = Module::new();
    for (number, name) in path.iter().enumerate() {
        let scope = scopes.get(&module).context("no such module")?;
        if scope.children.contains(name) {
            module.push(name.clone());
            continue;
        }
        if scope.items.contains(name) {
            return Ok(scope.file.clone());
        }
        let rest = &path[number + 1..];
        if let Some(import) = scope.imports.get(name) {
            let Some(target) = scope.absolute(&module, import)? else {
                bail!("{} is of another crate", path.join("::"));
            };
            return definition(scopes, &[&target[..], rest].concat(), depth + 1);
        }
        for glob in &scope.globs {
            if let Some(target) = scope.absolute(&module, glob)? {
                let path = [&target[..], &path[number..]].concat();
                if let Ok(file) = definition(scopes, &path, depth + 1) {
                    return Ok(file);
                }
            }
        }
        ensure!(scope.calls_macros, "{} is not there", path.join("::"));
        return Ok(scope.file.clone());
    }
    let scope = scopes.get(&module).context("no such module")?;
    Ok(scope.file.clone())
}

fn name(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(it) => it.ident.to_string(),
        Item::Enum(it) => it.ident.to_string(),
        Item::Fn(it) => it.sig.ident.to_string(),
        Item::Macro(it) => it.ident.as_ref()?.to_string(),
        Item::Static(it) => it.ident.to_string(),
        Item::Struct(it) => it.ident.to_string(),
        Item::Trait(it) => it.ident.to_string(),
        Item::TraitAlias(it) => it.ident.to_string(),
        Item::Type(it) => it.ident.to_string(),
        Item::Union(it) => it.ident.to_string(),
        _ => return None,
    })
}

/// The attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// Whether an item exists in tests only.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}
