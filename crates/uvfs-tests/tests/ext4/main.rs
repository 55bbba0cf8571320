//! ext2, ext3 and ext4 images made here, as uvfs reads them: whole ones, damaged ones, and ones that are refused.

mod encrypted;
mod journal;

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode};
use tempfile::TempDir;
use uvfs::{Cred, Errno, Vfs};
use uvfs_drivers::ext4::Ext4;
use uvfs_tests::ext4::mutate::{Damage, bases, try_one};
use uvfs_tests::ext4::populate::{Amount, populate};
use uvfs_tests::ext4::recipes::{RECIPES, Recipe, by_name};
use uvfs_tests::ext4::snapshot::{Depth, differences, mount, of_image};
use uvfs_tests::ext4::tools::{debugfs, e2fsck, missing, mke2fs, scratch, text};

/// Longest time for a walk through a damaged image, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether images cannot be made here; says so.
fn skipped() -> bool {
    missing().inspect(|why| eprintln!("skipped: no mke2fs: {why}")).is_some()
}

fn compare(recipes: &[Recipe]) {
    if skipped() {
        return;
    }
    assert!(!recipes.is_empty());
    let mut alone = None;
    for (seed, recipe) in recipes.iter().enumerate() {
        let dir = scratch().unwrap();
        let compared = recipe.compare(dir.path(), Amount::USUAL, seed as u64).unwrap();
        let text = compared.differences.join("\n");
        assert!(compared.differences.is_empty(), "{}:\n{text}", recipe.name);
        assert!(compared.files > 500, "{}: {} files", recipe.name, compared.files);
        alone = alone.or(compared.without_kernel);
    }
    if let Some(why) = alone {
        eprintln!("skipped: compared with what the images were made from, not with the kernel: {why}");
    }
}

fn family(prefix: &str) -> Vec<Recipe> {
    RECIPES.iter().filter(|recipe| recipe.name.starts_with(prefix)).copied().collect()
}

#[test]
fn block_maps_are_read_as_the_kernel_does() {
    compare(&[family("ext2"), family("ext3")].concat());
}

#[test]
fn extents_are_read_as_the_kernel_does() {
    compare(&family("ext4"));
}

#[test]
fn inline_data_is_read_as_the_kernel_does() {
    compare(&family("inline"));
}

#[test]
fn features_are_read_as_the_kernel_does() {
    let known = ["ext", "inline", "hash", "bigalloc", "meta-bg"];
    let rest = RECIPES.iter().filter(|recipe| !known.iter().any(|known| recipe.name.starts_with(known)));
    compare(&rest.copied().collect::<Vec<_>>());
}

#[test]
fn clusters_are_read_as_the_kernel_does() {
    compare(&family("bigalloc"));
}

#[test]
fn descriptors_in_the_groups_are_read_as_the_kernel_does() {
    compare(&family("meta-bg"));
}

#[test]
fn indices_are_read_as_the_kernel_does() {
    compare(&family("hash"));
}

/// An image of a small tree.
struct Small {
    dir: TempDir,
    image: PathBuf,
}

impl Small {
    fn new(recipe: &str) -> Self {
        let dir = scratch().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        populate(&tree, Amount::SMALL, 3).unwrap();
        let recipe = by_name(recipe).unwrap();
        let size = if recipe.block_size() > 4096 { "24M" } else { "8M" };
        let image = recipe.make(dir.path(), &tree, size, false).unwrap();
        Self { dir, image }
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.image).unwrap()
    }

    /// The number that debugfs says after the first of these words.
    fn ask(&self, request: &str, before: &str) -> u64 {
        let said = debugfs(&self.image, request).unwrap();
        let after =
            said.find(before).filter(|_| !before.is_empty()).map_or(&*said, |at| &said[at + before.len()..]);
        let digits: String = after.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("{request}: {said}"))
    }
}

fn vfs(image: Vec<u8>) -> Arc<Vfs> {
    mount(&Ext4::new("test", Box::new(image)).unwrap()).unwrap()
}

/// Reads what stands in a structure; the answer with the image as it is, and with a byte of it changed.
#[track_caller]
fn flips(image: &[u8], at: u64, places: impl Iterator<Item = usize>, look: fn(&Vfs) -> uvfs::Result<()>) {
    look(&vfs(image.to_vec())).unwrap();
    for place in places {
        let mut image = image.to_vec();
        image[at as usize + place] ^= 0x10;
        match Ext4::new("test", Box::new(image)) {
            Ok(opened) => {
                assert_eq!(look(&mount(&opened).unwrap()), Err(Errno::UCLEAN), "byte {place} at {at}")
            }
            Err(refused) => panic!("byte {place}: {refused}"),
        }
    }
}

fn stat(path: &'static str) -> impl Fn(&Vfs) -> uvfs::Result<()> {
    move |vfs| vfs.context(Cred::root()).lstat(path.as_bytes()).map(drop)
}

#[test]
fn a_changed_byte_in_what_has_a_checksum_is_found() {
    if skipped() {
        return;
    }
    let small = Small::new("ext4-1k");
    let image = small.bytes();
    let block = 1024;
    for place in (0..0x400).step_by(37) {
        let mut image = image.clone();
        image[1024 + place] ^= 0x10;
        assert!(Ext4::new("test", Box::new(image)).is_err(), "byte {place} of the superblock");
    }
    for place in 0..64 {
        let mut image = image.clone();
        image[2048 + place] ^= 0x10;
        let refused = Ext4::new("test", Box::new(image)).map(drop).unwrap_err().to_string();
        assert!(refused.contains("group") && refused.contains("e2fsck"), "byte {place}: {refused}");
    }
    let inode = debugfs(&small.image, "imap file-1000").unwrap();
    let offset = inode.rsplit_once("0x").unwrap().1.trim();
    let offset = u64::from_str_radix(offset, 16).unwrap();
    let at = small.ask("imap file-1000", "located at block") * block + offset;
    flips(&image, at, (0..256).step_by(3), |vfs| stat("/file-1000")(vfs));
    let at = small.ask("bmap deep 0", "") * block;
    flips(&image, at, (0..1024).step_by(31), |vfs| stat("/deep/d0")(vfs));
    let at = small.ask("bmap names 0", "") * block;
    flips(&image, at, (0..40).chain(1016..1024), |vfs| stat("/names/l")(vfs));
    let at = small.ask("stat sparse", "(ETB0):") * block;
    flips(&image, at, (0..1024).step_by(17), |vfs| read(vfs, "/sparse"));
    let at = small.ask("stat file-4096", "File ACL:") * block;
    flips(&image, at, (0..1024).step_by(23), |vfs| {
        vfs.context(Cred::root()).listxattr(b"/file-4096").map(drop)
    });
}

fn read(vfs: &Vfs, path: &str) -> uvfs::Result<()> {
    let context = vfs.context(Cred::root());
    let file = context.open(path.as_bytes(), uvfs::OpenFlags::READ, 0)?;
    file.read_at(&mut [0; 100], 0).map(drop)
}

#[test]
fn directories_are_a_tree_whatever_names_say() {
    if skipped() {
        return;
    }
    for recipe in ["ext4-4k", "ext2-1k", "inline-data"] {
        let small = Small::new(recipe);
        for (from, to) in [
            ("deep/d0", "deep/d0/d1/loop"),
            ("deep", "deep/self"),
            ("<2>", "deep/root"),
            ("deep/d0/d1", "empty/elsewhere"),
            ("<7>", "names/hidden"),
            ("<500>", "names/deleted"),
            ("file-1000", "names/fine"),
        ] {
            debugfs(&small.image, &format!("ln {from} {to}")).unwrap();
        }
        let vfs = vfs(small.bytes());
        let context = vfs.context(Cred::root());
        for _ in 0..2 {
            for wrong in [
                "deep/d0/d1/loop",
                "deep/self",
                "deep/root",
                "empty/elsewhere",
                "names/hidden",
                "names/deleted",
            ] {
                assert_eq!(context.lstat(wrong.as_bytes()), Err(Errno::UCLEAN), "{recipe}: {wrong}");
            }
            assert!(context.lstat(b"deep/d0/d1/d2").unwrap().is_dir());
            assert!(context.lstat(b"names/fine").unwrap().is_reg());
            assert!(context.lstat(b"deep/d0/d1/../../../names/fine").unwrap().is_reg());
        }
        let listed: HashSet<_> = context.readdir(b"deep").unwrap().into_iter().map(|e| e.name).collect();
        assert!(listed.contains(&b"self"[..]) && listed.contains(&b"d0"[..]), "{recipe}");
    }
}

/// e2fsck is content with any size of a file with inline data, and the kernel reads zeros where nothing is stored.
#[test]
fn inline_data_ends_in_zeros() {
    if skipped() {
        return;
    }
    for size in [61, 200, 9000] {
        let small = Small::new("inline-data");
        debugfs(&small.image, &format!("sif file-59 size {size}")).unwrap();
        e2fsck(&small.image, &[]).unwrap();
        let mut right = std::fs::read(small.dir.path().join("tree/file-59")).unwrap();
        right.resize(size, 0);
        let vfs = vfs(small.bytes());
        let file = vfs.context(Cred::root()).open(b"file-59", uvfs::OpenFlags::READ, 0).unwrap();
        for at in [0, 1, 58, 59, 60, size / 2, size - 1] {
            let mut found = vec![9; size];
            let len = file.read_at(&mut found, at as u64).unwrap();
            assert!(found[..len] == right[at..], "{size} bytes, from {at}");
        }
    }
}

/// Writes numbers of four bytes into an image, one after the other.
fn put(image: &mut [u8], at: u64, words: impl IntoIterator<Item = u32>) {
    for (to, word) in image[at as usize..].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

/// An index all of whose pairs have the hash of one name and lead to one block.
#[test]
fn an_index_that_goes_around_is_damage() {
    if skipped() {
        return;
    }
    let small = Small::new("ext3-1k");
    let said = debugfs(&small.image, "stats").unwrap();
    let seed = said.split("Directory Hash Seed:").nth(1).and_then(|rest| rest.split_whitespace().next());
    let said = debugfs(&small.image, &format!("dx_hash -h half_md4 -s {} wanted", seed.unwrap())).unwrap();
    let hash = said.split("0x").nth(1).unwrap().split_whitespace().next().unwrap();
    let hash = u32::from_str_radix(hash, 16).unwrap() | 1;
    let [root, node] = [0, 1].map(|block| small.ask(&format!("bmap names {block}"), "") * 1024);
    let mut image = small.bytes();
    assert_eq!(vfs(image.clone()).context(Cred::root()).lstat(b"names/wanted"), Err(Errno::NOENT));
    // One level more below the root.
    image[root as usize + 30] = 1;
    let pairs = |n: u32, to: u32| [n << 16 | n, to].into_iter().chain([hash, to].into_iter().cycle());
    put(&mut image[..root as usize + 1024], root + 32, pairs(124, 1));
    put(&mut image[..node as usize + 1024], node, [0, 1024].into_iter().chain(pairs(127, 2)));
    assert_eq!(vfs(image).context(Cred::root()).lstat(b"names/wanted"), Err(Errno::UCLEAN));
}

/// Tables of blocks that lead to one table each, 256 times, and at last to one block.
#[test]
fn a_map_that_goes_around_is_damage() {
    if skipped() {
        return;
    }
    let small = Small::new("ext2-1k");
    let tables = [0, 1, 2, 3].map(|block| small.ask(&format!("bmap file-20000 {block}"), "") as u32);
    debugfs(&small.image, &format!("sif file-1 block[TIND] {}", tables[0])).unwrap();
    debugfs(&small.image, "sif file-1 size 17179869184").unwrap();
    let mut image = small.bytes();
    for pair in tables.windows(2) {
        let at = u64::from(pair[0]) * 1024;
        put(&mut image[..at as usize + 1024], at, std::iter::repeat(pair[1]));
    }
    let vfs = vfs(image);
    let op = vfs.op(&Cred::root());
    let uvfs::Found::Node(node, _) = vfs.lookup(&op, &vfs.root(), b"file-1").unwrap() else {
        panic!("no file")
    };
    let file = vfs.open(&op, &node, uvfs::Access::READ, false).unwrap();
    let first = (12 + 256 + 65536) * 1024;
    assert_eq!(vfs.seek(&op, file, first, uvfs::Seek::Data), Ok(first));
    assert_eq!(vfs.seek(&op, file, first, uvfs::Seek::Hole), Err(Errno::UCLEAN));
    vfs.release(file);
}

/// A directory of 268 blocks: its own, and two without a name in them by turns; and one that is all holes.
#[test]
fn a_directory_that_goes_around_is_damage() {
    if skipped() {
        return;
    }
    let small = Small::new("ext2-1k");
    let [table, one, two] = [0, 1, 2].map(|block| small.ask(&format!("bmap file-20000 {block}"), "") as u32);
    for (block, turn) in (1..12).zip([one, two].into_iter().cycle()) {
        debugfs(&small.image, &format!("sif empty block[{block}] {turn}")).unwrap();
    }
    debugfs(&small.image, &format!("sif empty block[IND] {table}")).unwrap();
    for dir in ["empty", "deep"] {
        debugfs(&small.image, &format!("sif {dir} size {}", 268 * 1024)).unwrap();
    }
    let mut image = small.bytes();
    let mut fill = |block: u32, words: &mut dyn Iterator<Item = u32>| {
        let at = block as usize * 1024;
        put(&mut image[..at + 1024], at as u64, words);
        image.clone()
    };
    fill(table, &mut [two, one].into_iter().cycle());
    let without = [one, two].map(|block| fill(block, &mut [0, 1024].into_iter().chain(std::iter::repeat(0))));
    let vfs = vfs(without[1].clone());
    let context = vfs.context(Cred::root());
    for dir in ["empty", "deep"] {
        assert!(context.lstat(dir.as_bytes()).unwrap().is_dir());
        for _ in 0..2 {
            assert_eq!(context.readdir(dir.as_bytes()).map(drop), Err(Errno::UCLEAN), "{dir}");
            assert_eq!(context.lstat(format!("{dir}/none").as_bytes()), Err(Errno::UCLEAN), "{dir}");
        }
    }
    assert!(context.lstat(b"deep/d0").unwrap().is_dir());
    // Full of names, and listed a few of them at a time.
    let names = || (0..85).flat_map(|n| [11, if n < 84 { 12 } else { 16 } | 1 << 16, u32::from(b'a')]);
    let with = [one, two].map(|block| fill(block, &mut names()));
    let vfs = self::vfs(with[1].clone());
    let op = vfs.op(&Cred::root());
    let uvfs::Found::Node(dir, _) = vfs.lookup(&op, &vfs.root(), b"empty").unwrap() else {
        panic!("no directory")
    };
    let (mut cookie, mut met) = (0, 0);
    let end = loop {
        let mut batch = 0;
        let read = vfs.readdir(&op, &dir, cookie, &mut |entry| {
            (cookie, batch) = (entry.cookie, batch + 1);
            batch < 24
        });
        met += batch;
        if read.is_err() || batch == 0 {
            break read;
        }
    };
    assert_eq!(end, Err(Errno::UCLEAN), "{met} names");
}

/// The text that was written to it.
#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Write for Text {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// In a directory of dozens of blocks a search from its beginning would look at half of them for each name.
#[test]
fn names_are_found_where_the_last_one_was() {
    if skipped() {
        return;
    }
    let dir = scratch().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for n in 0..500 {
        std::fs::write(tree.join(format!("{n:060}")), "").unwrap();
    }
    for (recipe, feature) in [("ext2-1k", "dir_index"), ("ext2-1k", "-dir_index"), ("ext4-1k", "dir_index")] {
        let image = by_name(recipe).unwrap().make(dir.path(), &tree, "8M", false).unwrap();
        debugfs(&image, &format!("feature {feature}")).unwrap();
        let opened = Ext4::open(&image).unwrap();
        let vfs = mount(&opened).unwrap();
        let context = vfs.context(Cred::root());
        let names = context.readdir(b"/").unwrap();
        assert!(names.len() > 500);
        let uses = Text::default();
        opened.record(Box::new(uses.clone())).unwrap();
        for entry in &names {
            context.lstat(&entry.name).unwrap();
        }
        opened.end_of_record().unwrap();
        let lines = uses.0.lock().iter().filter(|byte| **byte == b'\n').count();
        // The directory's inode, its block, and the file's inode twice until it was checked.
        assert!(lines < 5 * names.len(), "{recipe}, {feature}: {lines} blocks for {} names", names.len());
        // In another order, and what is not there.
        let vfs = mount(&Ext4::open(&image).unwrap()).unwrap();
        let context = vfs.context(Cred::root());
        for n in (0..500).rev() {
            assert!(context.lstat(format!("{n:060}").as_bytes()).unwrap().is_reg());
        }
        assert_eq!(context.lstat(b"none"), Err(Errno::NOENT));
    }
}

fn refusal(image: &Path) -> String {
    Ext4::open(image).map(drop).unwrap_err().to_string()
}

#[test]
fn what_is_not_read_is_refused_by_name() {
    if skipped() {
        return;
    }
    let dir = scratch().unwrap();
    let image = dir.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-O", "casefold"], None, "8M").unwrap();
    let text = refusal(&image);
    assert!(text.contains("casefold") && text.contains("copy"), "{text}");
    mke2fs(&image, &["-t", "ext4", "-O", "mmp,quota,project"], None, "8M").unwrap();
    assert!(Ext4::open(&image).is_ok());
    let half = std::fs::File::options().write(true).open(&image).unwrap();
    half.set_len(5 << 20).unwrap();
    assert!(refusal(&image).contains("ends early"));
    half.set_len(100).unwrap();
    assert!(refusal(&image).contains("too short"));
    std::fs::write(&image, vec![1; 1 << 20]).unwrap();
    assert!(refusal(&image).contains("no ext2"));
    assert!(refusal(Path::new("/none")).contains("opened"));
}

/// Whether it is refused within some seconds: to open a FIFO may wait for ever.
fn refused_soon(path: PathBuf) -> Option<String> {
    let (answer, answered) = mpsc::channel();
    // Not joined where it hangs: the process ends with it.
    thread::spawn(move || answer.send(refusal(&path)));
    answered.recv_timeout(Duration::from_secs(20)).ok()
}

#[test]
fn what_is_no_file_is_refused_and_not_opened() {
    let dir = scratch().unwrap();
    let fifo = dir.path().join("fifo");
    let made = rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0);
    made.unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&fifo, &link).unwrap();
    let socket = dir.path().join("socket");
    let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, kind) in [
        (fifo, "a FIFO"),
        (link, "a FIFO"),
        (socket, "a socket"),
        ("/dev/null".into(), "a character device"),
        (dir.path().into(), "a directory"),
    ] {
        let text = refused_soon(path).expect("an answer, and no waiting");
        assert!(text.contains(kind) && text.contains("name one"), "{text}");
    }
}

/// A file system from which the feature was taken keeps the types, in the byte that is the upper half of the name's
/// length without it.
#[test]
fn types_that_are_left_over_are_no_part_of_a_length() {
    if skipped() {
        return;
    }
    for recipe in ["ext2-1k", "ext2-4k-small-inodes", "ext4-1k", "inline-data"] {
        let small = Small::new(recipe);
        let right = of_image(&Ext4::open(&small.image).unwrap()).unwrap();
        debugfs(&small.image, "feature -filetype").unwrap();
        let opened = Ext4::open(&small.image).unwrap();
        let found = of_image(&opened).unwrap();
        assert_eq!(differences(&right, &found, Depth::Everything, 3), Vec::<String>::new(), "{recipe}");
        assert_eq!(opened.faults(), 0);
    }
}

/// Implementations of the first revision never wrote the fields that later revisions have in the superblock.
#[test]
fn the_first_revision_has_no_features() {
    if skipped() {
        return;
    }
    let small = Small::new("ext2-revision-0");
    let right = of_image(&Ext4::open(&small.image).unwrap()).unwrap();
    let mut image = small.bytes();
    // First inode, size of an inode, and three words of features.
    put(&mut image, 1024 + 0x54, [u32::MAX; 5]);
    let opened = Ext4::new("test", Box::new(image)).unwrap();
    let found = of_image(&opened).unwrap();
    assert_eq!(differences(&right, &found, Depth::Everything, 3), Vec::<String>::new());
    assert!(right.len() > 100 && opened.faults() == 0);
}

/// An entry of 64 KiB, in both forms that its length has.
#[test]
fn an_entry_may_fill_a_block_of_64_kib() {
    if skipped() {
        return;
    }
    let small = Small::new("ext2-64k");
    for _ in 0..4 {
        debugfs(&small.image, "expand_dir deep").unwrap();
    }
    let places = [1, 2, 3, 4].map(|block| small.ask(&format!("bmap deep {block}"), "") * 65536);
    let mut image = small.bytes();
    let file = small.ask("stat file-1000", "Inode:") as u32;
    let forms = [(0, None), (65535, Some(b"one")), (0, Some(b"two")), (65535, None)];
    for (place, (len, name)) in places.into_iter().zip(forms) {
        let name = name.map(|name: &[u8; 3]| u32::from_le_bytes([name[0], name[1], name[2], 0]));
        let (ino, kind) = if name.is_some() { (file, 3 | 1 << 8) } else { (0, 0) };
        put(&mut image, place, [ino, len | kind << 16, name.unwrap_or(0)]);
    }
    let vfs = vfs(image);
    let context = vfs.context(Cred::root());
    let mut names: Vec<_> = context.readdir(b"deep").unwrap().into_iter().map(|e| e.name).collect();
    names.sort();
    assert_eq!(names, [&b"d0"[..], b"hard", b"one", b"two"]);
    for name in ["deep/one", "deep/two"] {
        assert_eq!(context.lstat(name.as_bytes()).unwrap().ino, file.into(), "{name}");
    }
    assert_eq!(context.lstat(b"deep/three"), Err(Errno::NOENT));
}

#[test]
fn many_threads_read_the_same() {
    if skipped() {
        return;
    }
    let small = Small::new("ext4-4k");
    let image = Ext4::open(&small.image).unwrap();
    let right = of_image(&image).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(of_image(&image).unwrap() == right));
        }
    });
    assert_eq!(image.faults(), 0);
    drop(small.dir);
}

#[test]
fn nothing_can_be_changed() {
    if skipped() {
        return;
    }
    let small = Small::new("ext4-4k");
    let vfs = vfs(small.bytes());
    let context = vfs.context(Cred::root());
    assert_eq!(context.mkdir(b"new", 0o755), Err(Errno::ROFS));
    assert_eq!(context.unlink(b"file-1"), Err(Errno::ROFS));
    assert_eq!(context.chmod(b"file-1", 0), Err(Errno::ROFS));
    assert_eq!(context.truncate(b"file-1", 0), Err(Errno::ROFS));
    let file = context.open(b"file-1", uvfs::OpenFlags::READ | uvfs::OpenFlags::WRITE, 0);
    assert_eq!(file.map(drop), Err(Errno::ROFS));
    let kernel = debugfs(&small.image, "stats").unwrap();
    let free = |statfs: uvfs::StatFs| format!("Free blocks:              {}", statfs.bfree);
    assert!(kernel.contains(&free(context.statfs(b"/").unwrap())), "{kernel} {}", text(&small.image));
}

#[test]
fn no_more_is_free_than_there_is() {
    if skipped() {
        return;
    }
    let small = Small::new("ext4-4k");
    debugfs(&small.image, "set_bg 0 free_blocks_count 2048").unwrap();
    debugfs(&small.image, "set_bg 0 checksum calc").unwrap();
    let statfs = vfs(small.bytes()).context(Cred::root()).statfs(b"/").unwrap();
    assert!(statfs.bfree == statfs.blocks && statfs.bavail < statfs.bfree, "{statfs:?}");
}

/// Where data and holes begin, as `seek` says, up to the end.
fn seams(mut seek: impl FnMut(u64, uvfs::Seek) -> Option<u64>) -> Vec<u64> {
    let (mut found, mut at) = (Vec::new(), 0);
    for what in [uvfs::Seek::Data, uvfs::Seek::Hole].into_iter().cycle() {
        let Some(next) = seek(at, what) else { break };
        found.push(next);
        at = next;
    }
    found
}

fn host_seams(file: &std::fs::File) -> Vec<u64> {
    seams(|at, what| {
        let from = match what {
            uvfs::Seek::Data => rustix::fs::SeekFrom::Data(at),
            uvfs::Seek::Hole => rustix::fs::SeekFrom::Hole(at),
        };
        rustix::fs::seek(file, from).ok()
    })
}

/// A file of nearly three TiB, or 15: one step for each hole, however long, and none for each of its blocks.
#[test]
fn holes_of_terabytes_are_a_few_steps() {
    if skipped() {
        return;
    }
    const TIB: u64 = 1 << 40;
    for (recipe, end) in [("ext2-4k-small-inodes", 3 * TIB), ("ext4-4k", 15 * TIB), ("ext2-64k", 100 * TIB)] {
        let dir = scratch().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let host = std::fs::File::create_new(tree.join("far")).unwrap();
        let places = [0, 1 << 20, 3 << 30, 5 << 30, 6 << 30, TIB + 65536, 2 * TIB, end - 65536];
        for place in places {
            std::os::unix::fs::FileExt::write_all_at(&host, &[1; 65536], place).unwrap();
        }
        let image = by_name(recipe).unwrap().make(dir.path(), &tree, "64M", false).unwrap();
        let opened = Ext4::open(&image).unwrap();
        let vfs = mount(&opened).unwrap();
        let op = vfs.op(&Cred::root());
        let uvfs::Found::Node(node, attr) = vfs.lookup(&op, &vfs.root(), b"far").unwrap() else {
            panic!("no file")
        };
        assert_eq!(attr.size, end);
        let file = vfs.open(&op, &node, uvfs::Access::READ, false).unwrap();
        let uses = Text::default();
        opened.record(Box::new(uses.clone())).unwrap();
        assert_eq!(seams(|at, what| vfs.seek(&op, file, at, what).ok()), host_seams(&host), "{recipe}");
        let mut buffer = vec![9; 1 << 20];
        for place in [TIB, end / 2 - 12345, end - (1 << 20)] {
            let mut right = vec![8; 1 << 20];
            assert_eq!(vfs.read(&op, file, place, &mut buffer), Ok(1 << 20));
            std::os::unix::fs::FileExt::read_exact_at(&host, &mut right, place).unwrap();
            assert!(buffer == right, "{recipe}: at {place}");
        }
        vfs.release(file);
        opened.end_of_record().unwrap();
        let lines = uses.0.lock().iter().filter(|byte| **byte == b'\n').count();
        assert!(lines < 300, "{recipe}: {lines} blocks");
    }
}

/// Tables full of zeros, of which one leads to another 256 times: as damage they are found out, and not gone through.
#[test]
fn a_map_of_empty_tables_that_goes_around_ends() {
    if skipped() {
        return;
    }
    let small = Small::new("ext2-1k");
    let tables = [0, 1, 2].map(|block| small.ask(&format!("bmap file-20000 {block}"), "") as u32);
    debugfs(&small.image, &format!("sif file-1 block[TIND] {}", tables[0])).unwrap();
    debugfs(&small.image, "sif file-1 size 17179869184").unwrap();
    let mut image = small.bytes();
    for (table, to) in tables.into_iter().zip([tables[1], tables[2], 0]) {
        let at = u64::from(table) * 1024;
        put(&mut image[..at as usize + 1024], at, std::iter::repeat(to));
    }
    let opened = Ext4::new("test", Box::new(image)).unwrap();
    let vfs = mount(&opened).unwrap();
    let op = vfs.op(&Cred::root());
    let uvfs::Found::Node(node, _) = vfs.lookup(&op, &vfs.root(), b"file-1").unwrap() else {
        panic!("no file")
    };
    let file = vfs.open(&op, &node, uvfs::Access::READ, false).unwrap();
    let uses = Text::default();
    opened.record(Box::new(uses.clone())).unwrap();
    assert_eq!(vfs.seek(&op, file, 1024, uvfs::Seek::Data), Err(Errno::UCLEAN));
    vfs.release(file);
    opened.end_of_record().unwrap();
    let lines = uses.0.lock().iter().filter(|byte| **byte == b'\n').count();
    // Three tables a step, and no more steps than twice as many as the image has blocks.
    assert!(lines <= 3 * 2 * 8192 + 10, "{lines} blocks");
}

#[test]
fn damaged_images_end_in_errors() {
    if skipped() {
        return;
    }
    let dir = scratch().unwrap();
    let bases = bases(dir.path()).unwrap();
    for how in [Damage::Anywhere, Damage::Mended] {
        let (mut whole, mut met) = (0, 0);
        for seed in 0..200 {
            let (seen, _) = try_one(&bases, seed, how, LIMIT).unwrap();
            whole += u64::from(!seen.refused);
            met += u64::from(!seen.errors.is_empty());
        }
        // Else it is not the damage that is tested.
        assert!(whole > 100 && met > 40, "{how:?}: {whole} were read, {met} met damage");
    }
}

/// A whole image stays as it is: the sums are those that e2fsprogs wrote.
#[test]
fn checksums_that_are_made_right_are_right() {
    if skipped() {
        return;
    }
    let dir = scratch().unwrap();
    let bases = bases(dir.path()).unwrap();
    for base in &bases {
        let mut image = base.image.clone();
        base.map.mend(&mut image);
        let place = image.iter().zip(&base.image).position(|(one, two)| one != two);
        assert_eq!(place, None, "{}", base.name);
        assert!(base.map.parts.iter().flatten().count() > 100, "{}", base.name);
    }
}
