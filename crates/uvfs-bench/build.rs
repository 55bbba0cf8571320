//! Compiles the shim to liburcu where its headers are; without them the crate is built without that arm.

use std::path::Path;

/// Headers that the shim includes.
const HEADERS: [&str; 2] = ["urcu/urcu-memb.h", "urcu/rculfhash.h"];

fn main() {
    println!("cargo:rustc-check-cfg=cfg(urcu)");
    println!("cargo:rerun-if-changed=src/arms/urcu/shim.c");
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let multiarch = format!("/usr/include/{target}-linux-gnu");
    let found = ["/usr/include", "/usr/local/include", &multiarch]
        .iter()
        .any(|dir| HEADERS.iter().all(|header| Path::new(dir).join(header).exists()));
    if !found {
        return;
    }
    let compiled = cc::Build::new().file("src/arms/urcu/shim.c").opt_level(2).try_compile("uvfs_bench_urcu");
    match compiled {
        Ok(()) => {
            println!("cargo:rustc-cfg=urcu");
            for library in ["urcu-memb", "urcu-qsbr", "urcu-cds", "urcu-common"] {
                println!("cargo:rustc-link-lib={library}");
            }
        }
        Err(error) => println!("cargo:warning=liburcu's headers are here, but do not compile: {error}"),
    }
}
