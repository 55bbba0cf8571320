//! chmod, chown, times, sizes, and the clearing of set-id bits; extended attributes.

use crate::common::compare;

#[test]
fn chmod() {
    compare(
        "
        mkfile f 644 : ok
        chown f 1 10 : ok
        @1:10 chmod f 600 : ok
        @2:10 chmod f 777 : EPERM
        @1:10 chmod f 7777 : ok
        stat f : -7777 1:10 1 0
        @1:11 chmod f 6755 : ok
        stat f : -4755 1:10 1 0
        @1:11,10 chmod f 2755 : ok
        stat f : -2755 1:10 1 0
        @1:11 chmod f 2745 : ok
        stat f : -745 1:10 1 0
        chmod f 2755 : ok
        stat f : -2755 1:10 1 0
        mkdir d 755 : ok
        chown d 1 10 : ok
        @1:11 chmod d 3777 : ok
        stat d : d1777 1:10 2
        chmod x 644 : ENOENT
        chmod f/x 644 : ENOTDIR
        ",
    );
}

#[test]
fn chown() {
    compare(
        "
        mkfile f 644 : ok
        chown f 1 10 : ok
        @1:10 chown f 2 - : EPERM
        @1:10 chown f 1 - : ok
        @1:10 chown f 1 10 : ok
        @1:10 chown f - 11 : EPERM
        @1:10,11 chown f - 11 : ok
        @1:10 chown f - 11 : ok
        @1:10,12 chown f 2 12 : EPERM
        @2:10,11 chown f - 10 : EPERM
        @2:10 chown f - - : ok
        stat f : -644 1:11 1 0
        @1:10 chown f - 10 : ok
        chmod f 6755 : ok
        @1:10,11 chown f - 11 : ok
        stat f : -755 1:11 1 0
        chmod f 6755 : ok
        chown f 3 12 : ok
        stat f : -755 3:12 1 0
        chmod f 6745 : ok
        chown f 1 10 : ok
        stat f : -2745 1:10 1 0
        chmod f 6755 : ok
        @1:10 chown f - - : ok
        stat f : -755 1:10 1 0
        chmod f 6755 : ok
        @2:10 chown f - - : EPERM
        chown f - - : ok
        stat f : -755 1:10 1 0
        mkdir d 755 : ok
        chmod d 7777 : ok
        chown d 1 10 : ok
        stat d : d7777 1:10 2
        @1:10,11 chown d - 11 : ok
        stat d : d7777 1:11 2
        symlink nothing l : ok
        @1 lchown l 1 - : EPERM
        lchown l 1 10 : ok
        lstat l : l777 1:10 1 7
        chown l 1 10 : ENOENT
        ",
    );
}

#[test]
fn times() {
    compare(
        "
        mkfile f 666 : ok
        mkfile g 644 : ok
        @9 utimes f now now : ok
        @9 utimes f now - : EPERM
        @9 utimes f - now : EPERM
        @9 utimes f 5 5 : EPERM
        @9 utimes f now 5 : EPERM
        @9 utimes f - - : ok
        @9 utimes g now now : EACCES
        @9 utimes g 5 5 : EPERM
        @9 utimes g - - : ok
        utimes g 5 6 : ok
        chown g 9 9 : ok
        chmod g 0 : ok
        @9 utimes g 5 now : ok
        @9 utimes g now now : ok
        utimes x now now : ENOENT
        ",
    );
}

#[test]
fn sizes() {
    compare(
        "
        mkfile f 644 : ok
        mkdir d 755 : ok
        mkfifo p 666 : ok
        truncate f 100 : ok
        stat f : -644 0:0 1 100
        truncate f 0 : ok
        @9 truncate f 5 : EACCES
        truncate d 5 : EISDIR
        @9 truncate d 5 : EISDIR
        truncate p 5 : EINVAL !host          # there it is opened first, which needs a reader
        truncate f 9223372036854775808 : EFBIG !host # negative there
        truncate f/ 5 : ENOTDIR
        truncate x 5 : ENOENT
        ",
    );
}

#[test]
fn writing_takes_set_id_bits_away() {
    compare(
        "
        mkfile f 644 : ok
        chown f 1 10 : ok
        chmod f 6777 : ok
        write f TRUNC root : ok
        stat f : -6777 1:10 1 4
        @1:10 write f APPEND me : ok
        stat f : -777 1:10 1 6
        chmod f 6777 : ok
        @1:10 truncate f 3 : ok
        stat f : -777 1:10 1 3
        chmod f 6767 : ok
        @1:10 write f APPEND me : ok
        stat f : -2767 1:10 1 5
        chmod f 6767 : ok
        @2:11 write f APPEND me : ok
        stat f : -767 1:10 1 7
        chmod f 6777 : ok
        @1:10 open f WRITE,TRUNC : ok
        stat f : -777 1:10 1 0
        chmod f 6777 : ok
        truncate f 5 : ok
        stat f : -6777 1:10 1 5
        ",
    );
}

#[test]
fn extended_attributes() {
    compare(
        "
        mkfile f 644 : ok
        mkdir d 755 : ok
        mkfifo p 666 : ok
        setxattr f user.a one : ok
        getxattr f user.a : one
        setxattr f user.a two CREATE : EEXIST
        setxattr f user.b two REPLACE : ENODATA
        setxattr f user.a two REPLACE : ok
        getxattr f user.a : two
        getxattr f user.x : ENODATA
        listxattr f : user.a
        removexattr f user.a : ok
        removexattr f user.a : ENODATA
        listxattr f : ok
        @9 setxattr f user.a b : EACCES
        chmod f 600 : ok
        @9 getxattr f user.a : EACCES
        @9 listxattr f : ok
        setxattr d user.a b : ok
        setxattr p user.a b : EPERM
        getxattr p user.a : ENODATA
        removexattr p user.a : EPERM
        setxattr f trusted.a b : ok
        setxattr f user.a b : ok
        listxattr f : trusted.a user.a
        chmod f 644 : ok
        @9 listxattr f : user.a
        @9 getxattr f trusted.a : ENODATA
        @9 setxattr f trusted.a c : EPERM
        @9 removexattr f trusted.a : EPERM
        getxattr f trusted.a : b
        setxattr p trusted.a b : ok
        @9 setxattr f security.a b : EPERM
        @9 removexattr f security.a : EPERM
        @9 getxattr f security.a : ENODATA
        setxattr f nothing.a b : EOPNOTSUPP
        getxattr f nothing.a : EOPNOTSUPP
        setxattr f plain b : EOPNOTSUPP
        setxattr f user. b : EINVAL
        setxattr f '' b : ERANGE
        setxattr f user.*52 b : ERANGE
        setxattr f user.*51 b : ok
        setxattr f user.big x*65536 : ok !host      # a tmpfs has a limit of its own
        setxattr f user.big x*65537 : E2BIG
        setxattr x user.a b : ENOENT
        ",
    );
}

#[test]
fn link_counts() {
    compare(
        "
        mkdir d 755 : ok
        mkfile f 644 : ok
        link f d/g : ok
        stat f : -644 0:0 2 0
        mkdir d/e 755 : ok
        mkdir x 755 : ok
        stat d : d755 0:0 3
        stat / : d755 0:0 4
        rename d/e x/e : ok
        stat d : d755 0:0 2
        stat x : d755 0:0 3
        rename d/g f : ok
        stat f : -644 0:0 2 0
        unlink d/g : ok
        stat f : -644 0:0 1 0
        mkfile g 644 : ok
        rename g f : ok
        mkdir y 755 : ok
        rename y x/e : ok
        stat x : d755 0:0 3
        stat / : d755 0:0 4
        mkfile d/h 600 : ok
        rename d/h x/e EXCHANGE : ok
        stat d : d755 0:0 3
        stat x : d755 0:0 2
        stat x/e : -600 0:0 1 0
        stat d/h : d755 0:0 2
        rename d/h d/z : ok
        rmdir d/z : ok
        rename x d : ok
        stat / : d755 0:0 3
        ls d : e
        ",
    );
}
