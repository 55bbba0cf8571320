#!/usr/bin/env bash
# Installs what the tests use, as far as it may: Debian packages as root, test suites through cargo.
#
# The build needs only the Rust toolchain and a C linker; without them this fails. Anything else
# missing is named, and tests that need it count as skipped. Changes nothing if everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

# Of uvfs-path, which fuse3 demands; the other crates need 1.88.
readonly MSRV=1.91
# Commands that the tests of real programs, of a mirror's sources and of the manual pages run, and the Debian packages that hold them.
readonly PROGRAMS=(sqlite3:sqlite3 rsync:rsync stress-ng:stress-ng dbench:dbench fs_mark:fsmark setfattr:attr setfacl:acl git:git tar:tar make:make mke2fs:e2fsprogs debugfs:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs mksquashfs:squashfs-tools mkfs.erofs:erofs-utils mandoc:mandoc fusermount3:fuse3)
# File system test suites from crates.io, as command:version.
readonly SUITES=(pjdfstest:0.2.2 fsx:0.3.2)

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

check_rust() {
    has cargo && has rustc || die "Rust is missing: get $MSRV or newer from https://rustup.rs"
    local version
    version=$(rustc --version | awk '{print $2}')
    printf '%s\n%s\n' "$MSRV" "$version" | sort -CV || die "rustc is $version, $MSRV or newer is needed (rustup update stable)"
    cargo fmt --version >/dev/null 2>&1 || die "rustfmt is missing (rustup component add rustfmt)"
    cargo clippy --version >/dev/null 2>&1 || die "clippy is missing (rustup component add clippy)"
    say "rustc $version"
}

install_packages() {
    local entry missing=()
    for entry in "$@"; do
        has "${entry%%:*}" || missing+=("${entry##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" = 0 ] && has apt-get; then
        say "installing ${missing[*]}"
        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "${missing[@]}"; } >/dev/null </dev/null && return 0
        say "apt-get could not install all of: ${missing[*]}"
    else
        say "missing: ${missing[*]} (as root: apt-get install ${missing[*]})"
    fi
    return 1
}

install_suites() {
    local suite name version
    for suite in "${SUITES[@]}"; do
        name=${suite%%:*} version=${suite##*:}
        cargo install --list | grep -q "^$name v$version" && continue
        say "building $name $version"
        # Unoptimised, but without debug assertions. The suites run for seconds.
        CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
            cargo install --quiet --locked "$name@$version" </dev/null ||
            say "$name $version could not be installed: its tests will count as skipped"
    done
}

check_rust
install_packages cc:gcc || die "a C linker is needed"
install_packages "${PROGRAMS[@]}" || say "the tests that use them will count as skipped"
pkg-config --exists fuse3 2>/dev/null || install_packages libfuse3-dev:libfuse3-dev pkg-config:pkg-config ||
    say "the C library's example server will count as skipped"
install_suites
[ -c /dev/fuse ] && [ -w /dev/fuse ] || say "/dev/fuse cannot be used: the tests that mount will count as skipped"
# Users other than root mount through fusermount3.
[ "$(id -u)" = 0 ] || has fusermount3 || say "fusermount3 is missing (package fuse3): the tests that mount will count as skipped"
say "done"
