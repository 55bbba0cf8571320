#!/usr/bin/env bash
# Sets up and runs every test; ends with a line "N passed, N failed, N skipped".
#
# Each step prints a heading, its output, its counts and its time. A failing step does not stop the
# others. A step that cannot run here (no /dev/fuse, no nightly toolchain, a missing program)
# says "skipped: …" and is counted. Steps are commands of their own and can be run alone.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-auto}"

passed=0 failed=0 skipped=0
failures=() reasons=()
logs=$(mktemp -d)
running=
trap '[ -z "$running" ] || kill "$running" 2>/dev/null; rm -rf "$logs"' EXIT

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

# step NAME SECONDS COMMAND…: runs a command with a time limit.
step() {
    local name=$1 limit=$2 start=$SECONDS status=0 log p f s
    shift 2
    log=$(mktemp -p "$logs")
    printf '\n=== %s: %s\n' "$name" "$*"
    # Not through a pipe: a daemon left behind by a failed test would keep it open for ever.
    timeout --kill-after=30 "$limit" "$@" >"$log" 2>&1 </dev/null &
    running=$!
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

ci/setup.sh

step "format" 60 cargo fmt --all --check
step "clippy" 600 cargo clippy --quiet --workspace --all-targets -- -D warnings
step "documentation" 600 env RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --quiet --workspace --no-deps --document-private-items
# Tests that cannot mount say so; --show-output shows that, so that it can be counted.
# Of the programs only `uvfs` has tests of its own. The two tests left out run below in release form: "shared stores", and
# a storm on a mirror in "suites".
step "tests" 900 cargo test --quiet --workspace --lib --bin uvfs --test "*" --no-fail-fast -- --show-output \
    --skip hits_store_nothing_shared --skip a_mirror_shows_changes_that_others_make
step "documentation tests" 300 cargo test --quiet --workspace --no-fail-fast --doc
step "loom" 600 ci/loom.sh
step "ThreadSanitizer" 600 ci/tsan.sh
step "Miri" 600 ci/miri.sh
step "shared stores" 300 ci/shared-stores.sh
step "suites" 900 ci/suites.sh --quick
step "real programs" 900 ci/real-programs.sh
step "transports" 300 ci/transports.sh
if cargo deny --version >/dev/null 2>&1; then
    step "licences and advisories" 120 cargo deny check
else
    skip "licences and advisories" "cargo-deny is not installed (cargo install --locked cargo-deny)"
fi

printf '\n%s s\n' "$SECONDS"
# Printed once more at the end, which survives if the log is cut.
for i in "${!failures[@]}"; do
    printf '\nfailed: %s\n' "${failures[i]}"
    why "${reasons[i]}"
done
printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
