//! The library as C sees it: the header is current, tests/c/cache.c passes, plain and under sanitizers, and
//! examples/server.c serves a directory.
//!
//! If cbindgen, libfuse or a sanitizer is missing, the test names it and counts as ignored.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = vec![
        Trial::ignorable_test("header_is_current", header_is_current),
        Trial::ignorable_test("installed_library", installed_library),
        Trial::ignorable_test("example_server", example_server),
    ];
    for (compiler, language, standard) in [
        ("cc", "c", "c99"),
        ("cc", "c", "c11"),
        ("cc", "c", "c17"),
        ("cc", "c", "gnu17"),
        ("c++", "c++", "c++11"),
        ("c++", "c++", "gnu++17"),
    ] {
        let name = format!("header_alone_{standard}");
        trials.push(Trial::ignorable_test(name, move || header_alone(compiler, language, standard)));
    }
    for (name, flag) in [
        ("c_plain", None),
        ("c_address_sanitizer", Some("-fsanitize=address")),
        ("c_thread_sanitizer", Some("-fsanitize=thread")),
    ] {
        trials.push(Trial::ignorable_test(name, move || c_test(name, flag)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn skipped(test: &str, reason: impl Into<String>) -> Result<Completion, Failed> {
    let reason = reason.into();
    eprintln!("skipped: {test}: {reason}");
    Ok(Completion::ignored_with(reason))
}

fn run(command: &mut Command) -> Result<Output, Failed> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}\n{}{said}", output.status, String::from_utf8_lossy(&output.stdout)).into())
}

/// The static library, which cargo builds beside this test.
fn library() -> Result<PathBuf, Failed> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let found = exe.ancestors().skip(1).map(|dir| dir.join("libuvfs_capi.a")).find(|path| path.exists());
    found.ok_or_else(|| "cargo has not built libuvfs_capi.a".into())
}

fn header_is_current() -> Result<Completion, Failed> {
    if Command::new("cbindgen").arg("--version").output().is_err() {
        return skipped("header_is_current", "cbindgen is not installed (cargo install cbindgen)");
    }
    let mut command = Command::new("cbindgen");
    let made = run(command.current_dir(here()).args(["--quiet", "--config", "cbindgen.toml", "."]))?;
    let checked_in = std::fs::read(here().join("include/uvfs.h")).map_err(|e| e.to_string())?;
    if made.stdout == checked_in {
        return Ok(Completion::Completed);
    }
    Err("include/uvfs.h is out of date: cd crates/uvfs-capi && cbindgen -c cbindgen.toml -o include/uvfs.h ."
        .into())
}

/// The header is the first that a program includes, and all of its functions are used.
fn header_alone(compiler: &str, language: &str, standard: &str) -> Result<Completion, Failed> {
    let name = format!("header_alone_{standard}");
    if Command::new(compiler).arg("--version").output().is_err() {
        return skipped(&name, format!("{compiler} is not installed"));
    }
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let program = dir.path().join("alone");
    let text = "#include <uvfs.h>\n#include <uvfs.h>\n\
        struct stat there_and_back(const struct stat *st);\n\
        struct stat there_and_back(const struct stat *st)\n\
        { struct uvfs_attr attr = uvfs_attr_of(st); return uvfs_stat_of(&attr); }\n";
    std::fs::write(&program, text).map_err(|e| e.to_string())?;
    let mut command = Command::new(compiler);
    command.args(["-x", language, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]);
    command.arg(format!("-std={standard}")).arg("-I").arg(here().join("include"));
    run(command.arg(&program))?;
    Ok(Completion::Completed)
}

/// Builds tests/c/cache.c with these further arguments, and runs it.
fn build_and_run(dir: &Path, arguments: &[String], variables: &[(&str, &str)]) -> Result<(), Failed> {
    let program = dir.join("cache");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]);
    cc.arg(here().join("tests/c/cache.c")).args(arguments).arg("-o").arg(&program);
    run(&mut cc)?;
    run(Command::new(&program).envs(variables.iter().copied()))?;
    Ok(())
}

fn c_test(name: &str, sanitizer: Option<&str>) -> Result<Completion, Failed> {
    if Command::new("cc").arg("--version").output().is_err() {
        return skipped(name, "no C compiler");
    }
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    if let Some(flag) = sanitizer {
        let probe = dir.path().join("probe.c");
        std::fs::write(&probe, "int main(void) { return 0; }").map_err(|e| e.to_string())?;
        let probed = dir.path().join("probe");
        if run(Command::new("cc").arg(flag).arg(&probe).arg("-o").arg(&probed)).is_err()
            || run(&mut Command::new(&probed)).is_err()
        {
            return skipped(name, format!("cc has no working {flag}"));
        }
    }
    let include = format!("-I{}", here().join("include").display());
    let mut arguments: Vec<String> = sanitizer.map(str::to_owned).into_iter().chain([include]).collect();
    if sanitizer != Some("-fsanitize=thread") {
        arguments.extend([text(&library()?), "-ldl".into(), "-lm".into()]);
        build_and_run(dir.path(), &arguments, &[])?;
        return Ok(Completion::Completed);
    }
    // The library's atomics are not instrumented, so its own calls of malloc and memcpy look unordered. The tool
    // can pass over those of a shared library.
    let lib = install(dir.path())?;
    let suppressions = dir.path().join("suppressions");
    std::fs::write(&suppressions, "called_from_lib:libuvfs.so\n").map_err(|e| e.to_string())?;
    arguments.extend([format!("-L{}", text(&lib)), "-luvfs".into()]);
    let options = format!("suppressions={}", text(&suppressions));
    build_and_run(dir.path(), &arguments, &[("LD_LIBRARY_PATH", &text(&lib)), ("TSAN_OPTIONS", &options)])?;
    Ok(Completion::Completed)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Runs contrib/install-capi.sh; returns the directory of the libraries.
fn install(root: &Path) -> Result<PathBuf, Failed> {
    let script = here().join("../../contrib/install-capi.sh");
    run(Command::new(script).arg("--library").arg(library()?).arg("--root").arg(root))?;
    Ok(root.join("usr/local/lib"))
}

/// The installed library links through pkg-config, and its symbols have a version.
fn installed_library() -> Result<Completion, Failed> {
    for tool in ["cc", "pkg-config", "nm"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skipped("installed_library", format!("{tool} is not installed"));
        }
    }
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let lib = install(dir.path())?;
    let symbols =
        run(Command::new("nm").args(["-D", "--defined-only"]).arg(lib.join("libuvfs.so.0")))?.stdout;
    let symbols = String::from_utf8_lossy(&symbols).into_owned();
    let ours: Vec<_> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    if !ours.contains(&"uvfs_lookup@@UVFS_0.1") {
        return Err(format!("uvfs_lookup has no version:\n{symbols}").into());
    }
    if let Some(other) = ours.iter().find(|name| !name.starts_with("uvfs_") && !name.starts_with("UVFS_")) {
        return Err(format!("{other} is exported").into());
    }
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "uvfs"])
        .env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", dir.path()))?;
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let arguments: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
    build_and_run(dir.path(), &arguments, &[("LD_LIBRARY_PATH", &text(&lib))])?;
    Ok(Completion::Completed)
}

/// The example builds without a warning. It shows the directory that it serves, and ends when it is unmounted.
fn example_server() -> Result<Completion, Failed> {
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "fuse3 >= 3.12"]).output();
    let Some(flags) = flags.ok().filter(|output| output.status.success()) else {
        return skipped(
            "example_server",
            "no libfuse 3.12 or newer (package libfuse3-dev), or no pkg-config",
        );
    };
    let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let program = dir.path().join("server");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread"])
        .arg("-I")
        .arg(here().join("include"));
    cc.arg(here().join("examples/server.c")).args(flags.split_whitespace()).arg(library()?);
    run(cc.args(["-ldl", "-lm", "-o"]).arg(&program))?;
    let [source, mount] = ["source", "mount"].map(|name| dir.path().join(name));
    std::fs::create_dir_all(source.join("sub")).map_err(|e| e.to_string())?;
    std::fs::create_dir(&mount).map_err(|e| e.to_string())?;
    std::fs::write(source.join("sub/file"), "text").map_err(|e| e.to_string())?;
    if std::fs::metadata(&source).map_or(true, |found| found.uid() != 0) || !Path::new("/dev/fuse").exists() {
        return skipped("example_server", "only root mounts it, with /dev/fuse");
    }
    let mut server = Command::new(&program)
        .args([&source, &mount])
        .arg("64")
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let seen = served(&mut server, &mount);
    // A server that never mounted has ended, or is ended here.
    let unmounted = run(Command::new("umount").arg(&mount));
    if unmounted.is_err() {
        let _ = server.kill();
    }
    let status = server.wait().map_err(|e| e.to_string())?;
    seen?;
    unmounted?;
    if status.success() {
        Ok(Completion::Completed)
    } else {
        Err(format!("the server ended with {status}").into())
    }
}

/// Waits until the server says that it is mounted, and looks at its names. A server that ends instead closes its output.
fn served(server: &mut Child, mount: &Path) -> Result<(), Failed> {
    let mut said = String::new();
    let output = server.stdout.take().ok_or("no output")?;
    BufReader::new(output).read_line(&mut said).map_err(|e| e.to_string())?;
    if !said.ends_with("is mounted\n") {
        return Err(format!("the server ended before it was mounted, and said {said:?}").into());
    }
    let sub = mount.join("sub");
    let names: Vec<_> = std::fs::read_dir(&sub)
        .and_then(|names| names.map(|name| Ok(name?.file_name())).collect())
        .map_err(|e: std::io::Error| e.to_string())?;
    if !names.iter().any(|name| name == "file") {
        return Err(format!("sub shows {names:?}").into());
    }
    let file = std::fs::metadata(sub.join("file")).map_err(|e| e.to_string())?;
    let none = std::fs::metadata(sub.join("none")).map_err(|e| e.kind());
    if (file.len(), none.err()) != (4, Some(std::io::ErrorKind::NotFound)) {
        return Err("the names' attributes differ from the source's".into());
    }
    Ok(())
}
