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

# dirty NAME HOW: writes transactions into the journal of an image, which debugfs opens so: the root directory as it is, a block that is
# revoked, and one transaction without its commit.
dirty() {
    local image="$out/$1.img" how=$2 root
    root=$(debugfs -R 'bmap / 0' "$image" 2>/dev/null)
    dd if="$image" of="$tree.block" bs=1024 skip="$root" count=1 status=none
    printf '%s\n' "jo $how" "jw -b $root $tree.block" "jw -b 2000 $tree.block" 'jw -r 2000 /dev/null' "jw -c -b $root /dev/zero" jc >"$tree.commands"
    debugfs -w -f "$tree.commands" "$image" >/dev/null 2>&1
    rm -f "$tree.block" "$tree.commands"
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
make meta-bg 256k -t ext4 -b 1024 -O ^has_journal,meta_bg,^resize_inode
make bigalloc 1m -t ext4 -b 1024 -C 4096 -O ^has_journal,bigalloc
make journal 2m -t ext4 -b 1024
dirty journal '-c -v 3'
make journal-v2 2m -t ext4 -b 1024
dirty journal-v2 '-c -v 2'
make journal-ext3 2m -t ext3 -b 1024
dirty journal-ext3 ''
ls -l "$out"
