//! The paths that a source names: `use` trees written out, and paths in expressions and types.
//!
//! A path is the list of its segments from the left; a rename (`as`) and a glob add nothing.

use crate::lex::Token;

/// A path and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Segments.
    pub segments: Vec<String>,
    /// Line, from 1.
    pub line: usize,
    /// Whether it stands in a `use` (where a single segment is a path too).
    pub import: bool,
}

impl Named {
    /// Whether the path begins with these segments.
    pub fn starts_with(&self, head: &[&str]) -> bool {
        self.segments.len() >= head.len() && self.segments.iter().zip(head).all(|(a, b)| a == b)
    }
}

/// All paths of two or more segments, and all imports.
pub fn named(tokens: &[Token]) -> Vec<Named> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "use" && tokens.get(at + 1).is_some_and(|t| t.text != "<") {
            at = use_tree(tokens, at + 1, &mut Vec::new(), &mut out);
        } else if tokens[at].text == "crate" && at > 0 && tokens[at - 1].text == "extern" {
            out.extend(tokens.get(at + 1).map(|t| path_of(&[t], true)));
            at += 2;
        } else if tokens[at].is_word() {
            let mut segments = vec![&tokens[at]];
            while colons(tokens, at + 1) && tokens.get(at + 3).is_some_and(Token::is_word) {
                at += 3;
                segments.push(&tokens[at]);
            }
            if segments.len() > 1 {
                out.push(path_of(&segments, false));
            }
            at += 1;
        } else {
            at += 1;
        }
    }
    out
}

fn path_of(tokens: &[&Token], import: bool) -> Named {
    let segments = tokens.iter().map(|t| t.text.clone()).collect();
    Named { segments, line: tokens[0].line, import }
}

fn colons(tokens: &[Token], at: usize) -> bool {
    tokens.get(at).is_some_and(|t| t.text == ":") && tokens.get(at + 1).is_some_and(|t| t.text == ":")
}

/// One branch of a `use` tree; returns where it ends (at `,`, `}`, `;` or the end).
fn use_tree<'a>(
    tokens: &'a [Token],
    mut at: usize,
    prefix: &mut Vec<&'a Token>,
    out: &mut Vec<Named>,
) -> usize {
    let depth = prefix.len();
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|t| t.text != "}") {
                    at = use_tree(tokens, at, prefix, out);
                    at += usize::from(tokens.get(at).is_some_and(|t| t.text == ","));
                }
                prefix.truncate(depth);
                return at + 1;
            }
            "as" => at += 2,
            "," | "}" | ";" => break,
            _ => {
                if token.is_word() {
                    prefix.push(token);
                }
                at += 1;
            }
        }
    }
    if !prefix.is_empty() {
        out.push(path_of(prefix, true));
    }
    prefix.truncate(depth);
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lex::lex;

    fn all(text: &str) -> Vec<String> {
        named(&lex(text).tokens).into_iter().map(|n| n.segments.join("::")).collect()
    }

    #[test]
    fn use_trees_are_written_out() {
        let text = "use a::{b::{c, d as e}, f::*, self}; use ::g; extern crate h; pub use crate::i::j as k;";
        assert_eq!(all(text), ["a::b::c", "a::b::d", "a::f", "a::self", "g", "h", "crate::i::j"]);
    }

    #[test]
    fn paths_in_code() {
        assert_eq!(all("fn f(x: a::B) -> Vec<u8> { c::d::<e::F>(g) }"), ["a::B", "c::d", "e::F"]);
        assert_eq!(all("fn f() -> impl Fn() + use<'a> { x }"), Vec::<String>::new());
    }

    #[test]
    fn ends_anywhere() {
        for text in ["use", "use a::{", "use a::{b", "use a as", "a::"] {
            all(text);
        }
    }
}
