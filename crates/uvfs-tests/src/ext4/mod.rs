//! ext4 images: made with mke2fs by [`recipes`], filled by [`populate`], read by uvfs and by the kernel
//! ([`snapshot`]), and damaged at random ([`mutate`]), with right checksums if need be ([`mend`]); and ones
//! with a journal to replay ([`journal`]).

pub mod command;
pub mod journal;
pub mod mend;
pub mod mutate;
pub mod populate;
pub mod recipes;
pub mod snapshot;
pub mod tools;
