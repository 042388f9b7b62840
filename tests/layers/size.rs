//! How long the library is: the lines of code, without comments, blank lines and tests; long functions, and structs with
//! many fields.

use std::{collections::BTreeSet, fmt};

use anyhow::Result;
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{
    ImplItemFn, Item, ItemFn, ItemMod, ItemStruct, TraitItemFn,
    visit::{self, Visit},
};

use super::graph::{attributes, is_test};

/// A function of the client core should have no more lines of code than this.
const LONGEST: usize = 50;
/// A struct of the client core should have no more fields than this.
const WIDEST: usize = 9;

/// The sizes of some files.
#[derive(Debug, Default)]
pub struct Sizes {
    pub lines: usize,
    /// The functions that are too long, with their lines.
    pub long: Vec<String>,
    /// The structs with too many fields, with their number.
    pub wide: Vec<String>,
}

impl Sizes {
    /// Adds a file.
    pub fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let file = syn::parse_file(text)?;
        let mut counted = Counted {
            file: name,
            lines: BTreeSet::new(),
            sizes: self,
        };
        counted.visit_file(&file);
        let items = file.items.into_iter().filter(|it| !is_test(attributes(it)));
        items.for_each(|item| code(without_tests(item).into_token_stream(), &mut counted.lines));
        let lines = counted.lines.len();
        self.lines += lines;
        Ok(())
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} lines of code", self.lines)?;
        writeln!(f, "{} functions over {LONGEST} lines", self.long.len())?;
        writeln!(f, "{} structs over {WIDEST} fields", self.wide.len())
    }
}

struct Counted<'a> {
    file: &'a str,
    lines: BTreeSet<usize>,
    sizes: &'a mut Sizes,
}

impl Counted<'_> {
    fn function(&mut self, name: &dyn fmt::Display, tokens: TokenStream) {
        let mut lines = BTreeSet::new();
        code(tokens, &mut lines);
        if lines.len() > LONGEST {
            let text = format!("{}: {name} has {} lines", self.file, lines.len());
            self.sizes.long.push(text);
        }
    }
}

impl<'ast> Visit<'ast> for Counted<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.sig.ident, item.to_token_stream());
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig.ident, item.to_token_stream());
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.function(&item.sig.ident, item.to_token_stream());
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        let fields = item.fields.len();
        if fields > WIDEST {
            let text = format!("{}: {} has {fields} fields", self.file, item.ident);
            self.sizes.wide.push(text);
        }
    }
}

/// A module without the tests in it. Other items have none.
fn without_tests(mut item: Item) -> Item {
    if let Item::Mod(ItemMod {
        content: Some((_, items)),
        ..
    }) = &mut item
    {
        items.retain(|it| !is_test(attributes(it)));
    }
    item
}

/// The lines of these tokens, without those of comments.
fn code(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(sign) if sign.as_char() == '#' => {
                tokens.next_if(|it| matches!(it, TokenTree::Punct(sign) if sign.as_char() == '!'));
                if tokens.next_if(is_comment).is_none() {
                    mark(sign.span(), lines);
                }
            }
            TokenTree::Group(group) => {
                mark(group.span_open(), lines);
                code(group.stream(), lines);
                mark(group.span_close(), lines);
            }
            token => mark(token.span(), lines),
        }
    }
}

fn mark(span: Span, lines: &mut BTreeSet<usize>) {
    lines.extend(span.start().line..=span.end().line);
}

/// Whether this is the rest of a documentation comment.
fn is_comment(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else {
        return false;
    };
    let first = group.stream().into_iter().next();
    let is_doc = matches!(first, Some(TokenTree::Ident(name)) if name == "doc");
    is_doc && group.delimiter() == Delimiter::Bracket
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_tests_do_not_count() {
        let text = "//! A page.\n\nuse std::fmt;\n\n/// A thing.\n#[derive(Debug)]\npub struct Thing {\n    // Why.\n    field: u8,\n}\n\n#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
        let mut sizes = Sizes::default();
        sizes.add("thing.rs", text).unwrap();
        assert_eq!(sizes.lines, 5);
        let fields = (0..10).map(|n| format!("f{n}: u8, ")).collect::<String>();
        let lines = "    work();\n".repeat(49);
        let text =
            format!("struct Wide {{ {fields} }}\nimpl Wide {{\nfn long() {{\n{lines}}}\n}}\n");
        sizes.add("wide.rs", &text).unwrap();
        assert_eq!(sizes.wide, ["wide.rs: Wide has 10 fields"]);
        assert_eq!(sizes.long, ["wide.rs: long has 51 lines"]);
    }
}
