#!/usr/bin/env bash
# Sets up and runs every test; ends with a line "N passed, N failed, N skipped".
#
#   ci/test.sh [--quick | --full]
#
# --quick   the libraries' own tests and the project's rules: minutes, and no mount
# --full    also the release programs, the long forms of tests, models and suites, and ci/planted-bugs.sh: hours
#
# Without --full the suites run what the tests are built as, with debug assertions: nothing is compiled for release.
#
# Each step prints a heading, its output, its counts and its time. A failing step does not stop the
# others. A step that cannot run here (no /dev/fuse, no nightly toolchain, a missing program)
# says "skipped: …" and is counted. Steps are commands of their own and can be run alone.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"
# setup.sh installs programs there.
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
# Backtraces need no more than lines, and nothing is measured: optimising at link time would take longer than it saves.
export CARGO_PROFILE_RELEASE_LTO="${CARGO_PROFILE_RELEASE_LTO:-off}"
export CARGO_PROFILE_RELEASE_CODEGEN_UNITS="${CARGO_PROFILE_RELEASE_CODEGEN_UNITS:-16}"
export CARGO_PROFILE_DEV_DEBUG="${CARGO_PROFILE_DEV_DEBUG:-line-tables-only}"
export CARGO_PROFILE_TEST_DEBUG="${CARGO_PROFILE_TEST_DEBUG:-line-tables-only}"

size=usual short=(--quick) ends=()
# See ci/programs.sh.
export UVFS_BUILD=debug
case ${1:-} in
'')
    echo "Every test in its usual form, built from nothing: about 15 minutes with two processors, and up to 5 more the" \
        "first time, for programs that ci/setup.sh installs. --quick takes 4, --full hours."
    ;;
--quick)
    size=quick
    echo "The libraries' own tests: about 4 minutes with two processors, if nothing is built yet."
    ;;
--full)
    size=full short=() ends=(--full)
    # UVFS_FULL: tests with a short form run their long one.
    export UVFS_BUILD=release UVFS_FULL=1
    echo "Every test in its long form, the release programs, and each planted bug: several hours."
    ;;
*)
    echo "usage: ci/test.sh [--quick | --full]" >&2
    exit 2
    ;;
esac

passed=0 failed=0 skipped=0
failures=() reasons=()
logs=$(mktemp -d)
running=
declare -A early
trap 'for pid in $running "${early[@]}"; do kill "$pid" 2>/dev/null || true; done; rm -rf "$logs"' EXIT

# Prints "passed failed skipped" of a log: the lines of cargo's test harness, and our scripts' closing
# lines. A test that cannot run prints "skipped: …". Its harness either ignores it or, if it has no
# such state, lets it pass; the latter are subtracted from the passed ones here.
counts() {
    awk '
        /^test result: / { for (i = 4; i < NF; i++) { if ($(i+1) == "passed;") p += $i; if ($(i+1) == "failed;") f += $i; if ($(i+1) == "ignored;") s += $i } }
        /^skipped: / { said++ }
        /^([a-z]+: )?[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {
            closed = 1
            for (i = 1; i < NF; i++) { if ($(i+1) == "passed,") p += $i; if ($(i+1) ~ /^failed/) f += $i; if ($(i+1) == "skipped") s += $i }
        }
        END { if (!closed) { extra = said > s ? said - s : 0; if (extra > p) extra = p; p -= extra; s += extra } print p+0, f+0, s+0 }
    ' "$1"
}

# early NAME SECONDS COMMAND…: begins a step that uses processors which the steps before it leave idle.
early() {
    local name=$1 limit=$2
    shift 2
    nice -n 19 timeout --kill-after=30 "$limit" "$@" >"$logs/early $name" 2>&1 </dev/null &
    early[$name]=$!
}

# step NAME SECONDS COMMAND…: runs a command with a time limit (0: none), or ends the early one of that name.
step() {
    local name=$1 limit=$2 start=$SECONDS status=0 log p f s
    shift 2
    printf '\n=== %s: %s\n' "$name" "$*"
    if [ -n "${early[$name]:-}" ]; then
        log="$logs/early $name" running=${early[$name]}
        unset "early[$name]"
    else
        log=$(mktemp -p "$logs")
        # Not through a pipe: a daemon left behind by a failed test would keep it open for ever.
        timeout --kill-after=30 "$limit" "$@" >"$log" 2>&1 </dev/null &
        running=$!
    fi
    tail -n +1 -s 0.2 -f --pid="$running" "$log"
    wait "$running" || status=$?
    running=
    read -r p f s < <(counts "$log")
    if [ "$status" != 0 ]; then
        [ "$f" -gt 0 ] || f=1
        [ "$status" != 124 ] || printf '%s: still running after %s s\n' "$name" "$limit"
        failures+=("$name")
        reasons+=("$log")
    elif [ $((p + f + s)) = 0 ]; then
        p=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf -- '--- %s: passed %s, failed %s, skipped %s; %s s\n' "$name" "$p" "$f" "$s" $((SECONDS - start))
}

# Prints why a step failed, from its log: the output of failed tests and our scripts' FAIL lines; else its last lines.
why() {
    local found
    found=$(awk '
        /^failures:$/ { failed = 1 }
        failed || /^FAIL/ || /^error/ { print }
        /^test result: / { failed = 0 }
    ' "$1" | cut -c1-400 | head -n 80) || true
    if [ -n "$found" ]; then printf '%s\n' "$found"; else tail -n 20 "$1" | cut -c1-400; fi
}

# skip NAME WHY: a step that cannot run here.
skip() {
    printf '\n=== %s\nskipped: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}

finish() {
    printf '\n%s s\n' "$SECONDS"
    # Printed once more at the end, which survives if the log is cut.
    for i in "${!failures[@]}"; do
        printf '\nfailed: %s\n' "${failures[i]}"
        why "${reasons[i]}"
    done
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
    exit
}

if [ $size = quick ]; then
    step "format" 60 cargo fmt --all --check
    libraries=(-p uvfs-tidy -p uvfs-sync -p uvfs-cache -p uvfs)
    step "build" 0 cargo test --quiet "${libraries[@]}" --lib --tests --no-run
    step "tests" 300 cargo test --quiet "${libraries[@]}" --lib --tests --no-fail-fast
    finish
fi

ci/setup.sh

# Nothing is built twice.
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
loom=(ci/loom.sh "${short[@]}") tsan=(ci/tsan.sh) miri=(ci/miri.sh)
early "loom" 4500 "${loom[@]}"
step "format" 60 cargo fmt --all --check
step "clippy" 600 cargo clippy --quiet --workspace --all-targets -- -D warnings
# fuse3 asks for more methods then.
step "clippy, with file locks" 300 cargo clippy --quiet -p uvfs-path --all-targets --features file-lock -- -D warnings
step "documentation" 600 env RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --quiet --workspace --no-deps --document-private-items
early "ThreadSanitizer" 4500 "${tsan[@]}"
early "Miri" 4500 "${miri[@]}"
step "build" 0 cargo test --quiet --workspace --lib --bin uvfs --test "*" --no-run
# Tests that cannot mount say so; --show-output shows that, so that it can be counted.
# Of the programs only `uvfs` has tests of its own. The test left out is the storm on a mirror in "suites".
# Most tests on mounts wait, so the usual form of the next steps on mounts runs beside them.
if [ $size = usual ]; then
    early "suites" 1200 ci/suites.sh "${short[@]}"
    early "suites on a mirror" 600 ci/suites.sh "${short[@]}" --fs mirror --only lockstep
    early "transports" 900 ci/transports.sh
fi
step "tests" $([ $size = full ] && echo 0 || echo 1200) cargo test --quiet --workspace --lib --bin uvfs --test "*" --no-fail-fast -- \
    --show-output --skip a_mirror_shows_changes_that_others_make
step "documentation tests" 300 cargo test --quiet --workspace --no-fail-fast --doc
if [ $size = full ]; then
    # The same packages as in ci/programs.sh, so that nothing is compiled again with other features.
    step "release build" 0 cargo build --quiet --release -p uvfs-cli -p uvfs-tests
    step "shared stores" 300 ci/shared-stores.sh
fi
step "suites" $([ $size = full ] && echo 0 || echo 900) ci/suites.sh "${short[@]}"
step "suites on a mirror" $([ $size = full ] && echo 0 || echo 600) ci/suites.sh "${short[@]}" --fs mirror --only lockstep
step "real programs" 900 ci/real-programs.sh
step "transports" $([ $size = full ] && echo 0 || echo 300) ci/transports.sh "${ends[@]}"
step "loom" 600 "${loom[@]}"
step "ThreadSanitizer" 600 "${tsan[@]}"
step "Miri" 600 "${miri[@]}"
step "release scripts" 60 bash -c 'for script in ci/*.sh contrib/install.sh; do bash -n "$script" || exit; done'
step "packages" 120 cargo publish --dry-run --quiet --workspace --no-verify --allow-dirty
if cargo deny --version >/dev/null 2>&1; then
    step "licences and advisories" 120 cargo deny check
else
    skip "licences and advisories" "cargo-deny is not installed (cargo install --locked cargo-deny)"
fi
[ $size != full ] || step "planted bugs" 0 ci/planted-bugs.sh
finish
