#!/usr/bin/env bash
# Suites on a mount of an object store, reduced to what the README of uvfs-object promises.
#
#   ci/object-suites.sh [--seeds FROM..TO]...
#
# The bucket is that of the example's server, and a kernel tmpfs is right.
#
# - lockstep: random operations of one writer at a time. Names, types, sizes and content are compared. What the mount
#   refuses, and with which error, is the list of crates/uvfs-tests/src/lockstep/object_store.rs.
# - fsx: within the first part of a file, without mappings and without holes.
# - pjdfstest: all that passes on the tmpfs, but for the cases that `accepted` below names with the README's reason. A pattern
#   there that no failure needs is an error too.
#
# --seeds FROM..TO: for lockstep; default 1..20 and 1001..1020.
#
# UVFS_BUILD=debug: with the programs that tests use. Needs root and /dev/fuse. Prints PASS, FAIL or SKIPPED for each part, and
# "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
seeds=()
while [ $# -gt 0 ]; do
    [ "$1" = --seeds ] && [ $# -gt 1 ] || { printf 'usage: %s [--seeds FROM..TO]...\n' "$0" >&2; exit 2; }
    seeds+=("$2")
    shift 2
done
[ ${#seeds[@]} -gt 0 ] || seeds=(1..20 1001..1020)
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
[ "$(id -u)" = 0 ] || give_up "mounting needs root"
[ -c /dev/fuse ] || give_up "there is no /dev/fuse"
build_object || exit 1
export AWS_ACCESS_KEY_ID=test-key-id AWS_SECRET_ACCESS_KEY=test-secret-that-nobody-may-see
server=''
end() {
    local status=$?
    umount "$A" 2>/dev/null || umount -l "$A" 2>/dev/null
    [ -z "$server" ] || kill "$server"
    (exit "$status")
    clean_up
}
A=$work/a B=$work/b
mkdir "$A" "$B" "$work/empty"
trap end EXIT
mount -t tmpfs -o mode=1777 uvfs-ci "$B" || give_up "a tmpfs cannot be mounted here"
mounts+=("$B")
port=$((20000 + RANDOM % 10000))
"$tools/examples/s3_server" "$work/empty" "$port" >"$work/said" </dev/null &
server=$!
for _ in $(seq 200); do
    ! grep -q 'uvfs mount' "$work/said" || break
    sleep 0.05
done
"$tools/uvfs" mount --daemon -o "allow_other,endpoint=http://127.0.0.1:$port" object:s3://demo "$A" ||
    { fail "uvfs mount"; summary; exit 1; }

for range in "${seeds[@]}"; do
    if timeout 1800 "$tests" lockstep --object-store --a "$A" --b "$B" --seeds "$range" --ops 1000 >"$work/log" 2>&1; then
        pass "$(sed -n 's/^PASS //p' "$work/log")"
        grep '^refused: ' "$work/log"
    else
        fail "lockstep, seeds $range"
        grep -v '^[0-9]* passed, ' "$work/log" | tail -n 40 | cut -c1-300
    fi
done

if has fsx; then
    cat >"$work/fsx.toml" <<'TOML'
flen = 262144
[weights]
close_open = 1.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 1.0
fdatasync = 1.0
sendfile = 2.0
copy_file_range = 2.0
posix_fadvise = 1.0
mapread = 0.0
mapwrite = 0.0
invalidate = 0.0
TOML
    for seed in 1 2; do
        if timeout 900 fsx -f "$work/fsx.toml" -N 5000 -S "$seed" -P "$work" "$A/fsx.$seed" >"$work/log" 2>&1; then
            pass "fsx, seed $seed: 5000 operations"
        else
            fail "fsx, seed $seed: $(tail -n 5 "$work/log" | tr '\n' ' ' | cut -c1-300)"
        fi
        rm -f "$A/fsx.$seed"
    done
else
    skip "fsx is not installed (cargo install --locked fsx@0.3.2)"
fi

# Patterns of cases that may fail, each below the README's reason.
accepted() {
    cat <<'PATTERNS'
# link, symlink, mknod: EPERM. A case of another type of file begins with one.
::(block|char|fifo|socket|symlink)$
^(link|symlink)::
::eloop_(comp|final_comp)$
::enoent_symlink$
^open::(open_nofollow|fifo_nonblock_wronly|socket_error)$
^rename::(to_multiply_linked::regular|preserve_metadata_symlink)$
^unlink::(update_ctime_success|unchanged_ctime_failed)::regular$
^(mkfifo|mknod)::(changed_time_fields_success|permission_bits_from_mode|uid_gid_eq_euid_egid)$
# chmod, chown, utimensat: accepted and not kept. All files are rw-r--r-- and of one owner.
::(permission_bits_from_mode|uid_gid_eq_euid_egid)$
^chmod::(change_perm|update_ctime)::(regular|dir)$
^chmod::clear_isgid_bit$
^ftruncate::affected_create_flags_only$
^(open|truncate)::etxtbsy$
# Attributes of a directory are the mount's; a file's times are those of its publication.
::(changed_time_fields_success|changed_time_parent_success)$
^unlink::update_mtime_ctime_success_folder::regular$
^ftruncate::unchanged_ctime_failed$
# rename of a directory: EXDEV. A file is copied, and has other times.
^rename::(preserve_metadata_dir|preserve_metadata::regular|updates_link_parent|write_access_required_subdir)$
^rename::eexist_enotempty_to_non_empty::(regular|dir)$
# truncate(2): to 0 only. A file is open for one writer, within its first part.
^truncate::(shrink_not_empty|extend_file_shrink_sparse|update_ctime_success)$
^ftruncate::shrink_not_empty$
^open::interact_2gb$
# The number of links stays 1.
^unlink::open_file_not_freed$
# A key has at most 1,024 bytes.
::enametoolong_path$
PATTERNS
}

if has pjdfstest; then
    pjd_config
    pjd "$A" "$work/pjd.a"
    pjd "$B" "$work/pjd.b"
    comm -13 "$work/pjd.a" "$work/pjd.b" >"$work/only"
    accepted | grep -v '^#' >"$work/accepted"
    bad=$(grep -vE -f "$work/accepted" "$work/only")
    # A pattern that no failure needs any more.
    mended=$(while read -r pattern; do grep -qE "$pattern" "$work/only" || echo "$pattern"; done <"$work/accepted")
    said="$(wc -l <"$work/pjd.a") of the $(wc -l <"$work/pjd.b") cases that pass on the tmpfs"
    if [ ! -s "$work/pjd.b" ]; then
        skip "pjdfstest: does not run on the host's tmpfs"
    elif [ -z "$bad$mended" ]; then
        pass "pjdfstest: $said; the others are named with their reason"
    else
        fail "pjdfstest: $said; without a reason: ${bad//$'\n'/ }; patterns that nothing needs: ${mended//$'\n'/ }"
    fi
else
    skip "pjdfstest is not installed (cargo install --locked pjdfstest@0.2.2)"
fi
summary
