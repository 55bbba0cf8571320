#!/usr/bin/env bash
# Fetches OpenDAL, applies the patches, runs its ofs' tests before and after, and measures (as root).
#
#   bench/conversions/opendal-fuse3/run.sh DIR
#
# Needs git, cargo, a C compiler, /dev/fuse, fusermount3, and 8 GiB of memory for a million files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
mkdir -p "${1:?a directory for the build}"
dir=$(cd "$1" && pwd)
# The last commit that has both bin/ofs and integrations/fuse3.
readonly COMMIT=6445ed7f5c3b34be19c2ab0f09ba9c362f9b0cab
ours=(--config "patch.crates-io.uvfs-path.path=\"$top/crates/uvfs-path\"")
export CARGO_TARGET_DIR=$dir/target

if [ ! -d "$dir/original-tree" ]; then
    git clone --quiet --filter=blob:none https://github.com/apache/opendal "$dir/original-tree"
    git -C "$dir/original-tree" checkout --quiet "$COMMIT"
fi
tree() { # NAME FROM patch
    rm -rf "${dir:?}/$1"
    cp -a "$dir/$2" "$dir/$1"
    git -C "$dir/$1" apply "$here/$3"
}
tree fuse3-0.10-tree original-tree fuse3-0.10.patch
tree converted-tree fuse3-0.10-tree ofs.patch

# One at a time: each test mounts.
tests() { # TREE options...
    local tree=$1
    shift
    mkdir -p "$dir/root"
    (cd "$dir/$tree/bin/ofs" && OPENDAL_TEST=fs OPENDAL_FS_ROOT=$dir/root/ cargo test --no-fail-fast "$@" -- --test-threads=1)
}
tests original-tree
tests converted-tree "${ours[@]}"

# The same for all that are measured: the time for which a reply is trusted is a constant of one second. Measurements set it.
build() { # NAME options...
    local name=$1
    shift
    tree=$dir/$name-measured
    rm -rf "$tree"
    cp -a "$dir/$name-tree" "$tree"
    sed -i -e 's/: TTL\b/: *TTL/g' \
        -e 's/^const TTL: Duration.*/static TTL: std::sync::LazyLock<Duration> = std::sync::LazyLock::new(|| Duration::from_secs(std::env::var("OFS_TTL").unwrap().parse().unwrap()));/' \
        "$tree/integrations/fuse3/src/file_system.rs"
    (cd "$tree/bin/ofs" && cargo build --release "$@")
    cp "$CARGO_TARGET_DIR/release/ofs" "$dir/$name"
}
build original
build fuse3-0.10
build converted "${ours[@]}"
cc -O2 -pthread "$here/../passthrough_hp/load.c" -o "$dir/load"
cc -O2 -shared -fPIC "$here/slow.c" -o "$dir/slow.so"
"$here/measure.sh" "$dir"
umount "$dir/source"
