# The parts that the measure.sh of several conversions share. A script sources it with its arguments: DIR [PART]...
#
# DIR has the programs that run.sh built. Files are made in a tmpfs, $source, and served at $mount.
# shellcheck shell=bash disable=SC2034
dir=$(cd "${1:?a directory}" && pwd)
parts=("${@:2}")
rounds=${ROUNDS:-5}
[ ${#parts[@]} -gt 0 ] || parts=(speed slow memory)
mount=$dir/mount source=$dir/source
mkdir -p "$source"
mountpoint -q "$source" || mount -t tmpfs -o size=4g,nr_inodes=4m tmpfs "$source"
ulimit -n 20000

# make DIRECTORY FILES EACH: empty files, EACH in a directory.
make() {
    local d
    for ((d = 0; d < $2 / $3; d++)); do
        [ -e "$source/$1/$d/$(($3 - 1))" ] || { mkdir -p "$source/$1/$d" && (cd "$source/$1/$d" && eval "touch {0..$(($3 - 1))}"); }
    done
}
# serve SERVER ARGUMENT... -- COMMAND...: runs a command while a server serves $mount. $preload is loaded into the server.
serve() {
    local server=()
    while [ "$1" != -- ]; do server+=("$1"); shift; done
    shift
    # Some servers remove it at their end.
    mkdir -p "$mount"
    LD_PRELOAD=${preload:-} "${server[@]}" 2>>"$dir/servers.log" &
    local pid=$!
    while ! mountpoint -q "$mount"; do kill -0 "$pid" || exit 1; sleep 0.05; done
    server_pid=$pid "$@"
    # Another program may be looking at all mounts.
    for _ in {1..100}; do
        umount "$mount" 2>/dev/null && break
        sleep 0.1
    done
    wait "$pid" || echo "${server[0]} ended with $?" >&2
}
figure() { awk -v key="$1:" '$1 == key {print $2}' "/proc/$server_pid/status"; }
walk() { find "$mount" -type f -size +1M; }
walked() {
    local before after begin=$SECONDS
    before=$(figure VmRSS)
    walk
    after=$(figure VmRSS)
    echo "$before $after KiB, $(((after - before) * 1024 / MEMORY_FILES)) bytes a file, $((SECONDS - begin)) s"
}
twice() {
    local n
    for n in one two; do
        walk
        echo "after $n walks $(figure VmRSS) KiB resident, peak $(figure VmHWM)"
    done
}
# Each path of the first directories once, so that the server's table knows them.
visit() { for ((n = 0; n < $1; n++)); do echo "$mount/$((n / 1000))/$((n % 1000))"; done | xargs stat >/dev/null; }
