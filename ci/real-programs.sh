#!/usr/bin/env bash
# Runs real programs on a uvfs mount and on a kernel tmpfs. Afterwards both must hold the same.
#
#   ci/real-programs.sh [--fs tmpfs|mirror] [DIR_A DIR_B]
#
# Without directories, the script mounts a kernel tmpfs, and a uvfs tmpfs or a mirror of another kernel tmpfs.
# Each program runs on both. A step passes if it succeeds on both and the trees are equal. Missing
# programs are skipped. Prints "N passed, N failed, N skipped" at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
fs=tmpfs
if [ "${1:-}" = --fs ]; then
    fs=${2:-}
    [ "$fs" = tmpfs ] || [ "$fs" = mirror ] || { printf 'there is no --fs %s: tmpfs or mirror\n' "$fs" >&2; exit 2; }
    shift 2
fi
[ $# = 0 ] || [ $# = 2 ] || { printf 'usage: %s [--fs tmpfs|mirror] [DIR_A DIR_B]\n' "$0" >&2; exit 2; }
# shellcheck source=ci/mounts.sh
. ci/mounts.sh
[ $# = 2 ] || build || exit 1
mount_pair "$@"

export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
export SOURCE_DATE_EPOCH=1577836800 LC_ALL=C
# Both sides must get the same bytes: no packing in the background, and no packs that depend on the number of threads.
export GIT_CONFIG_COUNT=3
export GIT_CONFIG_KEY_0=gc.auto GIT_CONFIG_VALUE_0=0 GIT_CONFIG_KEY_1=maintenance.auto GIT_CONFIG_VALUE_1=false
export GIT_CONFIG_KEY_2=pack.threads GIT_CONFIG_VALUE_2=1

# A C project of several files: $1/src/*.c, a header each, a Makefile, a test.
make_c_project() {
    local i
    mkdir -p "$1/src" "$1/include"
    for i in $(seq 40); do
        printf '#ifndef F%s_H\n#define F%s_H\nint f%s(int);\n#endif\n' "$i" "$i" "$i" >"$1/include/f$i.h"
        printf '#include "f%s.h"\nint f%s(int x) { return x * %s + 1; }\n' "$i" "$i" "$i" >"$1/src/f$i.c"
    done
    {
        for i in $(seq 40); do printf '#include "f%s.h"\n' "$i"; done
        printf '#include <stdio.h>\nint main(void) {\n    int s = 0;\n'
        for i in $(seq 40); do printf '    s += f%s(2);\n' "$i"; done
        printf '    printf("%%d\\n", s);\n    return s != 1680;\n}\n'
    } >"$1/src/main.c"
    cat >"$1/Makefile" <<'MAKE'
CFLAGS = -O1 -Iinclude -MMD
OBJ = $(patsubst src/%.c,build/%.o,$(wildcard src/*.c))
all: build/prog build/libf.a
build/prog: $(OBJ) ; $(CC) -o $@ $^
build/libf.a: $(filter-out build/main.o,$(OBJ)) ; $(AR) rcD $@ $^
build/%.o: src/%.c | build ; $(CC) $(CFLAGS) -c -o $@ $<
build: ; mkdir build
check: all ; ./build/prog
clean: ; rm -rf build
-include $(OBJ:.o=.d)
MAKE
}

make_repository() {
    make_c_project "$1"
    (
        cd "$1" && git init -q -b main && git add -A && git commit -qm first &&
            for i in $(seq 20); do
                echo "/* $i */" >>"src/f$i.c" && git mv "include/f$i.h" "include/g$i.h" && git commit -qam "change $i" &&
                    git mv "include/g$i.h" "include/f$i.h" && git commit -qam "back $i" || exit 1
            done && ln -s src/main.c link && chmod 755 Makefile && git add -A && git commit -qm last
    )
}

t_git() { git clone -q "$work/repo" cloned && cd cloned && git checkout -q HEAD~7 && git checkout -q main && git gc -q && git fsck --strict >/dev/null && git status --porcelain | wc -l | grep -qx 0; }
t_make() { cp -r "$work/repo/src" "$work/repo/include" "$work/repo/Makefile" . && make -s -j4 check && touch src/f3.c && make -s check && make -s clean && make -s -j4 check; }
t_cargo() {
    # In its own workspace, and without any registry.
    cargo init -q --vcs none --lib --name real . 2>/dev/null || return
    printf '\n[workspace]\n' >>Cargo.toml
    printf 'pub mod part;\n' >src/lib.rs
    printf 'pub fn f(x: u32) -> u32 {\n    x + 1\n}\n\n#[test]\nfn adds() {\n    assert_eq!(f(1), 2);\n}\n' >src/part.rs
    env -u RUSTFLAGS CARGO_TARGET_DIR="$PWD/target" cargo test -q --offline && rm -rf target
}
t_tar() { tar -cf all.tar -C "$work/repo" . && mkdir out && tar -xpf all.tar -C out && tar -df all.tar -C out && tar -C out -cf - . | tar -tf - | sort >list && rm -rf out/.git; }
t_rsync() { rsync -aHAX "$work/repo/" copy/ && rsync -aHAX --delete --checksum --itemize-changes "$work/repo/" copy/ >changes && [ ! -s changes ] && rsync -a --delete --inplace "$work/repo/src/" copy/; }
t_sqlite() {
    # Two processes write, one reads, with a log beside the data base.
    sqlite3 t.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT);' >/dev/null || return
    local pids=() p
    for p in 1 2; do
        for i in $(seq 100); do printf '.timeout 20000\nINSERT INTO t VALUES(%s, hex(%s));\n' $((i * 2 + p)) "$i"; done | sqlite3 t.db &
        pids+=($!)
    done
    for p in "${pids[@]}"; do wait "$p" || return; done
    [ "$(sqlite3 t.db 'PRAGMA integrity_check')" = ok ] && [ "$(sqlite3 t.db 'SELECT count(*) FROM t')" = 200 ] &&
        sqlite3 t.db '.dump' >dump && sqlite3 t.db 'PRAGMA journal_mode=DELETE; VACUUM;' >/dev/null && rm t.db
}
t_find() { cp -r "$work/repo/." . && find . -name '*.h' -size -2k -newermt 2000-01-01 | sort >found && local n && n=$(find . -type f -links 1 -perm -u+r | wc -l) && echo "$n" >count && find . -name '*.c' -delete && ! find . -name '*.c' | grep -q .; }
t_rm() { mkdir -p deep/1/2/3/4/5/6/7/8 && cp -r "$work/repo/.git" deep/1/2/3 && seq 3000 | (cd deep && xargs touch) && rm -rf deep && [ "$(find . | wc -l)" = 1 ]; }
t_cp() { cp -a "$work/repo" one && cp -al one two && cp -a --sparse=always one three && diff -r one two && diff -r one three && mv two/src moved && mv -n moved three/ && dd if=/dev/zero of=hole bs=1 seek=1M count=1 status=none && cp --sparse=always hole hole2 && cmp hole hole2; }

step() {
    local name=$1 program=$2 dir
    has "$program" || { skip "$name: $program is not installed"; return; }
    for dir in "$A" "$B"; do
        mkdir "$dir/real-$name" || { fail "$name: cannot make $dir/real-$name"; return; }
        if ! (cd "$dir/real-$name" && timeout 300 bash -c "t_$name" >"$work/log" 2>&1); then
            fail "$name on $dir"
            tail -n 15 "$work/log"
            return
        fi
    done
    # Git's index contains times and inode numbers of this very tree.
    if diff -r --no-dereference -x index "$A/real-$name" "$B/real-$name" >"$work/diff" 2>&1; then
        pass "$name"
    else
        fail "$name: the trees differ"
        head -n 15 "$work/diff"
    fi
    rm -rf "$A/real-$name" "$B/real-$name" || fail "$name: rm -rf"
}

export work
for t in git make cargo tar rsync sqlite find rm cp; do export -f "t_$t"; done
has git || give_up "git is not installed"
make_repository "$work/repo" || { fail "cannot make a repository on the host"; summary; exit 1; }

step git git
step make make
step cargo cargo
step tar tar
step rsync rsync
step sqlite sqlite3
step find find
step cp cp
step rm rm
summary
