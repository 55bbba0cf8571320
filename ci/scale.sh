#!/usr/bin/env bash
# Measures each arm that `uvfs-bench scale` has steps for, with 1, 2, 4, … threads up to all processors, and writes the
# reports, the model's errors and its predictions into one JSON file and one drawing.
#
#   ci/scale.sh DIR
#
# It needs 8 processors and minutes in which nothing else runs. With fewer it says so, and measures all the same.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# = 1 ] || { echo "usage: ci/scale.sh DIR" >&2; exit 2; }
out=$1
mkdir -p "$out"
processors=$(nproc)
[ "$processors" -ge 8 ] || echo "ci/scale.sh: $processors processors; 8 or more show what the model predicts" >&2
threads=1
for ((n = 2; n < processors; n *= 2)); do threads+=,$n; done
[ "$processors" = 1 ] || threads+=,$processors

cargo build --quiet --release -p uvfs-bench
bench="${CARGO_TARGET_DIR:-target}/release/uvfs-bench"
reports=()
measure() {
    "$bench" "$@" --threads "$threads" --format json --out "$out/$1.json"
    reports+=("$out/$1.json")
}
for workload in stat-same open-same; do
    # A longer name than eight bytes shares its line with the count, as will-it-scale's does.
    measure "$workload" --depth 1,6 --name-bytes 18 --arms null,stock,patched,uvfs
done
measure showgids --arms null,stock,hashed,patched,uvfs
measure icache --files 1000000 --phases stat,get,make-end
measure tree --trees "$((processors > 20 ? processors : 20))" --dirs 50 --phases find --arms null,uvfs
"$bench" scale "${reports[@]}" --plot "$out/scale.svg" --out "$out/scale.json"
echo "$out/scale.json, $out/scale.svg"
