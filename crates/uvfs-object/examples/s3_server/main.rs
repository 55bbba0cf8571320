//! A small S3 server in memory, to try a mount with: `cargo run -p uvfs-object --example s3_server -- DIR` serves the files
//! below DIR as the bucket `demo`, and prints how to mount it.

mod bucket;

use std::path::Path;

use bucket::{BUCKET, Bucket, KEY, SECRET};

fn fill(bucket: &Bucket, root: &Path, dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let kind = path.symlink_metadata()?.file_type();
        if kind.is_dir() {
            fill(bucket, root, &path)?;
        } else if kind.is_file()
            && let Some(key) = path.strip_prefix(root).ok().and_then(Path::to_str)
        {
            bucket.put(key, std::fs::read(&path)?);
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let bucket = Bucket::default();
    if let Some(dir) = std::env::args_os().nth(1) {
        fill(&bucket, dir.as_ref(), dir.as_ref())?;
    }
    let port = std::env::args().nth(2).and_then(|port| port.parse().ok()).unwrap_or(9000);
    let address = bucket.serve(([127, 0, 0, 1], port).into()).await?;
    println!("export AWS_ACCESS_KEY_ID={KEY} AWS_SECRET_ACCESS_KEY={SECRET}");
    println!("uvfs mount -d -o endpoint=http://{address} object:s3://{BUCKET} DIR");
    std::future::pending().await
}
