# The programs under test, for the scripts beside this one (to be sourced, not run).
#
# After build, $tools is the directory of the programs, $tests the program of the suites, and $target cargo's directory.
# They are the release programs. If UVFS_BUILD is debug, as in ci/test.sh without --full, they are what `cargo test`
# builds, with debug assertions. build_object does so for the scripts of object stores: the command with that feature, the
# example's server ($tools/examples/s3_server), and the suites; if PREBUILT is set, they are there already.
# shellcheck shell=bash disable=SC2034  # tests is for the scripts that source this

target_directory() { cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'; }

build() {
    target=$(target_directory)
    # Each names the packages that others name too, so that nothing is compiled again with other features.
    case ${UVFS_BUILD:-release} in
    debug)
        cargo test --quiet --workspace --lib --bin uvfs --test "*" --no-run || return
        tools=$target/debug
        ;;
    release)
        cargo build --quiet --release -p uvfs-cli -p uvfs-tests || return
        tools=$target/release
        ;;
    *)
        printf 'UVFS_BUILD: debug and release are valid\n' >&2
        return 1
        ;;
    esac
    tests=$tools/uvfs-tests
}

build_object() {
    target=$(target_directory)
    local profile=--release
    tools=$target/release
    [ "${UVFS_BUILD-}" != debug ] || tools=$target/debug profile=
    tests=$tools/uvfs-tests
    [ -z "${PREBUILT-}" ] || return 0
    # shellcheck disable=SC2086  # no word for debug
    cargo build --quiet $profile -p uvfs-cli --features object --bin uvfs -p uvfs-object --example s3_server &&
        cargo build --quiet $profile -p uvfs-tests
}
