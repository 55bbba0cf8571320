#!/usr/bin/env bash
# Installs the command `uvfs`, stripped, with mount(8)'s helpers, manual pages, completions and systemd units.
#
#   cargo build --release -p uvfs-cli && sudo contrib/install.sh [--prefix DIR] [--root DIR] [--binary FILE] [--uninstall]
#
# --prefix DIR    where everything goes (/usr/local), except the helpers, which mount(8) looks for in /sbin
# --root DIR      puts all of it below DIR, for packages
# --binary FILE   the program, if it was not built here and is not beside this directory, as in an archive of a release
# --uninstall     removes what the same options have installed, and leaves the directories
#
# Prints what it writes or removes. If this user may not write to /sbin, the helpers are left out: mount(8) and fstab(5) then do
# not know the type uvfs.
set -euo pipefail
# A reader of the list that goes away does not leave half of it.
trap '' PIPE
home=$(realpath "$(dirname "$0")")

usage() { echo "usage: contrib/install.sh [--prefix DIR] [--root DIR] [--binary FILE] [--uninstall]"; }
root='' prefix=/usr/local binary='' uninstall=
while [ $# -gt 0 ]; do
    # --prefix=DIR as --prefix DIR.
    case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
    case $1 in
        --prefix) prefix=$(realpath -m "${2:?--prefix needs a directory}") && shift ;;
        --root) root=$(realpath -m "${2:?--root needs a directory}") && shift ;;
        --binary) binary=${2:?--binary needs a file} && shift ;;
        --uninstall) uninstall=yes ;;
        --help) usage; exit ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
built=${CARGO_TARGET_DIR:-$home/../target}/release/uvfs installed=$root$prefix/bin/uvfs
if [ -z "$binary" ]; then
    for binary in ${uninstall:+"$installed"} "$home/../uvfs" "$built"; do
        if [ -x "$binary" ]; then break; fi
    done
fi
if [ ! -x "$binary" ]; then
    if [ -n "$uninstall" ]; then
        echo "install: there is no $installed to uninstall; give the --prefix and --root that it was installed with" >&2
    else
        echo "install: $binary is missing: cargo build --release -p uvfs-cli" >&2
    fi
    exit 1
fi

# put MODE FILE PATH: installs a file, or removes it.
put() {
    if [ -n "$uninstall" ]; then
        rm -f "$root$3"
    else
        install -D -m "$1" "$2" "$root$3"
    fi
    echo "$root$3"
}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cp "$binary" "$made/uvfs"
# Released programs are stripped already, and machines without a compiler have no strip(1).
if [ -z "$uninstall" ] && command -v strip >/dev/null; then strip --remove-section=.comment "$made/uvfs"; fi
# Its pages and completions are asked for below, when an installed one may be gone.
binary=$made/uvfs
put 755 "$made/uvfs" "$prefix/bin/uvfs"

# Packages put nothing into /sbin, a link to /usr/sbin on their systems.
sbin=/sbin command=$prefix/bin/uvfs
if [ "$prefix" = /usr ]; then sbin=/usr/sbin command=../bin/uvfs; fi
if [ -z "$uninstall" ]; then install -d "$root$sbin"; fi
# mount(8) looks for the second name when it remounts a mount that is not in fstab(5).
for helper in mount.uvfs mount.fuse.uvfs; do
    if [ ! -w "$root$sbin" ]; then
        echo "install: $root$sbin cannot be written: left out $helper, which mount(8) needs" >&2
    elif [ -n "$uninstall" ]; then
        rm -f "$root$sbin/$helper"
        echo "$root$sbin/$helper"
    else
        ln -sf "$command" "$root$sbin/$helper"
        echo "$root$sbin/$helper"
    fi
done

mkdir "$made/man"
"$binary" man "$made/man"
echo ".so man8/uvfs-mount.8" >"$made/man/man8/mount.fuse.uvfs.8"
for page in "$made"/man/man?/*; do
    put 644 "$page" "$prefix/share/man/${page#"$made"/man/}"
done
for shell in bash:bash-completion/completions/uvfs zsh:zsh/site-functions/_uvfs fish:fish/vendor_completions.d/uvfs.fish; do
    "$binary" completions "${shell%%:*}" >"$made/script"
    put 644 "$made/script" "$prefix/share/${shell#*:}"
done
for unit in uvfs@.service uvfs-index.service; do
    sed "s|/usr/local/bin/|$prefix/bin/|" "$home/$unit" >"$made/unit"
    put 644 "$made/unit" "$prefix/lib/systemd/system/$unit"
done
