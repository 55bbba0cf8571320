#!/usr/bin/env bash
# Mounts of a real S3 cluster: four MinIO nodes with erasure coding, each a machine of its own on this one.
#
#   ci/object-cluster.sh [--keys N] [--stop SECONDS] [--minio PROGRAM]
#
# --keys N       keys of the directory that is listed (default 12000)
# --stop SECONDS how long a node is stopped (default 60)
# --minio FILE   the server; without it `minio` of PATH, else Go builds it once from the public module, in
#                ${XDG_CACHE_HOME:-~/.cache}/uvfs-minio
#
# Four nodes and three clients have a network namespace each, on one bridge. Client N mounts the bucket from node N. A node
# that is killed or stopped therefore costs one client its server, and the others a quarter of the disks.
#
# Needs root, /dev/fuse, iproute2 and curl 7.75 or newer. Prints PASS, FAIL or SKIPPED for each part, and
# "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.."
keys=12000 stop=60 minio=$(command -v minio || true)
while [ $# -gt 1 ]; do
    case $1 in
    --keys) keys=$2 ;;
    --stop) stop=$2 ;;
    --minio) minio=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ $# = 0 ] || { printf 'usage: %s [--keys N] [--stop SECONDS] [--minio PROGRAM]\n' "$0" >&2; exit 2; }
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
readonly MODULE=github.com/minio/minio VERSION=v0.0.0-20260212201848-7aac2a2c5b7c
export AWS_ACCESS_KEY_ID=uvfs-cluster-id AWS_SECRET_ACCESS_KEY=uvfs-cluster-secret-nobody-may-see AWS_REGION=us-east-1
export AWS_EC2_METADATA_DISABLED=true
unset AWS_SESSION_TOKEN AWS_PROFILE AWS_ENDPOINT_URL
# Other scripts' namespaces are not ours.
net=uo$$ subnet=10.$((200 + $$ % 50)).$(($$ / 50 % 250)) nodes=(1 2 3 4) clients=(1 2 3)

for tool in ip curl sha256sum; do
    has "$tool" || give_up "$tool is missing"
done
[ "$(id -u)" = 0 ] || give_up "mounting needs root"
[ -c /dev/fuse ] || give_up "there is no /dev/fuse"

# The server has replace directives in its module in some versions, so it is built as the main module.
build_minio() {
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/uvfs-minio source
    minio=$cache/minio-$VERSION
    [ ! -x "$minio" ] || return 0
    has go || return
    mkdir -p "$cache"
    source=$(cd "$cache" && go mod download -json "$MODULE@$VERSION" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    [ -n "$source" ] || return
    cp -r --no-preserve=mode "$source" "$work/minio-source" || return
    (cd "$work/minio-source" && go build -trimpath -o "$minio" .)
}
if [ ! -x "$minio" ]; then
    build_minio >"$work/minio-build" 2>&1 ||
        give_up "no minio, and it cannot be built: $(tail -n 1 "$work/minio-build")"
fi
# Not ci/programs.sh: object stores are a feature of the command.
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
cargo build --quiet --release -p uvfs-cli --features object || exit 1
uvfs=$target/release/uvfs

declare -A pid=()
take_down() {
    local status=$? n
    for n in "${clients[@]}"; do umount --lazy "$work/m$n" 2>/dev/null; done
    for n in "${!pid[@]}"; do kill -CONT "${pid[$n]}" 2>/dev/null; kill -KILL "${pid[$n]}" 2>/dev/null; done
    for n in "${nodes[@]}"; do
        ip netns del "$net-n$n" 2>/dev/null
    done
    for n in "${clients[@]}"; do ip netns del "$net-c$n" 2>/dev/null; done
    ip link del "$net" 2>/dev/null
    (exit "$status")
    clean_up
}
trap take_down EXIT

# machine NAME ADDRESS: a network namespace on the bridge.
machine() {
    ip netns add "$net-$1" && ip link add "$net$1" type veth peer name eth0 netns "$net-$1" &&
        ip link set "$net$1" master "$net" up && ip -n "$net-$1" address add "$subnet.$2/24" dev eth0 &&
        ip -n "$net-$1" link set eth0 up && ip -n "$net-$1" link set lo up
}
{ ip link add "$net" type bridge && ip address add "$subnet.1/24" dev "$net" && ip link set "$net" up; } 2>"$work/net" ||
    give_up "no bridge: $(head -n 1 "$work/net")"
for n in "${nodes[@]}"; do machine "n$n" "$((10 + n))" 2>"$work/net" || give_up "no network namespace: $(head -n 1 "$work/net")"; done
for n in "${clients[@]}"; do machine "c$n" "$((20 + n))" || exit 1; done


disks=()
for n in "${nodes[@]}"; do
    mkdir -p "$work/disk$n"
    disks+=("http://$subnet.$((10 + n)):9000$work/disk$n")
done

# Drives may lie on the system's disk: MinIO's variable for tests.
start_node() {
    MINIO_CI_CD=1 MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_BROWSER=off \
        ip netns exec "$net-n$1" "$minio" server --quiet --address "$subnet.$((10 + $1)):9000" "${disks[@]}" \
        >>"$work/node$1" 2>&1 &
    pid[$1]=$!
}

url() { echo "http://$subnet.$((10 + $1)):9000"; }

# s3 NODE KEY [OPTIONS]: one signed request. The secret is in no argument: `ps` shows those.
s3() {
    local node=$1 key=$2
    shift 2
    printf 'user = "%s:%s"\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" |
        curl --silent --show-error --fail --max-time 60 -K - --aws-sigv4 "aws:amz:$AWS_REGION:s3" "$@" \
            "$(url "$node")/demo$key"
}

# within SECONDS COMMAND…: again and again until it succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

# put_all PREFIX: the files of $work/source/PREFIX, 16 at a time.
put_all() {
    (cd "$work/source" && find "$1" -type f -printf '%P\n') |
        awk -v url="$(url 1)/demo/$1" -v dir="$work/source/$1" -v id="$AWS_ACCESS_KEY_ID" -v key="$AWS_SECRET_ACCESS_KEY" \
            -v region="$AWS_REGION" 'NR > 1 { print "next" } {
                printf "url = \"%s/%s\"\nupload-file = \"%s/%s\"\nuser = \"%s:%s\"\naws-sigv4 = \"aws:amz:%s:s3\"\nfail\n", url, $0, dir, $0, id, key, region
            }' | curl --silent --show-error --parallel --parallel-max 16 -K - >"$work/put" 2>&1 ||
        { fail "put $1: $(tail -n 1 "$work/put")"; false; }
}

# mount_client N OPTIONS: with the most talkative log, which is searched for secrets at the end.
mount_client() {
    mkdir -p "$work/m$1"
    UVFS_LOG=trace ip netns exec "$net-c$1" "$uvfs" mount -o "endpoint=$(url "$1"),$2" object:s3://demo "$work/m$1" \
        >>"$work/client$1" 2>&1 &
    pid[c$1]=$!
    within 30 eval "mountpoint -q '$work/m$1' || ! kill -0 ${pid[c$1]}" && mountpoint -q "$work/m$1"
}

for n in "${nodes[@]}"; do start_node "$n"; done
within 90 curl --silent --fail "$(url 1)/minio/health/cluster" || { fail "the cluster does not start: $(tail -n 1 "$work/node1")"; summary; exit; }
for n in "${nodes[@]}"; do within 60 curl --silent --fail "$(url "$n")/minio/health/ready"; done
within 30 s3 1 / -X PUT || { fail "no bucket: $(s3 1 / -X PUT 2>&1)"; summary; exit; }
echo "$("$minio" --version | head -n 1): four nodes, four disks"

# Names and data.
source=$work/source
mkdir -p "$source/data/deep/er" "$source/many"
for size in 0 1 4095 131072 131073 1048576 8388608 8388609 20000001; do
    head -c "$size" /dev/urandom >"$source/data/f$size"
done
for n in $(seq 40); do head -c 4194304 /dev/urandom >"$source/data/deep/er/part$n"; done
(cd "$source" && find data -type f -exec sha256sum {} + | sort -k 2) >"$work/sums"
put_all data
seq "$keys" | awk -v dir="$source/many" '{ file = sprintf("%s/n%07d", dir, $1); print $1 > file; close(file) }'
put_all many
options=part-size=1m,read-ahead=4m
for n in "${clients[@]}"; do
    mount_client "$n" "$options" || { fail "client $n does not mount: $(tail -n 1 "$work/client$n")"; summary; exit; }
done

same_data() { (cd "$work/m$1" && find data -type f -exec sha256sum {} + | sort -k 2) | cmp - "$work/sums"; }
for n in "${clients[@]}"; do
    if same_data "$n" >"$work/said" 2>&1; then pass "names and data, client $n"; else fail "names and data, client $n: $(tail -n 1 "$work/said")"; fi
done

# Keys that need an encoding. What curl sends, and the name.
encoded() {
    local at name bad='' k=0
    while IFS='|' read -r at name; do
        k=$((k + 1))
        echo "key $k" | s3 2 "/odd/$at" -T - >"$work/said" 2>&1 || bad="$bad put of $at: $(head -n 1 "$work/said");"
        [ "$(cat "$work/m3/odd/$name" 2>&1)" = "key $k" ] || bad="$bad $name;"
    done <<'KEYS'
with%20space|with space
plus%2Bsign|plus+sign
per%25cent|per%cent
and%26equals%3D|and&equals=
gr%C3%BC%C3%9Fe%20%E6%97%A5%E6%9C%AC|grüße 日本
question%3Fhash%23|question?hash#
quote%27%22|quote'"
star%2A%28%29|star*()
KEYS
    [ "$(find "$work/m1/odd" -type f | wc -l)" = "$k" ] || bad="$bad client 1 lists others"
    [ -z "$bad" ] && return 0
    echo "$bad"
    return 1
}
if encoded >"$work/said"; then pass "keys that need an encoding"; else fail "keys that need an encoding:$(cat "$work/said")"; fi

# Listing.
for n in "${clients[@]}"; do
    found=$(find "$work/m$n/many" -type f | sort | sed 's|.*/||' | sha256sum)
    if [ "$found" = "$(find "$source/many" -type f | sort | sed 's|.*/||' | sha256sum)" ]; then
        pass "a listing of $keys keys, client $n"
    else
        fail "a listing of $keys keys, client $n: $(find "$work/m$n/many" -type f | wc -l) names"
    fi
done
if [ "$(cat "$work/m1/many/n0000007")" = 7 ] && [ ! -e "$work/m1/many/absent" ]; then
    pass "single names of that directory"
else
    fail "single names of that directory"
fi

# Conditional reads: the object is replaced through another node than the mount's.
direct() { dd "if=$1" bs=1M iflag=direct status=none "${@:2}"; }
conditional() {
    local fd old new got
    old=$(sha256sum <"$source/data/f20000001")
    exec {fd}<"$work/m1/data/f20000001" || return
    dd bs=4096 count=1 status=none <&"$fd" >/dev/null || return
    head -c 20000001 /dev/urandom >"$work/new"
    new=$(sha256sum <"$work/new")
    s3 3 /data/f20000001 -T "$work/new" >/dev/null || return
    for n in "${clients[@]}"; do
        got=$(sha256sum <"$work/m$n/data/f20000001") || { echo "client $n cannot open it"; return 1; }
        [ "$got" = "$new" ] || { echo "client $n does not see the new object"; return 1; }
    done
    # The old descriptor: the rest of the old object, which may be in memory, or ESTALE. Never bytes of the new one.
    if got=$({ head -c 4096 "$source/data/f20000001"; cat <&"$fd" 2>"$work/stale"; } | sha256sum) && [ "$got" = "$old" ]; then
        echo "the old object was in memory whole"
    elif ! grep -q 'Stale file handle' "$work/stale"; then
        echo "the old descriptor: $(cat "$work/stale")"
        return 1
    fi
    exec {fd}<&-
    s3 2 /data/f20000001 -X DELETE && [ ! -e "$work/m2/data/f20000001" ] || cat "$work/m2/data/f20000001" 2>&1 >/dev/null | grep -q 'No such file'
}
if conditional >"$work/said" 2>&1; then pass "conditional reads"; else fail "conditional reads: $(tail -n 1 "$work/said")"; fi
grep -v f20000001 "$work/sums" >"$work/sums2" && mv "$work/sums2" "$work/sums"

# read_loop CLIENT: reads parts past the kernel's cache, in a loop, until $work/end exists. A line a read: right, EIO or WRONG.
read_loop() {
    local n got want began
    while [ ! -e "$work/end" ]; do
        for n in $(seq 40); do
            [ ! -e "$work/end" ] || return 0
            began=$SECONDS
            want=$(awk -v f="data/deep/er/part$n" '$2 == f { print $1 }' "$work/sums")
            if direct "$work/m$1/data/deep/er/part$n" >"$work/read$1" 2>"$work/error$1"; then
                got=$(sha256sum <"$work/read$1" | cut -d ' ' -f 1)
                if [ "$got" = "$want" ]; then echo "right $((SECONDS - began))"; else echo "WRONG part$n"; fi
            else
                echo "error $((SECONDS - began)) $(sed 's/.*: //' "$work/error$1")"
            fi
        done
    done
}
count() { grep -c "$1" "$work/loop$2" || true; }

# outage NAME: what "begin" and "back" do to node 1 while clients 1 and 2 read.
outage() {
    local n readers=() bad='' before
    rm -f "$work/end"
    for n in 1 2; do
        read_loop "$n" >"$work/loop$n" &
        readers+=($!)
    done
    within 30 test -s "$work/loop1" -a -s "$work/loop2"
    "$2"
    before=$(wc -l <"$work/loop1")
    "$3"
    # The client of the node that was away reads again, without a new mount.
    within 120 eval "[ \$(tail -n 3 '$work/loop1' | grep -c right) = 3 ] && [ \$(wc -l <'$work/loop1') -gt $((before + 3)) ]" ||
        bad="$bad client 1 does not read again: $(tail -n 1 "$work/loop1");"
    touch "$work/end"
    wait "${readers[@]}"
    for n in 1 2; do
        [ "$(count WRONG "$n")" = 0 ] || bad="$bad client $n read wrong data: $(grep WRONG "$work/loop$n");"
        if grep '^error' "$work/loop$n" | grep -qv 'Input/output error$'; then
            bad="$bad client $n: $(grep '^error' "$work/loop$n" | grep -v 'Input/output error$' | head -n 1);"
        fi
        echo "$1, client $n: $(count '^right' "$n") reads right, $(count '^error' "$n") EIO, the longest $(cut -d ' ' -f 2 "$work/loop$n" | sort -n | tail -n 1) s"
    done
    [ "$(count '^right' 2)" -gt 5 ] || bad="$bad client 2, whose node lives, hardly reads;"
    if [ -z "$bad" ]; then pass "$1"; else fail "$1:$bad"; fi
}

kill_node() {
    kill -KILL "${pid[1]}"
    wait "${pid[1]}" 2>/dev/null
    sleep 15
}
restart_node() { start_node 1; }
stop_node() {
    kill -STOP "${pid[1]}"
    sleep "$stop"
}
continue_node() { kill -CONT "${pid[1]}"; }
cut_node() {
    ip link set "${net}n1" down
    sleep 15
}
join_node() { ip link set "${net}n1" up; }

outage "a node is killed, and restarted after 15 s" kill_node restart_node
outage "a node is cut off for 15 s" cut_node join_node
outage "a node is stopped for $stop s" stop_node continue_node

# A client that is killed leaves nothing that keeps others from reading.
if ! same_data 3 >"$work/said" 2>&1; then fail "data afterwards: $(tail -n 1 "$work/said")"; else pass "data afterwards"; fi

# Secrets: arguments, the table of mounts, logs.
secret() { grep -l "$AWS_SECRET_ACCESS_KEY" /proc/mounts "$work"/client* 2>/dev/null || cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -F "$AWS_SECRET_ACCESS_KEY"; }
if secret >"$work/said"; then fail "a secret shows: $(head -n 1 "$work/said")"; else pass "no secret shows"; fi
for n in "${clients[@]}"; do
    grep -h 'WARN\|ERROR\|panic' "$work/client$n" 2>/dev/null | sed 's/.*\(WARN\|ERROR\)/\1/' | cut -c 1-160 | sort | uniq -c | sort -rn | head -n 3
done
summary
