//! The manual pages: written by hand in `contrib/man`, and part of this program, so that a copy of it alone has them.
//!
//! The tests hold pages and program together: options, figures and examples of one are those of the other.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use crate::did_you_mean::nearest;
use crate::print;

/// The page that is printed if none is named.
const FIRST: &str = "uvfs.1";

/// Each page: its file, and its text in mdoc(7).
const PAGES: [(&str, &str); 8] = [
    (FIRST, include_str!("../man/uvfs.1")),
    ("uvfs-find.1", include_str!("../man/uvfs-find.1")),
    ("uvfs-index.1", include_str!("../man/uvfs-index.1")),
    ("uvfs-stat.1", include_str!("../man/uvfs-stat.1")),
    ("uvfs-kernfs.5", include_str!("../man/uvfs-kernfs.5")),
    ("uvfs-mount.8", include_str!("../man/uvfs-mount.8")),
    ("uvfs-remount.8", include_str!("../man/uvfs-remount.8")),
    ("uvfs-umount.8", include_str!("../man/uvfs-umount.8")),
];

/// Further names of pages.
const ALIASES: [(&str, &str); 5] = [
    ("mount.uvfs.8", "uvfs-mount.8"),
    ("uvfs-changed.1", "uvfs-index.1"),
    ("uvfs-git-fsmonitor.1", "uvfs-index.1"),
    ("uvfs-reload.8", "uvfs-remount.8"),
    ("uvfs-watchman.1", "uvfs-index.1"),
];

/// Prints a page. `wanted`: its name, with or without section, or a command.
pub fn print(wanted: Option<&str>) -> Result<()> {
    print::out(text(wanted.unwrap_or(FIRST))?)
}

/// Writes all pages below `dir`, a directory of manual pages such as `/usr/local/share/man`.
pub fn write(dir: &Path) -> Result<()> {
    let aliases = ALIASES.map(|(name, page)| (name, format!(".so man{}/{page}\n", section(page))));
    let aliases = aliases.iter().map(|(name, text)| (*name, text.as_str()));
    for (name, content) in PAGES.into_iter().chain(aliases) {
        let below = dir.join(format!("man{}", section(name)));
        let file = below.join(name);
        // Not `dir` itself: a mistyped one is an error, and may be a page.
        let made = match fs::create_dir(&below) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => fs::write(&file, content),
        };
        if let Some(page) = dir.to_str().filter(|word| !dir.exists() && text(word).is_ok()) {
            bail!("there is no directory {page}; did you mean --page {page}?");
        }
        made.with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The short names of the pages, as `--page` takes them.
pub fn names() -> impl Iterator<Item = &'static str> {
    let all = PAGES.iter().chain(&ALIASES).map(|(name, _)| stem(name));
    all.map(|stem| stem.strip_prefix("uvfs-").unwrap_or(stem))
}

fn text(wanted: &str) -> Result<&'static str> {
    let names = || PAGES.iter().chain(&ALIASES).map(|(name, _)| *name);
    let found = names().find(|name| {
        let stem = stem(name);
        wanted == *name || wanted == stem || Some(wanted) == stem.strip_prefix("uvfs-")
    });
    let found = found.ok_or_else(|| {
        let pages = names().collect::<Vec<_>>().join(", ");
        match nearest(wanted, names().map(|name| stem(name).trim_start_matches("uvfs-"))) {
            Some(meant) => anyhow!("there is no page {wanted:?}; did you mean {meant}? Pages are: {pages}"),
            None => anyhow!("there is no page {wanted:?}; pages are: {pages}"),
        }
    })?;
    let page = ALIASES.iter().find(|(alias, _)| *alias == found).map_or(found, |(_, page)| page);
    let page = PAGES.iter().find(|(name, _)| *name == page);
    page.map(|(_, text)| *text).context("an alias of no page")
}

/// The name without its section.
fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

fn section(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, section)| section)
}

#[cfg(test)]
mod tests;
