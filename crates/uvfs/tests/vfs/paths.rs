//! Paths: components, symbolic links, trailing slashes, `.` and `..`, lengths.

use crate::common::compare;

#[test]
fn components() {
    compare(
        "
        mkdir d 755 : ok
        mkdir d/e 755 : ok
        mkfile d/e/f 644 : ok
        stat d/e/f : -644 0:0 1 0
        stat /d/e/f : -644 0:0 1 0
        stat //d///e/f : -644 0:0 1 0
        stat d/./e/../e/f : -644 0:0 1 0
        stat d/e/../../d : d755 0:0 3
        stat / : d755 0:0 3
        stat . : d755 0:0 3
        stat .. : d755 0:0 3
        stat /../.. : d755 0:0 3
        stat /../d : d755 0:0 3
        stat '' : ENOENT
        stat x : ENOENT
        stat x/y : ENOENT
        stat d/x/y : ENOENT
        stat d/e/f/g : ENOTDIR
        stat d/e/f/. : ENOTDIR
        stat d/e/f/.. : ENOTDIR
        stat d/e/f/ : ENOTDIR
        stat d/e/ : d755 0:0 2
        stat d/e/. : d755 0:0 2
        chdir d/e : ok
        stat f : -644 0:0 1 0
        stat ../e/f : -644 0:0 1 0
        stat /f : ENOENT
        chdir f : ENOTDIR
        chdir x : ENOENT
        chdir ../.. : ok
        stat d : d755 0:0 3
        ",
    );
}

#[test]
fn lengths() {
    compare(
        "
        mkdir d 755 : ok
        mkfile d/n*255 644 : ENOENT     # the whole word is repeated
        mkfile n*255 644 : ok
        stat n*255 : -644 0:0 1 0
        stat n*256 : ENAMETOOLONG
        mkfile n*256 644 : ENAMETOOLONG
        mkdir n*256 755 : ENAMETOOLONG
        symlink t n*256 : ENAMETOOLONG
        link n*255 n*256 : ENAMETOOLONG
        unlink n*256 : ENAMETOOLONG
        rmdir n*256 : ENAMETOOLONG
        rename n*255 n*256 : ENAMETOOLONG
        rename n*256 n : ENAMETOOLONG
        rename x n*256 : ENOENT
        open n*256 CREATE,READ 644 : ENAMETOOLONG
        readlink n*256 : ENAMETOOLONG
        stat d/*2047 : ENOENT            # 4094 bytes, d/d/...
        stat ./*2047 : d755 0:0 3
        stat ../*1365 : d755 0:0 3       # 4095 bytes
        stat ./*2048 : ENAMETOOLONG
        symlink t*4095 long : ok
        symlink t*4096 longer : ENAMETOOLONG
        stat long : ENAMETOOLONG
        symlink '' empty : ENOENT
        ",
    );
}

#[test]
fn symbolic_links() {
    compare(
        "
        mkdir d 755 : ok
        mkfile d/f 644 : ok
        symlink d s : ok
        symlink /d abs : ok
        symlink d/f sf : ok
        symlink ../d/f d/up : ok
        symlink nothing dangling : ok
        stat s : d755 0:0 2
        lstat s : l777 0:0 1 1
        lstat s/ : d755 0:0 2
        stat s/f : -644 0:0 1 0
        stat abs/f : -644 0:0 1 0
        stat sf : -644 0:0 1 0
        stat sf/ : ENOTDIR
        stat sf/x : ENOTDIR
        stat d/up : -644 0:0 1 0
        stat s/up : -644 0:0 1 0
        stat s/../sf : -644 0:0 1 0
        stat dangling : ENOENT
        lstat dangling : l777 0:0 1 7
        lstat dangling/ : ENOENT
        readlink dangling : nothing
        readlink sf : d/f
        readlink d/f : EINVAL
        readlink s/ : EINVAL
        readlink d : EINVAL
        symlink loop loop : ok
        stat loop : ELOOP
        stat loop/x : ELOOP
        lstat loop : l777 0:0 1 4
        symlink / root : ok
        stat root : d755 0:0 3
        stat root/d/f : -644 0:0 1 0
        symlink // slashes : ok
        stat slashes/root/sf : -644 0:0 1 0
        symlink s/ sl : ok
        stat sl/f : -644 0:0 1 0
        symlink sf/ sfs : ok
        stat sfs : ENOTDIR
        symlink . dot : ok
        stat dot/dot/dot/sf : -644 0:0 1 0
        chmod sf 600 : ok
        stat d/f : -600 0:0 1 0
        lchown sf 5 6 : ok
        stat d/f : -600 0:0 1 0
        lstat sf : l777 5:6 1 3
        chown sf 7 8 : ok
        stat d/f : -600 7:8 1 0
        link sf hard : ok
        lstat hard : l777 5:6 2 3
        ",
    );
}

#[test]
fn forty_links_and_no_more() {
    let mut script = String::from("mkfile f 644 : ok\nsymlink f l1 : ok\n");
    for n in 2..=41 {
        script += &format!("symlink l{} l{n} : ok\n", n - 1);
    }
    script += "
        stat l40 : -644 0:0 1 0
        stat l41 : ELOOP
        open l40 CREATE,READ 644 : ok
        open l41 CREATE,READ 644 : ELOOP
        mkdir d 755 : ok
        symlink . d/s : ok
        ";
    script += &format!("stat d/{}s : d755 0:0 2\n", "s/".repeat(39));
    script += &format!("stat d/{}s : ELOOP\n", "s/".repeat(40));
    compare(&script);
}

#[test]
fn last_components() {
    compare(
        "
        mkdir d 755 : ok
        mkdir d/e/ 755 : ok
        mkfile f 644 : ok
        symlink d s : ok
        symlink nothing dangling : ok
        mkdir . 755 : EEXIST
        mkdir .. 755 : EEXIST
        mkdir / 755 : EEXIST
        mkdir d/. 755 : EEXIST
        mkdir x/. 755 : ENOENT
        mkdir f 755 : EEXIST
        mkdir f/ 755 : EEXIST
        mkdir f/x 755 : ENOTDIR
        mkdir s 755 : EEXIST
        mkdir dangling 755 : EEXIST
        mkdir dangling/ 755 : EEXIST
        mkfile . 644 : EEXIST
        mkfile x/ 644 : ENOENT
        mkfile d/ 644 : EEXIST
        mkfile f/ 644 : EEXIST
        mkfile dangling 644 : EEXIST
        symlink t x/ : ENOENT
        symlink t d/ : EEXIST
        symlink t .. : EEXIST
        link f x/ : ENOENT
        link f d/ : EEXIST
        link f . : EEXIST
        link f/ x : ENOTDIR
        link d x : EPERM
        link x y : ENOENT
        link f d/e : EEXIST
        unlink . : EISDIR
        unlink .. : EISDIR
        unlink / : EISDIR
        unlink d : EISDIR
        unlink d/ : EISDIR
        unlink f/ : ENOTDIR
        unlink s/ : ENOTDIR
        unlink x/ : ENOENT
        unlink x : ENOENT
        rmdir . : EINVAL
        rmdir d/. : EINVAL
        rmdir d/e/.. : ENOTEMPTY
        rmdir .. : ENOTEMPTY
        rmdir / : EBUSY
        rmdir f : ENOTDIR
        rmdir f/ : ENOTDIR
        rmdir s : ENOTDIR
        rmdir s/ : ENOTDIR
        rmdir x : ENOENT
        rmdir d : ENOTEMPTY
        rmdir d/e/ : ok
        rmdir d : ok
        lstat s : l777 0:0 1 1
        ls / : dangling f s
        ",
    );
}

#[test]
fn opening() {
    compare(
        "
        mkdir d 755 : ok
        mkfile f 644 : ok
        symlink f s : ok
        symlink d sd : ok
        symlink new dangling : ok
        symlink d/deep to-deep : ok
        mkfifo p 644 : ok
        mksock sock 644 : ok
        open f READ : ok
        open f READ,WRITE : ok
        open x READ : ENOENT
        open f/ READ : ENOTDIR
        open d READ : ok
        open d/ READ : ok
        open d WRITE : EISDIR
        open d READ,TRUNC : EISDIR
        open f READ,DIRECTORY : ENOTDIR
        open d READ,DIRECTORY : ok
        open s READ,NOFOLLOW : ELOOP
        open s READ,NOFOLLOW,DIRECTORY : ENOTDIR
        open sd READ,NOFOLLOW,DIRECTORY : ENOTDIR
        open sd/ READ,NOFOLLOW,DIRECTORY : ok
        open sd READ,DIRECTORY : ok
        open f CREATE,EXCL,READ 644 : EEXIST
        open d CREATE,EXCL,READ 755 : EEXIST
        open s CREATE,EXCL,READ 644 : EEXIST
        open dangling CREATE,EXCL,READ 644 : EEXIST
        open dangling CREATE,NOFOLLOW,READ 644 : ELOOP
        open . CREATE,READ 644 : EISDIR
        open .. CREATE,READ 644 : EISDIR
        open / CREATE,READ 644 : EISDIR
        open . CREATE,EXCL,READ 644 : EEXIST
        open d CREATE,READ 644 : EISDIR
        open sd CREATE,READ 644 : EISDIR
        open x/ CREATE,READ 644 : EISDIR
        open f/ CREATE,READ 644 : EISDIR
        open f/x CREATE,READ 644 : ENOTDIR
        open x/y CREATE,READ 644 : ENOENT
        open dangling CREATE,READ 640 : ok
        stat new : -640 0:0 1 0
        open to-deep CREATE,WRITE 600 : ok
        stat d/deep : -600 0:0 1 0
        open only CREATE,WRITE 0 : ok
        @9 open f CREATE,WRITE 644 : EACCES
        @9 open f CREATE,READ 644 : ok
        @9 open other CREATE,READ 644 : EACCES
        open sock READ : ENXIO
        @9 open sock WRITE : EACCES
        open f CREATE,DIRECTORY,READ 644 : EINVAL
        open g CREATE,DIRECTORY,READ 644 : EINVAL
        write f TRUNC hello : ok
        cat f : hello
        write f APPEND ,world : ok
        cat f : hello,world
        write f TRUNC bye : ok
        stat f : -644 0:0 1 3
        cat d : EISDIR
        ",
    );
}

#[test]
fn a_removed_working_directory() {
    compare(
        "
        mkdir d 755 : ok
        mkdir d/e 755 : ok
        chdir d/e : ok
        rmdir /d/e : ok
        stat . : d755 0:0 0
        stat x : ENOENT
        mkdir x 755 : ENOENT
        open x CREATE,READ 644 : ENOENT
        symlink t x : ENOENT
        mkfile x 644 : ENOENT
        rename x y : ENOENT
        rename /d x : ENOENT
        link /f x : ENOENT
        ls . : ENOENT
        stat .. : ENOENT !host      # here a removed directory has no parent
        stat /d : d755 0:0 2
        chdir / : ok
        ",
    );
}
