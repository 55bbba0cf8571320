//! Command lines picked by hand: each word, and the corners of each.

use crate::{ZONE, assert_same, generated};

/// Splits command lines at blanks; `␣` stands for a blank, `␤` for a newline within an argument.
fn lines(text: &str) -> Vec<Vec<Vec<u8>>> {
    let argument = |word: &str| word.replace('␣', " ").replace('␤', "\n").into_bytes();
    let line = |line: &str| line.split_whitespace().map(argument).collect();
    text.lines().filter(|l| !l.trim().is_empty()).map(line).collect()
}

fn same(text: &str) {
    let directory = generated();
    assert_same(directory.path(), lines(text), ZONE);
}

pub fn names_and_paths() {
    same(NAMES_AND_PATHS);
}

pub fn regular_expressions() {
    same(REGULAR_EXPRESSIONS);
}

pub fn types_sizes_and_numbers() {
    same(TYPES_SIZES_AND_NUMBERS);
}

pub fn permissions() {
    same(PERMISSIONS);
}

pub fn times() {
    same(TIMES);
}

pub fn operators_and_the_walk() {
    same(OPERATORS_AND_THE_WALK);
}

pub fn listings() {
    same(LISTINGS);
}

pub fn formats() {
    same(FORMATS);
}

pub fn other_zones() {
    let directory = generated();
    for zone in ["UTC", "America/St_Johns", "Asia/Kolkata", "Pacific/Apia"] {
        let text = r"
            . -printf %t␣%T+␣%Tz␣%TZ␣%Tc␣%p\n
            . -ls
            . -daystart -mtime 1
            . -newermt 2025-06-15␣12:30
        ";
        assert_same(directory.path(), lines(text), zone);
    }
}

pub fn refused_words_are_named() {
    use uvfs_index::find::Expression;
    for (line, named) in [
        (
            &["-exec", "rm", "{}", ";"][..],
            "-exec runs programs, which the index does not do: pipe -print0 to xargs -0",
        ),
        (&["-delete"], "pipe -depth -print0 to xargs -0"),
        (&["-fprint", "x"], "redirect the output"),
        (&["-readable"], "-readable asks what a process may do"),
        (&["-L", "."], "-L follows symbolic links"),
        (&["-xtype", "f"], "-xtype follows symbolic links"),
        (&["-fstype", "ext4"], "-fstype asks for a file system's type"),
        (&["-newerBm", "x"], "-newerBm asks for the time of birth"),
        (&["-printf", "%F"], "%F of -printf shows the type of the file system"),
        (&["-printf", "%Bc"], "%B of -printf shows the time of birth"),
        (&["-nmae", "x"], "-nmae is no word of find: did you mean -name?"),
        (&["-maxdpeth", "1"], "did you mean -maxdepth?"),
        (&["-wxyz"], "-wxyz is no word of find"),
        (&["-regex", r"\(a\)\1"], "back reference"),
        (&["-regextype", "awk", "-regex", "a"], "-regextype awk is not supported"),
        (&["-regextype", "perl", "-regex", "a"], "-regextype knows no \"perl\""),
        (&["-printf", "%9999p"], "a width in -printf's format is above 4095"),
        (&["-name", "x", "y"], "y stands behind the expression's beginning"),
        (&["-name"], "-name needs an operand"),
        (&["-size", "x"], "-size needs a number"),
    ] {
        let error = Expression::parse(line).expect_err("a refusal").to_string();
        assert!(error.contains(named), "{line:?}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

pub fn a_terminal_gets_no_control_characters() {
    use uvfs_index::find::{Expression, FindContext, FindPrinter, search};
    let directory = generated();
    let host = crate::host::Host { directory: directory.path().to_owned() };
    let shown = |args: &[&str]| {
        let context = FindContext::of_this_process();
        let expression = Expression::parse_in(args, &context).expect("an expression");
        let mut printer = FindPrinter::new(Vec::new(), true, &context);
        search(&expression, &host, host.starts(expression.starting_points()), &mut printer).expect("memory");
        printer.into_inner()
    };
    assert_eq!(shown(&["names", "-name", "new*"]), b"names/new?line\n");
    assert_eq!(shown(&["names", "-name", "caf*", "-printf", "%f\n"]), "café\n".as_bytes());
    assert_eq!(shown(&["names", "-name", "latin*", "-printf", "[%10f]"]), b"[latin?.txt]");
    assert_eq!(shown(&["names", "-name", "new*", "-print0"]), b"names/new\nline\0");
}

pub fn a_search_says_what_it_needs() {
    use uvfs_index::find::Expression;
    let needs =
        |args: &[&str]| Expression::parse(args).expect("an expression").needs_atime().map(str::to_owned);
    assert_eq!(needs(&["-mtime", "1", "-printf", "%t"]), None);
    assert_eq!(needs(&["-atime", "1"]).as_deref(), Some("-atime"));
    assert_eq!(needs(&["-neweram", "/"]).as_deref(), Some("-neweram"));
    assert_eq!(needs(&["-printf", "%A@"]).as_deref(), Some("-printf"));
    let expression = Expression::parse(&["-printf", "%q"]).expect("an expression");
    assert_eq!(expression.warnings().len(), 1);
    assert!(!expression.prints_by_default());
    assert_eq!(expression.starting_points(), [b"."]);
}

const NAMES_AND_PATHS: &str = r"
    .
    . -name *.rs
    . -name main.rs
    . -iname *.rs
    . -iname MAIN.RS
    . -name .*
    . -name *
    . -name ?
    . -name ??
    . -name [a-z]*
    . -name [!a-z]*
    . -name [^a-z]*
    . -iname [A-C]*
    . -name [[:upper:]]*
    . -iname [[:upper:]]*
    . -name *[[:digit:]]
    . -name *[[:space:]]*
    . -name *[[:punct:]]*
    . -name *[[:cntrl:]]*
    . -name [[:nonsense:]]*
    . -name [[:alpha:]-z]*
    . -name [[=a=]]*
    . -name [[.a.]]*
    . -name []a]*
    . -name [a-]*
    . -name [a
    . -name \[brackets\]
    . -name [[]*
    . -name *\\*
    . -name *\
    . -name [\]]*
    . -name [\
    . -name []-a]*
    . -name [z-a]*
    . -name *a*b*
    . -name a*b*c
    . -name *␤*
    . -name a?b
    . -name *caf*
    . -name star\*
    . -name what\?
    . -name -dash
    . -name names/plain
    . -name .
    names/ -name names
    names// -name names
    ./ -name .
    . -path ./names/*
    . -path *level3/*
    . -path ./deep
    . -path ./de*rs
    . -ipath *LEVEL*MAIN*
    . -wholename *deep*
    . -iwholename *DEEP*
    names -path ./names/plain
    . -lname *
    . -lname *.rs
    . -lname now*
    . -ilname NOW*
    . -lname *␤*
    . -name * -name *.rs -name m*
    ";

const REGULAR_EXPRESSIONS: &str = r"
    . -regex .*rs
    . -regex .*/main\.rs
    . -iregex .*/MAIN\.RS
    . -regex ./names/a.b
    . -regex .*/a+b
    . -regex .*/a\+b
    . -regex .*/a?b
    . -regex .*/\(aa\|ab\)
    . -regex .*/a{2}
    . -regex .*/a\{2\}
    . -regex .*/{2}
    . -regex .*/[[:alpha:]]*
    . -regex .*/[]a]*
    . -regex .*/[^/]*
    . -regex .*/\w+
    . -regex .*/\W.*
    . -regex .*\bplain\b
    . -regex .*/\<a.*
    . -regex .*␤.*
    . -regex .*/\(*\)
    . -regex *
    . -regex .*/caret^
    . -regex .*/caret\b^
    . -regex ^^./names
    . -regex ^\`./names
    . -regex ^*./names
    . -regex .*/dollar$$
    . -regex .*/dollar$
    . -regex .*/dollar\$
    . -regex .*\(
    . -regex \(
    . -regex [a
    . -regex .*\
    . -regex .*\)
    . -iregex .*/[A-B]*
    . -iregex .*/[Z-a]*
    . -iregex .*/\p.*
    . -iregex .*/[[:upper:]]*
    . -regextype posix-extended -iregex .*/[[:upper:]]+
    . -regextype posix-extended -regex .*/a{2}
    . -regextype posix-extended -regex .*/a{2,}
    . -regextype posix-extended -regex .*/a{,1}b
    . -regextype posix-extended -regex .*/(a|b)+c?
    . -regextype posix-extended -regex .*/[[:alpha:]]+
    . -regextype posix-extended -regex .*/a\{2\}
    . -regextype posix-extended -regex *a
    . -regextype posix-extended -regex .*/a|*b
    . -regextype posix-extended -regex a{3,1}
    . -regextype posix-extended -regex .*/[z-a]
    . -regextype posix-extended -regex .*/(paren)
    . -regextype posix-extended -regex .*/\(paren\)
    . -regextype posix-extended -regex ((
    . -regextype posix-extended -regex .*/paren)
    . -regextype posix-extended -regex .*new$.line
    . -regextype posix-extended -regex .*new.^line
    . -regextype posix-egrep -regex .*/(a|b)+
    . -regextype egrep -regex *./names
    . -regextype egrep -regex {2}
    . -regextype egrep -regex .*/a{x
    . -regextype egrep -regex .*/{2}
    . -regextype egrep -regex .*/a{}
    . -regextype egrep -regex .*/a{,}
    . -regextype egrep -regex .*/a{2,1}
    . -regextype egrep -regex .*/a{1,2,3}
    . -regextype egrep -regex .*/a{1x}
    . -regextype egrep -regex .*/a{2
    . -regextype egrep -regex .*/a{x*
    . -regextype egrep -regex .*/a{70000}
    . -regextype posix-extended -regex .*/a{}
    . -regextype posix-extended -regex .*/a{,}
    . -regextype posix-extended -regex .*/a{x}
    . -regextype posix-basic -regex .*/a\{,1\}b
    . -regextype posix-basic -regex .*/a\{1}
    . -regextype posix-basic -regex .*/a\{2\}
    . -regextype posix-basic -regex .*/a\+
    . -regextype posix-basic -regex .*/\(aa\)*b*
    . -regextype posix-basic -regex a**
    . -regextype sed -regex .*/a\?b
    . -regextype grep -regex ./names/aa␤./names/ab
    . -regextype ed -regex .*/a.*
    . -regextype findutils-default -regex ./names/new.line
    . -regextype emacs -regex ./names/new.line
    . -regex .*/aa -regextype posix-extended -regex .*/a{2} -o -regex .*/ab
    ";

const TYPES_SIZES_AND_NUMBERS: &str = r"
    . -type f
    . -type d
    . -type l
    . -type p
    . -type s
    . -type b
    . -type c
    . -type f,d,l
    . -type b,c,p,s
    . -type fd
    . -type f,
    . -type f,f
    . -type x
    . -size 0
    . -size 1
    . -size +1
    . -size -2
    . -size 1c
    . -size -513c
    . -size +1023c -size -1026c
    . -size 1k
    . -size +1k
    . -size 4k
    . -size 512w
    . -size 2b
    . -size 1M
    . -size +1M
    . -size -1M
    . -size -1G
    . -size 1G
    . -size ++1
    . -size +␣1
    . -size 1x
    . -size k
    . -size -
    . -size 99999999999999999999
    . -empty
    . -empty -type f
    . -empty -type d
    . ! -empty
    . -links 1
    . -links +1
    . -links -2
    . -links 3
    . -links x
    . -inum +0
    . -inum 1
    . -uid 0
    . -uid +0
    . -uid -2
    . -gid 1
    . -gid +100
    . -user root
    . -user 54321
    . -user daemon
    . -user nobodyatall
    . -group root
    . -group 54322
    . -group daemon
    . -group nobodyatall
    . -nouser
    . -nogroup
    . ! -nouser ! -nogroup
    . -samefile linked
    . -samefile kinds/link0
    . -samefile nowhere
    ";

const PERMISSIONS: &str = r"
    . -perm 644
    . -perm 0644
    . -perm -644
    . -perm /222
    . -perm -222
    . -perm /0
    . -perm /000
    . -perm -000
    . -perm 0
    . -perm 7777
    . -perm -4000
    . -perm /7000
    . -perm 00000644
    . -perm 8
    . -perm 17777
    . -perm +111
    . -perm +x
    . -perm u=rw,g=r,o=r
    . -perm u=rwx,go=rx
    . -perm -u+w
    . -perm -u+w,g+w
    . -perm /u+w,g+w
    . -perm -a+x
    . -perm /a+x
    . -perm -u+s
    . -perm /ug+s
    . -perm -o+t
    . -perm -+t
    . -perm a+rX
    . -perm -a+X
    . -perm /X
    . -perm /+X
    . -perm u=rw,g=u
    . -perm -g=u
    . -perm u=rw,go=u-w
    . -perm =644
    . -perm -=600
    . -perm u=644
    . -perm u+r+w-x
    . -perm -u+r,u-r
    . -perm u
    . -perm u=rwz
    . -perm ,
    . -perm u=r,
    . -perm -u=
    . -perm s
    . -perm =s
    . -perm -g=s
    . -perm -u=s
    ";

const TIMES: &str = r"
    . -mtime 0
    . -mtime 1
    . -mtime -1
    . -mtime +0
    . -mtime +1
    . -mtime -8
    . -mtime 7
    . -mtime +30
    . -mtime -0.5
    . -mtime 0.25
    . -mtime +0.5
    . -mtime 1e1
    . -mtime x
    . -mtime --3
    . -mtime -1000000
    . -mtime +99999999999999
    . -mmin -1
    . -mmin 1
    . -mmin 2
    . -mmin 3
    . -mmin +2
    . -mmin -61
    . -mmin 1.5
    . -mmin --1
    . -ctime 0
    . -ctime -1
    . -ctime +0
    . -cmin -1000
    . -cmin +1000
    . -type f -atime 0
    . -type f -atime -3
    . -type f -atime +3
    . -type f -amin -1000
    . -type f -amin +10000
    . -daystart -mtime 0
    . -daystart -mtime 1
    . -daystart -mtime -2
    . -daystart -mtime +1
    . -mtime 1 -o -daystart -mtime 1
    . -daystart
    . ! -daystart
    . -name *.rs -o -daystart
    . -daystart -name *.rs
    . ( -daystart )
    . -daystart -mmin -100
    . -daystart -mmin +1440
    . -newer linked
    . -newer sizes/full512
    . -newer kinds/link0
    . -newer nowhere
    . ! -newer linked
    . -type f -anewer sizes/full4096
    . -cnewer linked
    . -newermm linked
    . -newercm sizes/full0
    . -type f -neweram sizes/full1
    . -newermc linked
    . -newerma linked
    . -newermt 2020-01-01
    . -newermt 2025-06-15␣12:30
    . -newermt 2025-06-15T12:30:10
    . -newermt 2025-06-15␣12:30:10.5
    . -newermt 2025-01-15␣12:30␣UTC
    . -newermt 2025-01-15T12:30:00Z
    . -newermt 2025-01-15␣12:30+05:30
    . -newermt 2025-01-15␣12:30␣-0800
    . -newermt @1700000000
    . -newermt @1700000000.5
    . -newermt @-5
    . -newermt @100
    . -newermt now
    . -newermt yesterday
    . -newermt tomorrow
    . -newermt 2␣days␣ago
    . -newermt 1␣week␣ago
    . -newermt 3␣hours␣ago
    . -newermt 90␣minutes
    . -newermt 12:30
    . -newermt 2025-13-01
    . -newermt nonsense
    . -newerct 2020-01-01
    . -newerxm linked
    . -newermx linked
    ";

const OPERATORS_AND_THE_WALK: &str = r"
    names dirs
    names/
    names//
    ./names ../nowhere
    . nowhere
    linked
    . -true
    . -false
    . -not -type f
    . ! -type f
    . ! ! -type f
    . -type f -a -name *.rs
    . -type f -and -name *.rs
    . -type f -o -type l
    . -type f -or -type l
    . -type f -name *.rs -o -type d -name level*
    . ( -type f -o -type d ) -name *a*
    . ( ( -type f ) )
    . -type d -printf %p\0 , -name *.rs
    . -type d -print , -name *.rs -print
    . -print -o -print
    . -type f -print -o -type d -print0
    . ! ( -type f -o -type d )
    . -name *.rs -o ( -type d -a ! -name level* )
    . -name a* -prune
    . -name names -prune -o -print
    . -name names -prune -o -name *.rs
    . -prune
    . -prune -o -print
    . -depth
    . -d -name *.rs
    . -depth -name names -prune -o -print
    . -maxdepth 0
    . -maxdepth 1
    . -maxdepth 2 -type f
    . -mindepth 1
    . -mindepth 2 -maxdepth 2
    . -mindepth 3 -maxdepth 2
    . -depth -maxdepth 1
    . -depth -mindepth 2 -type d
    . -mindepth 1 -name names -prune -o -print
    . -mindepth 2 -name names -prune -o -print
    . -maxdepth 1 -o -name x
    . -maxdepth -1
    . -maxdepth x
    . -maxdepth 18446744073709551615
    . -xdev
    . -mount -type d
    / -xdev -maxdepth 2 -path /sys*
    / -xdev -maxdepth 2 -depth -path /sys*
    / -xdev -maxdepth 2 -path /dev*
    . -quit
    . -print -quit
    . -maxdepth 0 -quit -print
    . -noleaf -warn -nowarn -ignore_readdir_race
    . -type f -exec
    . -o
    . -a
    . -name x -o
    . -name x -a
    . ( -name x
    . )
    . ( )
    . -name x )
    . !
    . ! )
    . ! -o -name x
    . -name x ,
    . ,
    . -name x -o -o -name y
    . -name x foo
    . -print x
    . -bogus
    . --
    -- . -name *.rs
    -P . -name *.rs
    -O3 . -name *.rs
    -P -O1 -- names
    . -name
    . -size
    . -print0
    . -print0 -type f -print
    . -! -type f
    . -( -type f -)
    -name *.rs
    ( -type f )
    ! -type f
    ";

const LISTINGS: &str = r"
    . -ls
    . -type f -ls
    . -type l -ls
    . ! -type d -ls -name *.rs -print
    names -ls
    kinds/ -ls
    . -depth -ls
    ";

const FORMATS: &str = r"
    . -printf %p\n
    . -printf %P\n
    . -printf %f\n
    . -printf %h\n
    . -printf %H\n
    . -printf [%p][%P][%f][%h][%H]\n
    names/ -printf [%p][%P][%f][%h][%H]\n
    names// -printf [%p][%P][%f][%h][%H]\n
    ./names -printf [%p][%P][%f][%h][%H]\n
    ./ -printf [%p][%P][%f][%h][%H]\n
    ././ -maxdepth 1 -printf [%p][%P][%f][%h][%H]\n
    / -maxdepth 0 -printf [%p][%P][%f][%h][%H]\n
    // -maxdepth 0 -printf [%p][%P][%f][%h][%H]\n
    . -printf %s␣%b␣%k␣%p\n
    . -printf %S␣%p\n
    . -printf %.2S␣%10S␣%-10S|%010S␣%#S␣%+S␣%p\n
    . -printf %.0S␣%.10S␣%#.3S␣%p\n
    . -printf %d␣%p\n
    . -printf [%5d][%-5d][%05d][%+d][%␣d][%.3d][%.0d]%p\n
    . -printf %m␣%M␣%p\n
    . -printf [%#m][%6m][%06m][%-6m][%.5m][%#06m]%p\n
    . -printf %n␣%i␣%D␣%p\n
    . -printf %u␣%g␣%U␣%G␣%p\n
    . -printf [%10u][%-10g][%.2u][%10.1g]%p\n
    . -printf %y␣%l␣%p\n
    . -printf [%20l][%-20l][%.3l]%p\n
    . -printf [%20p][%-20p][%.3p][%020p][%+p][%#p]\n
    . -printf [%5s][%-5s][%05s][%.2s][%+s]%p\n
    . -printf %t␣%p\n
    . -printf %c␣%p\n
    . -type f -printf %a␣%p\n
    . -type f -printf %A@␣%Ay␣%p\n
    . -printf %T@␣%p\n
    . -printf %T+␣%p\n
    . -printf %TY-%Tm-%Td␣%TH:%TM:%TS␣%p\n
    . -printf %Ta␣%TA␣%Tb␣%TB␣%Tc␣%TC␣%Td␣%TD␣%Te␣%TE␣%p\n
    . -printf %TF␣%Tf␣%Tg␣%TG␣%Th␣%TH␣%Ti␣%TI␣%Tj␣%TJ␣%Tk␣%TK␣%p\n
    . -printf %Tl␣%TL␣%Tm␣%TM␣%Tn␣%TN␣%To␣%TO␣%Tp␣%TP␣%Tq␣%TQ␣%p\n
    . -printf %Tr␣%TR␣%Ts␣%TS␣%Tt␣%TT␣%Tu␣%TU␣%Tv␣%TV␣%Tw␣%TW␣%p\n
    . -printf %Tx␣%TX␣%Ty␣%TY␣%Tz␣%TZ␣%T+␣%T@␣%T%␣%T1␣%p\n
    . -printf [%30T+][%-30T+][%.10T+][%5TH]%p\n
    . -printf %Cc␣%C+␣%C@␣%p\n
    . -printf a\tb\101\0\x\e\q%%%q%5q\n
    . -printf \a\b\f\r\v\\\777\1234\n
    . -printf ab\cde\n
    . -printf %
    . -printf x\
    . -printf %T
    . -printf %(
    . -printf %{x
    . -printf %[x
    . -printf %-
    . -printf %5
    . -printf
    . -printf %p\0 -name *.rs -printf [%f]\n
    . -type f -printf %TZ%Tz\n
    ";
