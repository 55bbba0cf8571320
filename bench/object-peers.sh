#!/usr/bin/env bash
# Mounts of an object store beside each other: uvfs, rclone, s3fs and mountpoint-s3, from one server in memory.
#
#   bench/object-peers.sh [--latency MS] [--rounds N] [--tree DIRS/FILES] [--limit SECONDS] [--json FILE] [--only GROUP] [PEER...]
#
# The server is the example s3_server of uvfs-object: it delays each answer by the latency (default 10 ms), and counts
# requests. Each peer runs alone, with a mount of its own for each group of rows, and with the options that its manual
# gives for a store that others do not change. A row that takes longer than the limit (default 300 s) is ended.
# mountpoint-s3 is looked for as mount-s3; $MOUNT_S3 names another place. --json appends a line a row to a file. --only:
# names, sequential, small or write.
#
# Rows: seconds, requests (LIST, HEAD, GET, and those that write), the load average at the end, and for the group the mount's
# highest resident memory in MiB:
#   find, again   GNU find of the tree (default 1,000 prefixes of 100 objects), twice
#   missing       stat of ten names in each prefix that are not there, after the two walks
#   cold missing  the same on a new mount
#   sequential    one object of 1 GiB, with dd bs=1M
#   small         10,000 objects of 4 KiB, by 16 processes of cat
#   write         one object of 1 GiB, with dd bs=1M
#
# Needs root and /dev/fuse. A peer that is not installed is skipped by name.
set -uo pipefail
here=$PWD
cd "$(dirname "$0")/.." || exit 1
latency=10 rounds=1 tree=1000/100 limit=300 json=/dev/null only=
while [ $# -gt 1 ]; do
    case $1 in
    --latency) latency=$2 ;;
    --rounds) rounds=$2 ;;
    --tree) tree=$2 ;;
    --limit) limit=$2 ;;
    --only) only=$2 ;;
    --json) json=$(cd "$here" && realpath -m "$2") ;;
    *) break ;;
    esac
    shift 2
done
peers=("$@")
[ ${#peers[@]} -gt 0 ] || peers=(uvfs rclone s3fs mountpoint-s3)
[ "$(id -u)" = 0 ] && [ -c /dev/fuse ] || { echo "skipped: mounting needs root and /dev/fuse"; exit 0; }

target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
[ -n "${PREBUILT-}" ] || cargo build --quiet --release -p uvfs-cli --features object --bin uvfs -p uvfs-object --example s3_server || exit 1
uvfs=$target/release/uvfs mount_s3=${MOUNT_S3:-mount-s3}
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

requests() { echo >&8 && read -r lists heads gets _ writes <&9; }

# start PEER ro|rw
start() {
    local url=http://127.0.0.1:$port read_only=()
    case $1-$2 in
    rclone-ro | mountpoint-s3-ro) read_only=(--read-only) ;;
    s3fs-ro) read_only=(-o ro) ;;
    esac
    case $1 in
    uvfs) exec "$uvfs" mount -o "endpoint=$url${UVFS_OPTIONS:+,$UVFS_OPTIONS}" object:s3://demo "$dir" ;;
    rclone)
        exec rclone mount :s3:demo "$dir" --config "$work/none" --s3-provider Other --s3-endpoint "$url" \
            --s3-list-version 2 --s3-no-check-bucket --use-server-modtime --no-checksum \
            --dir-cache-time 60s --attr-timeout 60s --cache-dir "$work/cache" "${read_only[@]}"
        ;;
    s3fs)
        exec s3fs demo "$dir" -f -o "url=$url,use_path_request_style,endpoint=us-east-1,enable_noobj_cache,listobjectsv2" \
            -o stat_cache_expire=60,max_stat_cache_size=200000,multireq_max=64,parallel_count=8 "${read_only[@]}"
        ;;
    mountpoint-s3)
        exec "$mount_s3" demo "$dir" --foreground --endpoint-url "$url" --force-path-style --metadata-ttl 60 "${read_only[@]}"
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
    printf '%-14s %-13s %6s MiB\n' "$peer" memory "$memory"
    printf '{"peer":"%s","row":"memory","mib":%s}\n' "$peer" "${memory:-null}" >>"$json"
}

wants() { [ -z "$only" ] || [ "$only" = "$1" ]; }

# row NAME WANTED COMMAND: the command's output is the number of things that it found.
row() {
    local begun ended got seconds load
    requests
    begun=$EPOCHREALTIME
    got=$(timeout "$limit" bash -c "$3")
    ended=$EPOCHREALTIME
    requests
    [ "$got" = "$2" ] || got="$got of $2"
    seconds=$(awk -v a="$begun" -v b="$ended" 'BEGIN { printf "%.2f", b - a }') load=$(cut -d ' ' -f 1 /proc/loadavg)
    printf '%-14s %-13s %9s s %7d LIST %7d HEAD %7d GET %6d writes   load %s   %s\n' "$peer" "$1" "$seconds" \
        "$lists" "$heads" "$gets" "$writes" "$load" "$got"
    printf '{"peer":"%s","row":"%s","seconds":%s,"list":%d,"head":%d,"get":%d,"writes":%d,"load":%s,"found":"%s"}\n' "$peer" "$1" \
        "$seconds" "$lists" "$heads" "$gets" "$writes" "$load" "$got" >>"$json"
}

dirs=${tree%/*} files=${tree#*/}
seq 0 $((dirs - 1)) | awk -v dir="$dir" '{ for (n = 0; n < 10; n++) printf "%s/tree/d%04d/absent%d\n", dir, $1, n }' >"$work/absent"
export dir work
find_all="find '$dir/tree' -type f | wc -l"
stat_absent="xargs -n 500 stat <'$work/absent' 2>&1 >/dev/null | grep -c 'No such file'"
for _ in $(seq "$rounds"); do
    for peer in "${peers[@]}"; do
        program=$peer
        [ "$peer" != mountpoint-s3 ] || program=$mount_s3
        [ "$peer" = uvfs ] || command -v "$program" >/dev/null || { echo "skipped: $peer: not installed"; continue; }
        if wants names && start "$peer" ro; then
            row find $((dirs * files)) "$find_all"
            row again $((dirs * files)) "$find_all"
            row missing $((dirs * 10)) "$stat_absent"
            finish
            start "$peer" ro || continue
            row "cold missing" $((dirs * 10)) "$stat_absent"
            finish
        fi
        if wants sequential && start "$peer" ro; then
            row sequential 1073741824 "dd if='$dir/big' bs=1M status=none | wc -c"
            finish
        fi
        if wants small && start "$peer" ro; then
            row small 40960000 "find '$dir/small' -type f | xargs -n 50 -P 16 cat | wc -c"
            finish
        fi
        if wants write && start "$peer" rw; then
            row write 1073741824 "dd if=/dev/zero of='$dir/written' bs=1M count=1024 status=none && echo 1073741824"
            # Not every mount can remove it at once, and the server keeps it otherwise.
            rm "$dir/written"
            finish
        fi
    done
done
