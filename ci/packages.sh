#!/usr/bin/env bash
# Tests what ci/release.sh made in target/dist: sizes, checksums, lintian, the static program in an empty root directory, and
# the package in a small Debian: install, mount, unmount, remove, purge.
#
#   ci/packages.sh
#
# UVFS_SUITE      the Debian release of the test (bookworm)
# UVFS_MIRROR     where mmdebstrap gets it (the sources of this machine)
#
# What cannot run here counts as skipped. Prints "N passed, N failed, N skipped" at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=ci/mounts.sh
. ci/mounts.sh

readonly OUT=$PWD/target/dist LIMIT=6000000

# check NAME COMMAND…: one test; its output is shown if it fails.
check() {
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then pass "$name"; else fail "$name"; sed 's/^/    /' "$work/log"; fi
}

small() {
    local size
    size=$(stat -c %s "$1")
    echo "$size bytes, $LIMIT allowed"
    [ "$size" -le "$LIMIT" ] && ! readelf --sections "$1" | grep -q ' \.symtab '
}

# has_no_path FILE: no path of the sources on the machine that built it.
has_no_path() { ! grep -aoF -e "$PWD/" -e "${CARGO_HOME:-$HOME/.cargo}/" "$1" | sort | uniq -c | grep .; }

# in_root DIR COMMAND…: with DIR as root directory, the machine's /dev, and a /proc of its own. Every process and mount
# ends with the command.
in_root() {
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child --propagation private sh -euc '
        mount --bind /dev "$1/dev"
        mount -t proc proc "$1/proc"
        cd "$1"
        shift
        "$@"
    ' sh "$@"
}

# A root directory that holds nothing but the program, /dev and /proc. No shell is in it: this one acts from outside.
static_in_empty_root() {
    local root=$work/empty
    mkdir -p "$root"/{dev,proc,mnt} && cp "$static" "$root/uvfs" || return
    in_root "$root" env -i PATH="$PATH" sh -euc '
        chroot . /uvfs mount -d tmpfs /mnt
        echo seen >mnt/file
        grep -q seen mnt/file
        chroot . /uvfs stat /mnt >figures
        grep -q requests figures
        chroot . /uvfs umount /mnt
        if [ -e mnt/file ]; then exit 1; fi'
}

# The installer of the archive: by itself, and without a trace once it has been undone. It may not need the sources.
archive_installs() {
    local archive=$work/unpacked-archive root=$work/installed
    mkdir "$archive" && tar -C "$archive" --strip-components=1 -xzf "${archives[0]}" || return
    env -u CARGO_TARGET_DIR "$archive/contrib/install.sh" --root "$root" || return
    "$root/usr/local/bin/uvfs" --version && [ -s "$root/usr/local/share/man/man8/uvfs-mount.8" ] || return
    rm "$archive/uvfs"
    env -u CARGO_TARGET_DIR "$archive/contrib/install.sh" --root "$root" --uninstall || return
    if find "$root" ! -type d | grep .; then return 1; fi
}

make_debian() {
    mmdebstrap --quiet --variant=minbase --include=man-db,mount "${UVFS_SUITE:-bookworm}" "$debian" ${UVFS_MIRROR:+"$UVFS_MIRROR"}
}
# Commands for the small Debian's shell.
inside() { in_root "$debian" env -i DEBIAN_FRONTEND=noninteractive PATH="$PATH" chroot . sh -euc "$1"; }

install_package() {
    cp "$package" "$debian/package.deb" && inside 'dpkg -i /package.deb; uvfs --version'
}
has_files() {
    # shellcheck disable=SC2016
    inside '
        for page in uvfs uvfs-mount mount.uvfs uvfs-stat uvfs-kernfs; do man -w "$page"; done
        for file in bash-completion/completions/uvfs zsh/vendor-completions/_uvfs fish/vendor_completions.d/uvfs.fish; do
            [ -s "/usr/share/$file" ]
        done
        for unit in uvfs@ uvfs-index; do grep -q "ExecStart=/usr/bin/uvfs " /usr/lib/systemd/system/$unit.service; done'
}
use_package() {
    inside '
        uvfs mount -d tmpfs /mnt
        echo seen >/mnt/file
        ls -l /mnt | grep file
        grep seen /mnt/file
        uvfs umount /mnt
        mount -t uvfs -o size=1m tmpfs /mnt
        mount | grep " /mnt type fuse.uvfs "
        mount -o remount,ro /mnt
        if touch /mnt/file; then exit 1; fi
        umount /mnt
        if mount | grep " /mnt "; then exit 1; fi'
}
# Nothing of the package may be left but lines in logs.
remove_package() {
    inside '
        dpkg -r uvfs
        if command -v uvfs; then exit 1; fi
        dpkg -P uvfs
        if find / -xdev -iname "*uvfs*" | grep .; then exit 1; fi
        if dpkg -l uvfs; then exit 1; fi'
}

shopt -s nullglob
packages=("$OUT"/uvfs_*.deb) archives=("$OUT"/uvfs-*-static.tar.gz)
[ ${#packages[@]} = 1 ] && [ ${#archives[@]} = 1 ] || give_up "target/dist has not one package and one archive: ci/release.sh"
package=${packages[0]} debian=$work/debian
dpkg-deb -x "$package" "$work/unpacked"
tar -C "$work" -xzf "${archives[0]}"
static=$(echo "$work"/uvfs-*-static/uvfs)

check "checksums" sh -c "cd '$OUT' && sha256sum --check --strict SHA256SUMS"
check "size of the package's program" small "$work/unpacked/usr/bin/uvfs"
check "size of the static program" small "$static"
check "no path of this machine in the package's program" has_no_path "$work/unpacked/usr/bin/uvfs"
check "no path of this machine in the static program" has_no_path "$static"
check "the bill of materials names the program" jq -e '.bomFormat == "CycloneDX" and .metadata.component.name == "uvfs-cli"' "$OUT"/uvfs-*.cdx.json
check "the archive's installer" archive_installs
if has lintian; then check "lintian" lintian --allow-root --no-tag-display-limit --fail-on error,warning,info,pedantic "$package"; else skip "lintian is not installed"; fi

[ "$(id -u)" = 0 ] && [ -c /dev/fuse ] || give_up "mounting needs root and /dev/fuse"
check "the static program in an empty root directory" static_in_empty_root
has mmdebstrap || give_up "mmdebstrap is not installed: the package was not installed anywhere"
make_debian >"$work/log" 2>&1 || give_up "mmdebstrap could not make a Debian: $(tail -n 1 "$work/log")"
check "the package can be installed" install_package
check "its files" has_files
check "mounts by uvfs and by mount(8)" use_package
check "it can be removed and purged" remove_package
summary
