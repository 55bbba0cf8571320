//! Rust text to tokens, with comments and string contents out of the way.
//!
//! Enough of the lexical grammar to tell code from comments, strings and character literals:
//! nested block comments, raw and byte strings, lifetimes. Not a parser. One pass, linear.

/// An identifier, a keyword, a number, or one character of punctuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its text; a string literal is one `"` token.
    pub text: String,
    /// The contents of a string literal (escapes not undone); empty for all else.
    pub string: String,
    /// Line, from 1.
    pub line: usize,
}

impl Token {
    /// Whether this is an identifier or a keyword.
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// A comment (or the part of one that stands on one line).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Text, with its `//` or `/*`.
    pub text: String,
    /// Line, from 1.
    pub line: usize,
}

/// The result of [`lex`].
#[derive(Clone, Debug, Default)]
pub struct Lexed {
    /// Code, without comments.
    pub tokens: Vec<Token>,
    /// Comments, line by line.
    pub comments: Vec<Comment>,
}

/// Splits `text`.
pub fn lex(text: &str) -> Lexed {
    let mut lexer = Lexer { rest: text, line: 1, out: Lexed::default() };
    while let Some(c) = lexer.rest.chars().next() {
        lexer.next(c);
    }
    lexer.out
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    out: Lexed,
}

impl<'a> Lexer<'a> {
    fn next(&mut self, c: char) {
        let rest = self.rest;
        if c.is_whitespace() {
            self.take(c.len_utf8());
        } else if rest.starts_with("//") {
            self.comment(rest.find('\n').unwrap_or(rest.len()));
        } else if rest.starts_with("/*") {
            self.comment(block_comment_len(rest));
        } else if let Some((prefix, hashes)) = raw_string(rest) {
            self.raw(prefix, hashes);
        } else if let Some(prefix) = quote_prefix(rest) {
            self.string(prefix);
        } else if c == '\'' {
            self.quote();
        } else if c.is_alphanumeric() || c == '_' {
            let raw = if rest.starts_with("r#") { 2 } else { 0 };
            let end = rest[raw..].find(|c: char| !(c.is_alphanumeric() || c == '_'));
            self.push(raw, end.map_or(rest.len(), |e| e + raw));
        } else {
            self.push(0, c.len_utf8());
        }
    }

    fn take(&mut self, len: usize) -> &'a str {
        let (head, tail) = self.rest.split_at(len);
        self.line += head.matches('\n').count();
        self.rest = tail;
        head
    }

    fn push(&mut self, skip: usize, len: usize) {
        let line = self.line;
        let text = self.take(len)[skip..].to_owned();
        self.out.tokens.push(Token { text, string: String::new(), line });
    }

    fn literal(&mut self, line: usize, string: &str) {
        self.out.tokens.push(Token { text: "\"".to_owned(), string: string.to_owned(), line });
    }

    fn comment(&mut self, len: usize) {
        let line = self.line;
        let text = self.take(len);
        let lines = text.split('\n').enumerate();
        self.out.comments.extend(lines.map(|(i, l)| Comment { text: l.to_owned(), line: line + i }));
    }

    fn raw(&mut self, prefix: usize, hashes: usize) {
        let line = self.line;
        self.take(prefix);
        let close = format!("\"{}", "#".repeat(hashes));
        let end = self.rest.find(&close);
        let body = self.take(end.unwrap_or(self.rest.len()));
        self.take(if end.is_some() { close.len() } else { 0 });
        self.literal(line, body);
    }

    fn string(&mut self, prefix: usize) {
        let line = self.line;
        self.take(prefix);
        let mut escaped = false;
        let end = self.rest.find(|c| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        let body = self.take(end.unwrap_or(self.rest.len()));
        self.take(usize::from(end.is_some()));
        self.literal(line, body);
    }

    /// A character literal or a lifetime: `'x'` and `'\…'` are literals, all else is a lifetime.
    fn quote(&mut self) {
        let mut chars = self.rest[1..].chars();
        let first = chars.next();
        if first == Some('\\') {
            let from = 2 + chars.next().map_or(0, char::len_utf8);
            let end =
                self.rest[from.min(self.rest.len())..].find('\'').map_or(self.rest.len(), |e| from + e + 1);
            self.take(end);
        } else if let (Some(c), Some('\'')) = (first, chars.next()) {
            self.take(2 + c.len_utf8());
        } else {
            self.take(1);
            let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            self.take(end.unwrap_or(self.rest.len()));
        }
    }
}

fn block_comment_len(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0usize);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Length of `r##"` with its prefix, and the number of hashes, if a raw string starts here.
fn raw_string(text: &str) -> Option<(usize, usize)> {
    let start = ["r", "br", "cr"]
        .iter()
        .find(|p| text.strip_prefix(**p).is_some_and(|t| t.trim_start_matches('#').starts_with('"')))?;
    let hashes = text[start.len()..].bytes().take_while(|b| *b == b'#').count();
    Some((start.len() + hashes + 1, hashes))
}

/// Length of `"`, `b"` or `c"`, if a string starts here.
fn quote_prefix(text: &str) -> Option<usize> {
    ["\"", "b\"", "c\""].iter().find(|p| text.starts_with(**p)).map(|p| p.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        lex(text).tokens.into_iter().map(|t| t.text).collect()
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        let text = "a /* b /* c */ d */ \"e \\\" f\" r#\"g\"h\"# b'i' 'j' '\\'' &'k l // m\nn";
        assert_eq!(words(text), ["a", "\"", "\"", "b", "&", "l", "n"]);
        assert_eq!(lex(text).tokens.last().map(|t| t.line), Some(2));
        assert_eq!(lex("x\n/* a\n b */").comments[1], Comment { text: " b */".into(), line: 3 });
    }

    #[test]
    fn strings_keep_their_text() {
        assert_eq!(lex(r#"include!("a/b.rs")"#).tokens[3].string, "a/b.rs");
        assert_eq!(words("r#type x"), ["type", "x"]);
    }

    #[test]
    fn ends_anywhere() {
        for text in ["'", "'\\", "\"a", "r#\"a", "/* a", "b\"\\", "'é'", "é"] {
            lex(text);
        }
    }
}
