//! Serves a host directory with fuse-backend-rs' passthrough file system, by two threads, until it is unmounted.
//!
//! ```text
//! passthrough-server SOURCE MOUNTPOINT [--entry-ttl S] [--attr-ttl S] [--handles] [--name-ttl S] [--memory BYTES]
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::passthrough::{CachePolicy, Config, PassthroughFs};
use fuse_backend_rs::transport::{FuseChannel, FuseSession};

const THREADS: usize = 2;

/// The kernel, as the store asks it to forget. The messages are those of `linux/fuse.h`.
#[cfg(feature = "converted")]
mod kernel {
    use std::fs::File;
    use std::io::{self, Write};

    use uvfs_fuse_backend::InodeHolder;

    const INVAL_ENTRY: i32 = 3;
    const PRUNE: i32 = 9;

    pub struct Kernel(pub File);

    impl Kernel {
        fn send(&mut self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
            let mut message = vec![0; 16];
            message[4..8].copy_from_slice(&code.to_ne_bytes());
            parts.iter().for_each(|part| message.extend_from_slice(part));
            let len = message.len() as u32;
            message[..4].copy_from_slice(&len.to_ne_bytes());
            self.0.write(&message).map(drop)
        }
    }

    impl InodeHolder for Kernel {
        fn prune(&mut self, inodes: &[u64]) -> io::Result<()> {
            let numbers: Vec<u8> = inodes.iter().flat_map(|inode| inode.to_ne_bytes()).collect();
            self.send(PRUNE, &[&(inodes.len() as u32).to_ne_bytes(), &[0; 12], &numbers])
        }

        fn invalidate(&mut self, parent: u64, name: &[u8]) -> io::Result<()> {
            let len = (name.len() as u32).to_ne_bytes();
            self.send(INVAL_ENTRY, &[&parent.to_ne_bytes(), &len, &[0; 4], name, &[0]])
        }
    }
}

fn serve(server: &Server<Arc<PassthroughFs>>, channel: &mut FuseChannel) {
    // Ends when the mount does.
    while let Ok(Some((reader, writer))) = channel.get_request() {
        if let Err(error) = server.handle_message(reader, writer.into(), None, None) {
            eprintln!("passthrough-server: {error}");
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (source, mountpoint) = args.next().zip(args.next()).ok_or("SOURCE MOUNTPOINT")?;
    let mut config = Config { root_dir: source, cache_policy: CachePolicy::Auto, ..Config::default() };
    while let Some(option) = args.next() {
        let mut value = || args.next().and_then(|value| value.parse::<u64>().ok()).ok_or("a number");
        match option.as_str() {
            "--entry-ttl" => config.entry_timeout = Duration::from_secs(value()?),
            "--attr-ttl" => config.attr_timeout = Duration::from_secs(value()?),
            "--handles" => config.inode_file_handles = true,
            #[cfg(feature = "converted")]
            "--name-ttl" => config.name_timeout = Some(Duration::from_secs(value()?)),
            #[cfg(feature = "converted")]
            "--memory" => config.memory_limit = value()?,
            _ => return Err(format!("{option}?").into()),
        }
    }
    let fs = Arc::new(PassthroughFs::<()>::new(config)?);
    fs.import()?;
    let mut session = FuseSession::new(Path::new(&mountpoint), "passthrough", "", false)?;
    session.mount()?;
    #[cfg(feature = "converted")]
    fs.keep_limit(kernel::Kernel(session.clone_fuse_file()?))?;
    let server = Server::new(Arc::clone(&fs));
    let mut channels = Vec::new();
    for _ in 0..THREADS {
        channels.push(session.new_channel()?);
    }
    std::thread::scope(|threads| {
        for channel in &mut channels {
            threads.spawn(|| serve(&server, channel));
        }
    });
    Ok(())
}
