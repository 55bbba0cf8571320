#!/usr/bin/env bash
# ThreadSanitizer over the library tests of the crates that hold lock-free code.
#
# With the nightly toolchain's rust-src the standard library is built with the sanitizer too. Without it
# the prebuilt one is linked, and the sanitizer does not see std's own code. Then std's mutexes,
# condition variables, lazy cells and the end of a scope give no order and would be reported although
# they are right. The libraries take their locks from parking_lot, which is compiled here and is visible.
# std's internal reports are suppressed (ci/tsan.supp, and ci/tsan-prebuilt.supp where it is not seen).
# The tests that run here join their threads by handle before they read what the threads wrote. Either
# way a planted race must be found first.
#
# ThreadSanitizer does not model a seqlock's fences: the loom tests cover those.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { printf 'skipped: ThreadSanitizer: %s\n0 passed, 0 failed, 1 skipped\n' "$*"; exit 0; }

host=$(rustc -vV | sed -n 's/^host: //p')
case $host in
    x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) ;;
    *) skip "not supported on $host" ;;
esac
cargo +nightly --version >/dev/null 2>&1 || skip "no nightly toolchain (rustup toolchain install nightly)"
sysroot=$(rustc +nightly --print sysroot)

flags="-Zsanitizer=thread -Cdebuginfo=1"
build_std=()
if [ -e "$sysroot/lib/rustlib/src/rust/library/Cargo.lock" ]; then
    build_std=(-Zbuild-std)
    echo "standard library: built with the sanitizer"
else
    flags+=" -Cunsafe-allow-abi-mismatch=sanitizer"
    echo "standard library: prebuilt, not seen by the sanitizer (rustup component add rust-src --toolchain nightly)"
fi
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
suppressions=(ci/tsan.supp)
[ ${#build_std[@]} != 0 ] || suppressions+=(ci/tsan-prebuilt.supp)
cat "${suppressions[@]}" >"$planted/suppressions"
export TSAN_OPTIONS="suppressions=$planted/suppressions halt_on_error=0 exitcode=66"

# Some address space layouts have more random bits than the runtime knows, so turn randomisation off.
run=()
if setarch -R true 2>/dev/null; then run=(setarch -R); fi

cat >"$planted/race.rs" <<'RUST'
static mut COUNT: u64 = 0;
fn main() {
    let add = || (0..1000).for_each(|_| unsafe { *(&raw mut COUNT) += 1 });
    let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(add)).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}
RUST
# shellcheck disable=SC2086  # flags is a list of words
rustc +nightly --edition 2024 $flags -Cunsafe-allow-abi-mismatch=sanitizer -o "$planted/race" "$planted/race.rs" 2>"$planted/log" ||
    skip "the nightly toolchain cannot build with it: $(grep -m1 ^error "$planted/log")"
if "${run[@]}" "$planted/race" 2>"$planted/log"; then
    echo "a planted race was not found" >&2
    exit 1
fi
grep -q 'data race' "$planted/log" || skip "the runtime does not start here: $(head -1 "$planted/log")"
echo "a planted race was found"

export RUSTFLAGS="$flags" RUSTDOCFLAGS="$flags"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/tsan"
# Fewer rounds: every access costs about ten times as much.
export PROPTEST_CASES="${PROPTEST_CASES:-16}"
# The system's resident size includes the sanitizer's shadow memory.
"${run[@]}" cargo +nightly test --quiet "${build_std[@]}" --target "$host" -p uvfs-sync -p uvfs-cache --lib "$@" -- \
    --skip committed_bytes_match_the_system
