//! `ext4_compare`: uvfs must read the same from ext2, ext3 and ext4 images as the kernel does.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use uvfs_tests::ext4::populate::Amount;
use uvfs_tests::ext4::recipes::{self, Compared, RECIPES};
use uvfs_tests::ext4::tools::scratch;

/// Makes and fills images of all kinds with mke2fs. Compares the names, attributes, extended attributes, targets
/// and contents that uvfs reads with the source tree, and with the kernel's mount (needs root).
#[derive(Parser)]
struct Args {
    /// Compare these existing images instead.
    images: Vec<PathBuf>,
    /// One kind only.
    #[arg(long)]
    recipe: Option<String>,
    /// Names in the large directory.
    #[arg(long, default_value_t = Amount::USUAL.names)]
    names: usize,
    /// Seed of the files' contents; if it is odd, hashes of names are unsigned.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn report(name: &str, compared: &Compared) -> bool {
    let note = compared
        .without_kernel
        .as_ref()
        .map_or_else(String::new, |why| format!(" (without the kernel: {why})"));
    println!("{name}: {} files, {} differences{note}", compared.files, compared.differences.len());
    compared.differences.iter().for_each(|difference| println!("  {difference}"));
    compared.differences.is_empty()
}

fn run(args: &Args) -> Result<bool> {
    let mut equal = true;
    for image in &args.images {
        let name = image.display().to_string();
        equal &= report(&name, &recipes::compare_image(image).context(name.clone())?);
    }
    if !args.images.is_empty() {
        return Ok(equal);
    }
    let amount = Amount { names: args.names, ..Amount::USUAL };
    let wanted = |name: &str| args.recipe.as_deref().is_none_or(|recipe| recipe == name);
    for recipe in RECIPES.iter().filter(|recipe| wanted(recipe.name)) {
        let dir = scratch()?;
        let compared = recipe.compare(dir.path(), amount, args.seed).context(recipe.name)?;
        equal &= report(recipe.name, &compared);
    }
    Ok(equal)
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(name) = args.recipe.as_deref().filter(|name| recipes::by_name(name).is_none()) {
        let known: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
        eprintln!("there is no recipe {name:?}; there are: {}", known.join(", "));
        return ExitCode::FAILURE;
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
