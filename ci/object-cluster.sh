#!/usr/bin/env bash
# Mounts of a real S3 cluster: three nodes of Ceph, each a machine of its own on this one.
#
#   ci/object-cluster.sh [--keys N] [--stop SECONDS]
#
# --keys N       keys of the directory that is listed (default 12000)
# --stop SECONDS how long a node is stopped (default 60)
#
# Each node has a network namespace on one bridge, and a monitor, an OSD and a gateway (radosgw) in it; data is kept three
# times. Three clients have a namespace each, and client N mounts the bucket from node N. A node that is killed or stopped
# costs one client its server, and the others a third of the disks.
#
# Needs root, /dev/fuse, iproute2, curl, rclone (it writes the objects), and Ceph: Debian's packages ceph-mon, ceph-osd,
# radosgw and ceph-common. Prints PASS, FAIL or SKIPPED for each part, and "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.."
keys=12000 stop=60
while [ $# -gt 1 ]; do
    case $1 in
    --keys) keys=$2 ;;
    --stop) stop=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ $# = 0 ] || { printf 'usage: %s [--keys N] [--stop SECONDS]\n' "$0" >&2; exit 2; }
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
export AWS_ACCESS_KEY_ID=uvfs-cluster-id AWS_SECRET_ACCESS_KEY=uvfs-cluster-secret-nobody-may-see AWS_REGION=us-east-1
export AWS_EC2_METADATA_DISABLED=true RCLONE_CONFIG=/dev/null
export RCLONE_S3_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID RCLONE_S3_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY
unset AWS_SESSION_TOKEN AWS_PROFILE AWS_ENDPOINT_URL AWS_CA_BUNDLE
# Other scripts' namespaces are not ours.
net=uo$(($$ % 100000)) subnet=10.$((200 + $$ % 50)).$(($$ / 50 % 250)) nodes=(1 2 3) clients=(1 2 3)

for tool in ip nsenter curl rclone sha256sum ceph ceph-mon ceph-osd radosgw radosgw-admin monmaptool; do
    has "$tool" || give_up "$tool is missing"
done
[ "$(id -u)" = 0 ] || give_up "mounting needs root"
[ -c /dev/fuse ] || give_up "there is no /dev/fuse"
# Not ci/programs.sh: object stores are a feature of the command.
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
[ -n "${PREBUILT-}" ] || cargo build --quiet --release -p uvfs-cli --features object || exit 1
uvfs=$target/release/uvfs

declare -A pid=()
take_down() {
    local status=$? n
    for n in "${clients[@]}"; do umount --lazy "$work/m$n" 2>/dev/null; done
    for n in "${!pid[@]}"; do kill -KILL "${pid[$n]}" 2>/dev/null; done
    wait 2>/dev/null
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


address() { echo "$subnet.$((10 + $1))"; }

# Ceph without its own authentication: the S3 users' keys are what is tested. Failures are noticed within seconds.
cat >"$work/ceph.conf" <<CONF
[global]
fsid = $(uuidgen)
mon_host = $(for n in "${nodes[@]}"; do printf '[v2:%s:3300,v1:%s:6789] ' "$(address "$n")" "$(address "$n")"; done)
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
ms_mon_service_mode = crc
ms_mon_cluster_mode = crc
osd_pool_default_size = 3
osd_pool_default_min_size = 2
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = bluestore
bluestore_block_size = 8589934592
bluestore_block_wal_create = false
bluestore_block_db_create = false
osd_memory_target = 939524096
osd_heartbeat_interval = 2
osd_heartbeat_grace = 12
mon_osd_min_down_reporters = 1
mon_osd_reporter_subtree_level = osd
mon_allow_pool_delete = true
mon_data_avail_warn = 1
mon_data_avail_crit = 0
run_dir = $work/run
admin_socket = $work/run/\$name.asok
rgw_data = $work/rgw
rgw_enable_usage_log = false
rgw_thread_pool_size = 64
log_file =
log_to_stderr = true
err_to_stderr = true
CONF
mkdir -p "$work/run" "$work/rgw"
c=(-c "$work/ceph.conf")

# run NAME NODE PROGRAM…: a daemon of a node.
run() {
    local name=$1 node=$2
    shift 2
    ip netns exec "$net-n$node" "$@" "${c[@]}" -f >>"$work/$name" 2>&1 &
    pid[$name]=$!
}
run_mon() { run "mon$1" "$1" ceph-mon -i "$1" --mon-data "$work/data-mon$1" --public-addr "$(address "$1")"; }
run_osd() {
    run "osd$1" "$1" ceph-osd -i "$(($1 - 1))" --osd-data "$work/data-osd$1" --public-addr "$(address "$1")" \
        --cluster-addr "$(address "$1")"
}
run_rgw() { run "rgw$1" "$1" radosgw -n "client.rgw$1" "--rgw_frontends=beast endpoint=$(address "$1"):9000"; }
# Also after an outage: Ceph ends some daemons that were cut off.
start_node() {
    local name
    for name in mon osd rgw; do
        kill -0 "${pid[$name$1]}" 2>/dev/null || "run_$name" "$1"
    done
}
signal_node() {
    local name
    for name in "mon$2" "osd$2" "rgw$2"; do kill "-$1" "${pid[$name]}" 2>/dev/null; done
}

start_cluster() {
    local n monitors=() fsid
    fsid=$(awk '$1 == "fsid" { print $3 }' "$work/ceph.conf")
    for n in "${nodes[@]}"; do monitors+=(--addv "$n" "[v2:$(address "$n"):3300,v1:$(address "$n"):6789]"); done
    monmaptool --create --fsid "$fsid" "${monitors[@]}" "$work/monmap" || return
    for n in "${nodes[@]}"; do
        mkdir -p "$work/data-mon$n" "$work/data-osd$n"
        ceph-mon "${c[@]}" --mkfs -i "$n" --mon-data "$work/data-mon$n" --monmap "$work/monmap" || return
        run_mon "$n"
    done
    within 60 timeout 10 ceph "${c[@]}" --connect-timeout 8 status || return
    for n in "${nodes[@]}"; do
        uuid=$(uuidgen)
        timeout 30 ceph "${c[@]}" osd new "$uuid" || return
        ceph-osd "${c[@]}" --mkfs -i "$((n - 1))" --osd-data "$work/data-osd$n" --osd-uuid "$uuid" || return
        run_osd "$n"
    done
    within 60 eval "timeout 10 ceph ${c[*]} osd stat | grep -q '3 up'" || return
    timeout 120 radosgw-admin "${c[@]}" user create --uid=uvfs --display-name=uvfs --access-key="$AWS_ACCESS_KEY_ID" \
        --secret-key="$AWS_SECRET_ACCESS_KEY" || return
    for n in "${nodes[@]}"; do run_rgw "$n"; done
    for n in "${nodes[@]}"; do within 90 curl --silent --max-time 5 "$(url "$n")" || return; done
}

url() { echo "http://$subnet.$((10 + $1)):9000"; }

# s3 NODE COMMAND…: a command of rclone, which has the secret from the environment.
s3() {
    RCLONE_S3_ENDPOINT=$(url "$1") timeout 900 rclone --s3-provider Ceph --s3-list-version 2 \
        --retries 1 --contimeout 10s "${@:2}"
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

# mount_client N OPTIONS: with the most talkative log, which is searched for secrets at the end.
mount_client() {
    mkdir -p "$work/m$1"
    # Not ip-netns(8): that has a mount namespace of its own.
    UVFS_LOG=trace nsenter "--net=/run/netns/$net-c$1" "$uvfs" mount -o "endpoint=$(url "$1"),$2" object:s3://demo "$work/m$1" \
        >>"$work/client$1" 2>&1 &
    pid[c$1]=$!
    within 30 eval "mountpoint -q '$work/m$1' || ! kill -0 ${pid[c$1]}" && mountpoint -q "$work/m$1"
}

start_cluster >"$work/started" 2>&1 || { fail "the cluster does not start: $(grep -v '^ *$' "$work/started" | tail -n 1)"; summary; exit; }
within 60 s3 1 mkdir :s3:demo || { fail "no bucket: $(s3 1 mkdir :s3:demo 2>&1 | tail -n 1)"; summary; exit; }
radosgw --version | sed 's/ (.*//; s/$/: three nodes/'

# Names and data.
source=$work/source
mkdir -p "$source/data/deep/er" "$source/many"
for size in 0 1 4095 131072 131073 1048576 8388608 8388609 20000001; do
    head -c "$size" /dev/urandom >"$source/data/f$size"
done
for n in $(seq 40); do head -c 4194304 /dev/urandom >"$source/data/deep/er/part$n"; done
# Names that a request must encode.
mkdir "$source/data/odd"
for name in 'with space' 'plus+sign' 'per%cent' 'per%20cent' 'and&equals=' 'grüße 日本' 'question?hash#' "quote'\"" 'star*()' 'back\slash'; do
    echo "$name" >"$source/data/odd/$name"
done
(cd "$source" && find data -type f -exec sha256sum {} + | sort -k 2) >"$work/sums"
seq "$keys" | awk -v dir="$source/many" '{ file = sprintf("%s/n%07d", dir, $1); print $1 > file; close(file) }'
s3 1 copy --transfers 16 "$source" :s3:demo >"$work/put" 2>&1 || fail "objects are not written: $(tail -n 1 "$work/put")"
options=part-size=1m,read-ahead=4m
for n in "${clients[@]}"; do
    mount_client "$n" "$options" || { fail "client $n does not mount: $(tail -n 1 "$work/client$n")"; summary; exit; }
done

same_data() { (cd "$work/m$1" && find data -type f -exec sha256sum {} + | sort -k 2) | cmp - "$work/sums"; }
for n in "${clients[@]}"; do
    if same_data "$n" >"$work/said" 2>&1; then pass "names and data, client $n"; else fail "names and data, client $n: $(tail -n 1 "$work/said")"; fi
done

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
    s3 3 copyto "$work/new" :s3:demo/data/f20000001 || return
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
    # The name may be believed for the TTL, but an open finds out.
    s3 2 deletefile :s3:demo/data/f20000001 || return
    got=$(cat "$work/m2/data/f20000001" 2>&1 >/dev/null)
    [[ $got = *"No such file"* ]] || { echo "a deleted object: $got"; return 1; }
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
    signal_node KILL 1
    wait "${pid[mon1]}" "${pid[osd1]}" "${pid[rgw1]}" 2>/dev/null
    sleep 15
}
restart_node() { start_node 1; }
stop_node() {
    signal_node STOP 1
    sleep "$stop"
}
continue_node() {
    signal_node CONT 1
    start_node 1
}
cut_node() {
    ip link set "${net}n1" down
    sleep 15
}
join_node() {
    ip link set "${net}n1" up
    start_node 1
}

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
