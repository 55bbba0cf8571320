#!/usr/bin/env bash
# Mounts over both transports: runs the mount tests over the transport that is not the default here, and ends mounts
# under load over each.
#
#   ci/transports.sh [--full]    --full: 1,000 ends of each kind, with the limits that are promised
#
# Root may switch FUSE over io_uring on (/sys/module/fuse/parameters/enable_uring); it is switched off again afterwards.
# Prints "N passed, N failed, N skipped" at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=ci/programs.sh
. ci/programs.sh
switch=/sys/module/fuse/parameters/enable_uring
passed=0 failed=0 skipped=0
limits=(--rounds 5)
case ${1:-} in
'') ;;
--full) limits=(--rounds 1000 --back 150 --again 100) ;;
*) printf 'usage: %s [--full]\n' "$0" >&2; exit 2 ;;
esac

pass() { printf 'PASS %s\n' "$*"; passed=$((passed + 1)); }
fail() { printf 'FAIL %s\n' "$*"; failed=$((failed + 1)); }
skip() { printf 'skipped: %s\n' "$*"; skipped=$((skipped + 1)); }

was=$(cat "$switch" 2>/dev/null)
if [ "$was" = N ] && [ -w "$switch" ]; then
    trap 'echo N >"$switch"' EXIT
    echo Y >"$switch"
fi
transports=(dev)
other=uring
if [ "$(cat "$switch" 2>/dev/null)" = Y ]; then
    transports+=(uring)
else
    skip "FUSE over io_uring: $switch says no, or is not there (Linux 6.14 has it)"
    other=
fi
# If io_uring was on before, mounts use it by default, and all other tests have used it.
[ "$was" != Y ] || other=dev

if [ -n "$other" ]; then
    # Only the mounts of uvfs-fuse have a transport. The whole workspace is named so that nothing is compiled again with
    # other features.
    program=$(cargo test --quiet --workspace --test mount --no-run --message-format=json |
        sed -n '/uvfs-fuse\/tests\/mount/s/.*"executable":"\([^"]*\)".*/\1/p')
    (cd crates/uvfs-fuse && UVFS_TRANSPORT=$other "$program" --show-output) || failed=$((failed + 1))
fi
build || exit 1
for transport in "${transports[@]}"; do
    said=$(timeout --kill-after=10 7200 "$tests" ends --transport "$transport" "${limits[@]}" 2>&1)
    status=$?
    printf '%s\n' "$said" | grep -v '^PASS\|^skipped:\|^[0-9]* passed, '
    case $status:$said in
    0:*skipped:*) skip "ends over $transport: not root, or no /dev/fuse" ;;
    0:*) pass "ends over $transport" ;;
    *) fail "ends over $transport (status $status)" ;;
    esac
done
printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
