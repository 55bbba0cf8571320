#!/usr/bin/env bash
# Plants one bug at a time in a copy of the tree, and sees whether the test that should find it does.
#
# A bug is an entry of ci/planted-bugs.list: a name that begins with its rule (docs/locking.md), a
# test, and a piece of the source replaced by another one. A test that fails, or that hangs, has
# caught the bug; a tree that does not build has caught nothing, and neither has a replacement that
# fits nowhere (the source has moved on: adapt it). A test has to pass on the tree as it is, which is
# tried first, once each; one that then takes ten times as long (30 s at least) hangs. A filter may be
# given, a regular expression for a name and its package: ci/planted-bugs.sh rule5
#
# Takes an hour or more for the whole list. PLANTED_JOBS bugs are tried at a time, each in a copy of its
# own; the tree may be changed meanwhile.
# Ends with a line "N passed, N failed"; the exit code says whether all were caught.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly FILTER="${1:-}" JOBS="${PLANTED_JOBS:-1}"
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/planted
readonly work
mkdir -p "$work"
exec 9>"$work/lock"
flock -n 9 || { echo "planted-bugs: already running in $work" >&2; exit 1; }

# Our crates are built often and run briefly; what they depend on is built once.
export CARGO_INCREMENTAL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_TEST_DEBUG=0 CARGO_TERM_COLOR=never
quick=()
for package in uvfs-sync uvfs-cache uvfs; do
    quick+=(--config "profile.release.package.$package.opt-level=1")
done

# The list, by columns.
names=() kinds=() packages=() tests=() files=() olds=() news=()
bug() {
    [[ "$1 $3" =~ $FILTER ]] || return 0
    names+=("$1") kinds+=("$2") packages+=("$3") tests+=("$4") files+=("$5") olds+=("$6") news+=("$7")
}
# shellcheck disable=SC1091  # the list is read where it stands
. ci/planted-bugs.list

# test_run ROOM KIND PACKAGE TEST SECONDS: 0 if the test passes, 1 if it fails, 2 if it does not build or
# is not there, 3 if it hangs.
test_run() {
    local room=$1 kind=$2 package=$3 test=$4 seconds=$5 flags="" profile=() binary
    local targets=(--lib)
    case $kind in
        loom) flags="--cfg loom" profile=(--release "${quick[@]}") ;;
        test) ;;
        tests/*) targets=(--test "${kind#tests/}") ;;
    esac
    (
        cd "$room/tree"
        export CARGO_TARGET_DIR="$room/target"
        [ -z "$flags" ] || export RUSTFLAGS="$flags"
        cargo test --locked "${profile[@]}" -p "$package" "${targets[@]}" --no-run >"$room/log" 2>&1 || exit 2
        binary=$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$room/log")
        cd "crates/$package"
        timeout --kill-after=5 "$seconds" "$binary" "$test" >"$room/log" 2>&1 || case $? in 124 | 137) exit 3 ;; *) exit 1 ;; esac
        grep -q '^test result: ok. [1-9]' "$room/log" || exit 2
    )
}

# How many seconds each test may take, by "KIND PACKAGE TEST"; absent if it does not pass as it is.
declare -A allowed=()

# try_as_it_is ROOM: every test that the list names, on the unchanged tree.
try_as_it_is() {
    local i key start status
    declare -A seen=()
    for i in "${!names[@]}"; do
        key="${kinds[i]} ${packages[i]} ${tests[i]}"
        [ -z "${seen[$key]:-}" ] || continue
        seen[$key]=1 status=0
        # Built first, so that only the run is timed.
        test_run "$1" "${kinds[i]}" "${packages[i]}" none 60 || true
        start=$SECONDS
        test_run "$1" "${kinds[i]}" "${packages[i]}" "${tests[i]}" 600 || status=$?
        if [ "$status" = 0 ]; then
            allowed[$key]=$(((SECONDS - start) * 10 > 30 ? (SECONDS - start) * 10 : 30))
        else
            printf 'as it is: %s: does not pass\n' "$key" >&2
            tail -n 20 "$1/log" >&2
        fi
    done
}

# plant ROOM I: plants the bug, tests, takes it out again; prints the verdict.
plant() {
    local room=$1 i=$2 text rest verdict status=0 start=$SECONDS
    local name=${names[i]} file=crates/${files[i]} old=${olds[i]} new=${news[i]} asis=$work/asis
    local seconds=${allowed["${kinds[i]} ${packages[i]} ${tests[i]}"]:-}
    text=$(<"$asis/$file")
    rest=${text#*"$old"}
    if [ -z "$seconds" ]; then
        verdict="NOT CAUGHT: the test does not pass as it is"
    elif [ "$rest" = "$text" ] || [ "${rest#*"$old"}" != "$rest" ]; then
        verdict="NOT CAUGHT: fits not exactly once in $file"
    else
        printf '%s\n' "${text/"$old"/"$new"}" >"$room/tree/$file"
        test_run "$room" "${kinds[i]}" "${packages[i]}" "${tests[i]}" "$seconds" || status=$?
        cp "$asis/$file" "$room/tree/$file"
        case $status in
            0) verdict="NOT CAUGHT" ;;
            1) verdict=caught ;;
            3) verdict="caught (it hangs)" ;;
            *) verdict="NOT CAUGHT: does not build, or has no test ${tests[i]}"; tail -n 20 "$room/log" >&2 ;;
        esac
    fi
    printf '%-7s %-52s %3s s  %s\n' "${name%%-*}" "${name#*-}" $((SECONDS - start)) "$verdict"
}

# room N: a copy of the tree, beside what was built there before; prints where.
room() {
    mkdir -p "$work/$1/tree"
    rm -rf "$work/$1/tree/crates"
    cp -r "$work/asis/." "$work/$1/tree"
    printf '%s\n' "$work/$1"
}

main() {
    trap '[ -z "$(jobs -p)" ] || kill $(jobs -p)' EXIT
    rm -rf "$work/asis" "$work"/*/verdicts
    mkdir "$work/asis"
    # uvfs-cli/man leads to contrib.
    cp -r Cargo.toml Cargo.lock rustfmt.toml clippy.toml crates contrib "$work/asis"
    try_as_it_is "$(room 0)"
    # Package by package: a change in one has all that use it built again.
    mapfile -t order < <(for i in "${!names[@]}"; do printf '%s %s %s\n' "${packages[i]}" "${kinds[i]}" "$i"; done | sort -k1,2 -s | cut -d' ' -f3)
    for ((job = 0; job < JOBS; job++)); do
        mine=$(room "$job")
        for ((at = job; at < ${#order[@]}; at += JOBS)); do plant "$mine" "${order[at]}"; done | tee "$mine/verdicts" &
    done
    wait

    caught=$(cat "$work"/*/verdicts | grep -c '  caught' || true)
    printf '%s passed, %s failed\n' "$caught" $((${#names[@]} - caught))
    [ "$caught" = ${#names[@]} ]
}

# In one line: nothing more is read from this file, which may have been edited meanwhile.
main; exit
