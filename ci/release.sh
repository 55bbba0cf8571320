#!/usr/bin/env bash
# Makes a release in target/dist: the Debian package, an archive with the static program and its installer, the bill of
# materials, and checksums. ci/packages.sh tests them at the end.
#
#   ci/release.sh
#
# Needs Rust 1.90, cargo-deb (cargo install --locked cargo-deb), jq, and dpkg-dev. It builds in target/dist-build,
# whatever CARGO_TARGET_DIR says: the description of the package in crates/uvfs-cli/Cargo.toml names files there. The
# two builds, with optimisation of the whole program, take minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BUILD=target/dist-build OUT=target/dist
die() { printf 'release: %s\n' "$*" >&2; exit 1; }
say() { printf 'release: %s\n' "$*"; }

check_tools() {
    local tool
    command -v cargo-deb >/dev/null || die "cargo-deb is missing: cargo install --locked cargo-deb"
    for tool in jq:jq dpkg-shlibdeps:dpkg-dev; do
        command -v "${tool%%:*}" >/dev/null || die "${tool%%:*} is missing: apt-get install ${tool##*:}"
    done
}

# build STATIC: the program, without the paths of this machine in it. Sets RUSTFLAGS of its own, so both builds are named.
build() {
    local separator=$'\x1f' flags
    flags="--remap-path-prefix=$PWD=uvfs$separator--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
    # lld folds equal functions into one, and packs relocations: a tenth of the program. Both need Rust 1.90, whose own
    # linker is lld; the packed relocations glibc 2.36.
    flags+="${separator}-Clink-arg=-Wl,--icf=all$separator-Clink-arg=-Wl,-z,pack-relative-relocs"
    # Cargo 1.95 forgets the profile's `strip` where a package has an entry of its own.
    flags+="${separator}-Cstrip=symbols"
    if [ "$1" = static ]; then flags+="${separator}-Ctarget-feature=+crt-static"; fi
    # With --target the flags do not reach macros and build scripts.
    CARGO_ENCODED_RUSTFLAGS=$flags cargo build --quiet --locked --profile dist -p uvfs-cli --target "$host" --target-dir "$BUILD/$1"
}

# The bill of materials. By hand: cargo-cyclonedx writes a file beside each manifest of the workspace, with the features
# that the workspace enables; here only the program's own count.
materials() {
    local tree lock
    tree=$(cargo tree --locked -p uvfs-cli -e normal,no-proc-macro --target "$host" --prefix none --no-dedupe --format '{p}')
    lock=$(awk -F '"' '/^name/ { n = $2 } /^version/ { v = $2 } /^checksum/ { print n, v, $2 }' Cargo.lock)
    jq --arg tree "$tree" --arg lock "$lock" --arg time "$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)" \
        -f ci/materials.jq "$BUILD/metadata.json" >"$OUT/uvfs-$version.cdx.json"
}

# Licences and notices of all that is compiled in. Of two licences to choose from, Apache's is left out.
third_party() {
    local dir name licence file files sysroot
    sysroot=$(rustc --print sysroot)
    printf 'uvfs is MIT OR Apache-2.0. The program also contains the following.\n'
    printf '\n=== The Rust standard library\n\n'
    sed -e 's/<[^>]*>//g' -e 's/&#34;/"/g' -e 's/&lt;/</g' -e 's/&gt;/>/g' -e 's/&amp;/\&/g' "$sysroot/share/doc/rust/COPYRIGHT-library.html"
    while IFS=$'\t' read -r name licence dir; do
        printf '\n=== %s (%s)\n' "$name" "$licence"
        mapfile -t files < <(find "$dir" -maxdepth 1 -type f -iregex '.*/\(licen[sc]e\|copying\|copyright\|notice\|unlicense\).*' | sort)
        for file in "${files[@]}"; do
            case $file in *[aA][pP][aA][cC][hH][eE]*) [ ${#files[@]} = 1 ] || continue ;; esac
            printf '\n'
            cat "$file"
        done
        [ ${#files[@]} -gt 0 ] || printf '\nThe package carries no licence text; see its field "license" above.\n'
    done < <(jq -r --slurpfile bill "$OUT/uvfs-$version.cdx.json" '
        [$bill[0].components[] | "\(.name) \(.version)"] as $in
        | .packages[] | select(.source != null and ("\(.name) \(.version)" | IN($in[])))
        | ["\(.name) \(.version)", .license // "see below", (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv' "$BUILD/metadata.json")
}

# The program for machines without our package, with the files that contrib/install.sh needs.
archive() {
    local name=uvfs-$version-$host-static dir
    dir=$BUILD/$name
    rm -rf "$dir"
    install -D -t "$dir" "$BUILD/static/$host/dist/uvfs"
    install -D -t "$dir/contrib" contrib/install.sh
    install -m 644 -t "$dir/contrib" contrib/uvfs@.service contrib/uvfs-index.service
    install -m 644 -t "$dir" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$BUILD/third-party.gz"
    tar -C "$BUILD" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -9n >"$OUT/$name.tar.gz"
}

check_tools
host=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$BUILD" "$OUT"
cargo metadata --locked --format-version 1 --filter-platform "$host" >"$BUILD/metadata.json"
version=$(jq -r '.packages[] | select(.name == "uvfs-cli").version' "$BUILD/metadata.json")
# The same sources give the same files.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
export SOURCE_DATE_EPOCH
rm -rf "$OUT"/uvfs* "$OUT/SHA256SUMS" "$BUILD/root"

say "building"
build dynamic
build static
say "bill of materials"
materials
third_party | gzip -9n >"$BUILD/third-party.gz"
say "Debian package"
contrib/install.sh --prefix /usr --root "$BUILD/root" --binary "$BUILD/dynamic/$host/dist/uvfs" >/dev/null
cargo deb --quiet --no-build --no-strip --locked -p uvfs-cli --output "$OUT/"
say "archive"
archive
(cd "$OUT" && sha256sum uvfs* >SHA256SUMS)
ls -l "$OUT"
ci/packages.sh
