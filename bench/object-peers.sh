#!/usr/bin/env bash
# Mounts of an object store beside each other: uvfs, rclone, s3fs and mountpoint-s3, from one server in memory.
#
#   bench/object-peers.sh [--latency MS] [--rounds N] [--tree DIRS/FILES] [--limit SECONDS] [PEER...]
#
# The server is the example s3_server of uvfs-object: it delays each answer by the latency (default 10 ms), and counts
# requests. Each peer runs alone, with a mount of its own for each group of rows, and with the options that its manual
# gives for a store that others do not change. A row that takes longer than the limit (default 300 s) is ended.
#
# Rows: seconds, requests (LIST, HEAD, GET), and for the group the server's highest resident memory in MiB:
#   find, again   GNU find of the tree (default 1,000 prefixes of 100 objects), twice
#   missing       stat of ten names in each prefix that are not there, after the two walks
#   cold missing  the same on a new mount
#   sequential    one object of 1 GiB, with dd bs=1M
#   small         10,000 objects of 4 KiB, by 16 processes of cat
#
# Needs root and /dev/fuse. A peer that is not installed is skipped by name.
set -uo pipefail
cd "$(dirname "$0")/.."
latency=10 rounds=1 tree=1000/100 limit=300
while [ $# -gt 1 ]; do
    case $1 in
    --latency) latency=$2 ;;
    --rounds) rounds=$2 ;;
    --tree) tree=$2 ;;
    --limit) limit=$2 ;;
    *) break ;;
    esac
    shift 2
done
peers=("$@")
[ ${#peers[@]} -gt 0 ] || peers=(uvfs rclone s3fs mountpoint-s3)
[ "$(id -u)" = 0 ] && [ -c /dev/fuse ] || { echo "skipped: mounting needs root and /dev/fuse"; exit 0; }

target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
[ -n "${PREBUILT-}" ] || cargo build --quiet --release -p uvfs-cli --features object --bin uvfs -p uvfs-object --example s3_server || exit 1
uvfs=$target/release/uvfs
work=$(mktemp -d) port=$((20000 + $$ % 10000))
dir=$work/mnt
mkdir "$dir" "$work/cache"
export AWS_ACCESS_KEY_ID=test-key-id AWS_SECRET_ACCESS_KEY=test-secret-that-nobody-may-see AWS_REGION=us-east-1
# A bundle of the environment keeps rclone from mounting.
unset AWS_CA_BUNDLE
export RCLONE_S3_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID RCLONE_S3_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY
export AWSACCESSKEYID=$AWS_ACCESS_KEY_ID AWSSECRETACCESSKEY=$AWS_SECRET_ACCESS_KEY AWS_EC2_METADATA_DISABLED=true

server=
# The whole gigabyte is in the server's memory.
mkfifo "$work/ask" "$work/said"
"$target/release/examples/s3_server" '' "$port" --tree "$tree" --file big=1073741824 --files small=10000/4096 \
    --latency "$latency" --counts <"$work/ask" >"$work/said" &
server=$!
exec 8>"$work/ask" 9<"$work/said"
trap 'umount -l "$dir" 2>/dev/null; kill $server ${mounted:-} 2>/dev/null; rm -rf --one-file-system "$work"' EXIT
read -r _ <&9 && read -r _ <&9 || { echo "the server does not start" >&2; exit 1; }

requests() { echo >&8 && read -r lists heads gets bytes <&9; }

start() {
    local url=http://127.0.0.1:$port
    case $1 in
    uvfs) exec "$uvfs" mount -o "endpoint=$url${UVFS_OPTIONS:+,$UVFS_OPTIONS}" object:s3://demo "$dir" ;;
    rclone)
        exec rclone mount :s3:demo "$dir" --config "$work/none" --s3-provider Other --s3-endpoint "$url" \
            --s3-list-version 2 --s3-no-check-bucket --read-only --use-server-modtime --no-checksum \
            --dir-cache-time 60s --attr-timeout 60s --cache-dir "$work/cache"
        ;;
    s3fs)
        exec s3fs demo "$dir" -f -o "url=$url,use_path_request_style,endpoint=us-east-1,ro,enable_noobj_cache,listobjectsv2" \
            -o stat_cache_expire=60,max_stat_cache_size=200000,multireq_max=64,parallel_count=8
        ;;
    mountpoint-s3)
        exec mount-s3 demo "$dir" --foreground --endpoint-url "$url" --force-path-style --read-only --metadata-ttl 60
        ;;
    esac >"$work/log" 2>&1 &
    mounted=$!
    for _ in $(seq 200); do
        ! mountpoint -q "$dir" || return 0
        kill -0 "$mounted" 2>/dev/null || break
        sleep 0.05
    done
    echo "skipped: $1: it does not mount: $(tail -n 1 "$work/log" | cut -c 1-200)"
    return 1
}

finish() {
    memory=$(awk '/VmHWM/ { printf "%.0f", $2 / 1024 }' "/proc/$mounted/status" 2>/dev/null)
    umount "$dir" 2>/dev/null || umount -l "$dir"
    for _ in $(seq 100); do
        kill -0 "$mounted" 2>/dev/null || break
        sleep 0.05
    done
    kill "$mounted" 2>/dev/null
    wait "$mounted" 2>/dev/null
    printf '%-14s %-13s %45s %6s MiB\n' "$peer" memory '' "$memory"
}

# row NAME WANTED COMMAND: the command's output is the number of things that it found.
row() {
    local begun ended got
    requests
    begun=$EPOCHREALTIME
    got=$(timeout "$limit" bash -c "$3")
    ended=$EPOCHREALTIME
    requests
    [ "$got" = "$2" ] || got="$got of $2"
    printf '%-14s %-13s %9.2f s %7d LIST %7d HEAD %7d GET   %s\n' "$peer" "$1" \
        "$(awk -v a="$begun" -v b="$ended" 'BEGIN { print b - a }')" "$lists" "$heads" "$gets" "$got"
}

dirs=${tree%/*} files=${tree#*/}
seq 0 $((dirs - 1)) | awk -v dir="$dir" '{ for (n = 0; n < 10; n++) printf "%s/tree/d%04d/absent%d\n", dir, $1, n }' >"$work/absent"
export dir work
find_all="find '$dir/tree' -type f | wc -l"
stat_absent="xargs -n 500 stat <'$work/absent' 2>&1 >/dev/null | grep -c 'No such file'"
for round in $(seq "$rounds"); do
    for peer in "${peers[@]}"; do
        program=$peer
        [ "$peer" != mountpoint-s3 ] || program=mount-s3
        [ "$peer" = uvfs ] || command -v "$program" >/dev/null || { echo "skipped: $peer: not installed"; continue; }
        start "$peer" || continue
        row find $((dirs * files)) "$find_all"
        row again $((dirs * files)) "$find_all"
        row missing $((dirs * 10)) "$stat_absent"
        finish
        start "$peer" || continue
        row "cold missing" $((dirs * 10)) "$stat_absent"
        finish
        start "$peer" || continue
        row sequential 1073741824 "dd if='$dir/big' bs=1M status=none | wc -c"
        finish
        start "$peer" || continue
        row small 40960000 "find '$dir/small' -type f | xargs -n 50 -P 16 cat | wc -c"
        finish
    done
done
