#!/usr/bin/env bash
# Installs libuvfs, the cache for servers in C: shared and static library, header, and pkg-config file.
#
#   cargo build --release -p uvfs-capi && sudo contrib/install-capi.sh [--root DIR] [--library FILE]
#
# The shared library is linked here from the static one: its symbols get a version, and rustc accepts no version
# script beside its own. Everything goes below /usr/local; with --root below DIR instead, for packages.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly ABI=0 VERSION=0.1.0
root= library="${CARGO_TARGET_DIR:-target}/release/libuvfs_capi.a"
while [ $# -gt 0 ]; do
    case $1 in
        --root) root=${2:?--root needs a directory} ;;
        --library) library=${2:?--library needs a file} ;;
        *) echo "usage: contrib/install-capi.sh [--root DIR] [--library FILE]" >&2; exit 2 ;;
    esac
    shift 2
done
[ -f "$library" ] || { echo "install-capi: $library is missing: cargo build --release -p uvfs-capi" >&2; exit 1; }

put() {
    install -D -m "$1" "$2" "$root$3"
    echo "$root$3"
}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cc -shared -o "$made/libuvfs.so" -Wl,-soname,libuvfs.so.$ABI -Wl,--version-script=crates/uvfs-capi/uvfs.map \
    -Wl,--gc-sections -Wl,--whole-archive "$library" -Wl,--no-whole-archive -lgcc_s -lpthread -lm -ldl -lc
cat >"$made/uvfs.pc" <<PC
prefix=/usr/local
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: uvfs
Description: Dentry and inode cache for file system servers
Version: $VERSION
Libs: -L\${libdir} -luvfs
Libs.private: -lgcc_s -lpthread -lm -ldl
Cflags: -I\${includedir}
PC
put 755 "$made/libuvfs.so" /usr/local/lib/libuvfs.so.$VERSION
for link in libuvfs.so.$ABI libuvfs.so; do
    ln -sf libuvfs.so.$VERSION "$root/usr/local/lib/$link"
    echo "$root/usr/local/lib/$link"
done
put 644 "$library" /usr/local/lib/libuvfs.a
put 644 crates/uvfs-capi/include/uvfs.h /usr/local/include/uvfs.h
put 644 "$made/uvfs.pc" /usr/local/lib/pkgconfig/uvfs.pc
