#!/usr/bin/env bash
# Installs the command `uvfs`, mount(8)'s helper, the manual pages and the completions.
#
#   cargo build --release -p uvfs-cli && sudo contrib/install.sh [--root DIR]
#
# Everything goes below /usr/local, except the helpers, which mount(8) looks for in /sbin. With --root everything
# goes below DIR instead, for packages. Prints what it writes.
set -euo pipefail
cd "$(dirname "$0")/.."

root=
case ${1:-} in
    '') ;;
    --root) root=${2:?--root needs a directory} ;;
    *) echo "usage: contrib/install.sh [--root DIR]" >&2; exit 2 ;;
esac
binary="${CARGO_TARGET_DIR:-target}/release/uvfs"
[ -x "$binary" ] || { echo "install: $binary is missing: cargo build --release -p uvfs-cli" >&2; exit 1; }

put() {
    install -D -m "$1" "$2" "$root$3"
    echo "$root$3"
}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
put 755 "$binary" /usr/local/bin/uvfs
install -d "$root/sbin"
# mount(8) looks for the second name when it remounts a mount that is not in fstab(5).
for helper in mount.uvfs mount.fuse.uvfs; do
    ln -sf /usr/local/bin/uvfs "$root/sbin/$helper"
    echo "$root/sbin/$helper"
done
"$binary" man "$made"
for page in "$made"/man?/*; do
    put 644 "$page" "/usr/local/share/man/${page#"$made"/}"
done
for shell in bash:bash-completion/completions/uvfs zsh:zsh/site-functions/_uvfs fish:fish/vendor_completions.d/uvfs.fish; do
    "$binary" completions "${shell%%:*}" >"$made/script"
    put 644 "$made/script" "/usr/local/share/${shell#*:}"
done
