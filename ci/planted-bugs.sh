#!/usr/bin/env bash
# Plants one bug at a time in a copy of the tree, and sees whether the test that should find it does.
#
# A bug is an entry of ci/planted-bugs.list: a name that begins with its rule (docs/locking.md), a
# test, and a piece of the source replaced by another one. A test that fails, or that hangs, has
# caught the bug; a tree that does not build has caught nothing, and neither has a replacement that
# fits nowhere (the source has moved on: adapt it). A filter may be given, a part of a name or
# the package: ci/planted-bugs.sh rule5
#
# Ends with a line "N passed, N failed"; the exit code says whether all were caught.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly FILTER="${1:-}" LIMIT="${PLANTED_LIMIT:-120}"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r Cargo.toml Cargo.lock rustfmt.toml clippy.toml crates "$copy"
# The dependencies are those that ci/loom.sh has built; our crates are built often and run briefly.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/loom" CARGO_INCREMENTAL=1
quick=()
for package in uvfs-sync uvfs-cache; do
    quick+=(--config "profile.release.package.$package.opt-level=0" --config "profile.release.package.$package.debug=0")
done
caught=0 missed=0

# test_run KIND PACKAGE TEST: 0 if the test passes, 1 if it fails or hangs, 2 if it does not build.
test_run() {
    local kind=$1 package=$2 test=$3 flags="" profile=()
    local targets=(--lib)
    case $kind in
        loom) flags="--cfg loom" profile=(--release "${quick[@]}") ;;
        test) ;;
        tests/*) targets=(--test "${kind#tests/}") ;;
    esac
    (
        cd "$copy"
        [ -z "$flags" ] || export RUSTFLAGS="$flags"
        cargo test --quiet "${profile[@]}" -p "$package" "${targets[@]}" --no-run >"$copy/log" 2>&1 || exit 2
        timeout --kill-after=5 "$LIMIT" cargo test --quiet "${profile[@]}" -p "$package" "${targets[@]}" -- "$test" >"$copy/log" 2>&1 || exit 1
        grep -q '^test result: ok. [1-9]' "$copy/log" || exit 2
    )
}

# bug NAME KIND PACKAGE TEST FILE OLD NEW: plants it, tests, takes it out again.
bug() {
    local name=$1 kind=$2 package=$3 test=$4 file=$5 old=$6 new=$7 text rest verdict status=0
    [[ "$name $package" == *"$FILTER"* ]] || return 0
    text=$(<"crates/$file")
    rest=${text#*"$old"}
    if [ "$rest" = "$text" ] || [ "${rest#*"$old"}" != "$rest" ]; then
        verdict="NOT CAUGHT: fits not exactly once in crates/$file"
    else
        printf '%s\n' "${text/"$old"/"$new"}" >"$copy/crates/$file"
        test_run "$kind" "$package" "$test" || status=$?
        cp "crates/$file" "$copy/crates/$file"
        case $status in
            0) verdict="NOT CAUGHT" ;;
            1) verdict=caught ;;
            *) verdict="NOT CAUGHT: does not build, or has no test $test"; tail -n 20 "$copy/log" >&2 ;;
        esac
    fi
    if [ "$verdict" = caught ]; then caught=$((caught + 1)); else missed=$((missed + 1)); fi
    printf '%-7s %-52s %s\n' "${name%%-*}" "${name#*-}" "$verdict"
}

# shellcheck disable=SC1091  # the list is read where it stands
. ci/planted-bugs.list

printf '%s passed, %s failed\n' "$caught" "$missed"
[ "$missed" = 0 ]
