#!/usr/bin/env bash
# Makes small ext2, ext3 and ext4 images of every feature in a directory (fuzz/images by default): the corpus of the target `image`, and
# what the target `edits` changes. Needs mke2fs, e2fsck and debugfs.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"
out=${1:-fuzz/images}
mkdir -p "$out"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

mkdir -p "$tree/dir/deep/er" "$tree/names" "$tree/empty"
# Long names: few of them make an indexed directory of several blocks, and each costs every execution a walk.
long=$(printf 'n%.0s' $(seq 1 200))
for n in $(seq 1 24); do : >"$tree/names/$long-$n"; done
printf 'short' >"$tree/file"
head -c 3000 /dev/zero | tr '\0' x >"$tree/dir/larger"
ln -s file "$tree/fast"
ln -s "$(printf 'a/%.0s' $(seq 1 60))end" "$tree/slow"
ln "$tree/file" "$tree/dir/hard"
mkfifo "$tree/fifo"
# Pieces with holes between them: more extents than an inode has room for.
for n in 0 1 2 3 4 5 6 7 8; do
    printf 'piece' | dd of="$tree/sparse" bs=1 seek=$((n * 8192)) conv=notrunc status=none
done

# make NAME SIZE ARGUMENT…
make() {
    local image="$out/$1.img" size=$2 n
    shift 2
    rm -f "$image"
    mke2fs -q -F -N 128 -d "$tree" "$@" "$image" "$size" >/dev/null 2>&1
    for n in 1 2; do debugfs -w -R "ea_set /file user.name$n value$n" "$image" 2>/dev/null; done
    debugfs -w -R "ea_set /dir/larger user.long $(printf 'v%.0s' $(seq 1 300))" "$image" 2>/dev/null
    e2fsck -fyD "$image" >/dev/null 2>&1 || [ $? -le 1 ]
}

make ext2 256k -t ext2 -b 1024
make ext2-old 256k -t ext2 -b 1024 -I 128 -O ^filetype,^dir_index
make ext3 256k -t ext3 -b 1024 -O ^has_journal
make ext4 256k -t ext4 -b 1024 -O ^has_journal
make ext4-4k 1m -t ext4 -b 4096 -O ^has_journal
make ext4-plain 256k -t ext4 -b 1024 -O ^has_journal,^metadata_csum,^64bit
make uninit 256k -t ext4 -b 1024 -O ^has_journal,^metadata_csum,uninit_bg
make inline 256k -t ext4 -b 1024 -I 512 -O ^has_journal,inline_data
make inline-4k 1m -t ext4 -b 4096 -O ^has_journal,inline_data
make values 256k -t ext4 -b 1024 -O ^has_journal,ea_inode
make large 256k -t ext4 -b 1024 -O ^has_journal,large_dir,metadata_csum_seed,^flex_bg
ls -l "$out"
