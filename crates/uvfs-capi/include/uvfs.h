/* The uvfs dentry and inode cache for servers in C. Made by cbindgen from crates/uvfs-capi; do not edit. */

#ifndef UVFS_H
#define UVFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

/*
 For `uvfs_reserve`: a name only (link, rename).
 */
#define UVFS_ROOM_NAME 0

/*
 A name and an inode.
 */
#define UVFS_ROOM_NODE 1

/*
 A name and a directory.
 */
#define UVFS_ROOM_DIR 2

/*
 A lookup's result: the name leads to the node.
 */
#define UVFS_HIT 1

/*
 There is certainly no such name.
 */
#define UVFS_NEGATIVE 2

/*
 The cache does not know. The caller has the ticket, asks the back end, and ends the ticket.
 */
#define UVFS_MISS 3

/*
 Fields of `uvfs_update`.
 */
#define UVFS_SIZE 1

/*
 Permission bits; the type stays.
 */
#define UVFS_MODE 2

/*
 Hard links.
 */
#define UVFS_NLINK 4

/*
 Owner.
 */
#define UVFS_UID 8

/*
 Group.
 */
#define UVFS_GID 16

/*
 Units of 512 bytes.
 */
#define UVFS_BLOCKS 32

/*
 Last access.
 */
#define UVFS_ATIME 64

/*
 Last change of the content.
 */
#define UVFS_MTIME 128

/*
 Last change of the inode.
 */
#define UVFS_CTIME 256

/*
 The node id of a superblock's root, as in FUSE.
 */
#define UVFS_ROOT 1

/*
 A TTL: until the library is notified of a change.
 */
#define UVFS_FOREVER UINT64_MAX

/*
 A question to the back end about an inode without a name; see `uvfs_found_number`.
 */
struct uvfs_asked;

/*
 A balancing thread.
 */
struct uvfs_balancer;

/*
 A cache.
 */
struct uvfs_cache;

/*
 A reference to a node: it and its data stay until `uvfs_put`.
 */
struct uvfs_hold;

/*
 A listing that has begun.
 */
struct uvfs_listing;

/*
 The exclusive right to change one name. Order: the rename lock, then name locks, two of them by
 `uvfs_lock_names` only.
 */
struct uvfs_lock;

/*
 A superblock's rename lock: hold it to move a directory to another parent.
 */
struct uvfs_rename_lock;

/*
 A file system in a cache.
 */
struct uvfs_superblock;

/*
 The exclusive right to ask the back end about a name. Threads that look the name up meanwhile wait for it.
 */
struct uvfs_ticket;

/*
 The client that holds nodes, mostly a kernel. The calls run in one thread of the library, which holds no lock,
 so they may wait. They return 0 or a negative errno.
 */
struct uvfs_holder {
  /*
   The first argument of each call.
   */
  void *context;
  /*
   FUSE_NOTIFY_PRUNE: forget these nodes if they are unused. -ENOSYS or -EINVAL: not supported, so names are
   invalidated. NULL: not supported. The array is the library's, until the call returns.
   */
  int (*prune)(void *context, const uint64_t *nodes, size_t count);
  /*
   FUSE_NOTIFY_INVAL_ENTRY: look the name up again, and forget its node if it is unused. -ENOENT, -ENOTDIR,
   -EBUSY, -ENOTEMPTY, -EAGAIN and -EINTR pass the name over. After any other error the client is not asked
   again. The name is the library's, until the call returns.
   */
  int (*invalidate)(void *context, uint64_t dir, const char *name);
  /*
   Whether requests are pending in the directory `dir`; with `for_ever`, whether one may wait for ever. NULL:
   never.
   */
  bool (*is_waited_in)(void *context, uint64_t dir, bool for_ever);
};

/*
 A destructor of the server's data.
 */
typedef void (*uvfs_destroy)(void *data);

/*
 Sizes of a cache. All zero: the defaults.
 */
struct uvfs_config {
  /*
   Inodes that address space is reserved for. 0: 134 million.
   */
  uint32_t max_inodes;
  /*
   The most negative entries. 0: in proportion to the names.
   */
  uint32_t max_negative;
  /*
   Bytes that may be committed. 0: no limit.
   */
  uint64_t memory_limit;
  /*
   Bytes that the server's data of each inode takes (malloc gives no fewer than 32). They count in the limit. 0: the
   data is not counted.
   */
  uint32_t data_bytes;
  /*
   Called exactly once for the data of each inode (not for NULL), when nothing holds the inode any more: in any
   thread, inside any call. It must neither wait for another thread nor call the library. NULL: none.
   */
  uvfs_destroy destroy;
};

/*
 Current figures.
 */
struct uvfs_counters {
  /*
   Inodes in use.
   */
  uint64_t inodes;
  /*
   Names in use, negative ones included.
   */
  uint64_t names;
  /*
   Negative names in use.
   */
  uint64_t negative;
  /*
   Bytes committed.
   */
  uint64_t bytes;
  /*
   The most that `bytes` may be; 0: no limit.
   */
  uint64_t limit;
  /*
   Names evicted.
   */
  uint64_t evicted;
};

/*
 A point in time.
 */
struct uvfs_time {
  /*
   Seconds since 1970; the cache holds the years 1901 to 2446.
   */
  int64_t sec;
  /*
   Nanoseconds.
   */
  uint32_t nsec;
};

/*
 Attributes of an inode. `uvfs_attr_of` and `uvfs_stat_of` convert from and to `struct stat`.
 */
struct uvfs_attr {
  /*
   Inode number. It and the type identify the inode within its superblock.
   */
  uint64_t ino;
  /*
   Bytes.
   */
  uint64_t size;
  /*
   Units of 512 bytes.
   */
  uint64_t blocks;
  /*
   Last access.
   */
  struct uvfs_time atime;
  /*
   Last change of the content.
   */
  struct uvfs_time mtime;
  /*
   Last change of the inode.
   */
  struct uvfs_time ctime;
  /*
   Type and permission bits.
   */
  uint32_t mode;
  /*
   Hard links.
   */
  uint32_t nlink;
  /*
   Owner.
   */
  uint32_t uid;
  /*
   Group.
   */
  uint32_t gid;
  /*
   Device number of a device node.
   */
  uint32_t rdev;
};

/*
 The back end's answer: an inode, and the server's data for it.
 */
struct uvfs_answer {
  /*
   Attributes.
   */
  struct uvfs_attr attr;
  /*
   How long the name is trusted, in milliseconds, or UVFS_FOREVER. 0: it is not cached.
   */
  uint64_t name_ttl;
  /*
   How long the attributes are trusted.
   */
  uint64_t attr_ttl;
  /*
   The server's data, or NULL. The library owns it once a call took the answer, whatever that call returns
   but -EINVAL. An inode that is cached already keeps its own data, and this is destroyed.
   */
  void *data;
};

/*
 A name or a path, ended by a zero byte.
 */
typedef const char *uvfs_name;

/*
 A node, copied.
 */
struct uvfs_entry {
  /*
   The node id: FUSE's `ino`. 1 is the root.
   */
  uint64_t node;
  /*
   False: the attributes have expired. Ask the back end, and call `uvfs_refresh`.
   */
  bool trusted;
  /*
   The attributes.
   */
  struct uvfs_attr attr;
};

/*
 A buffer of the caller.
 */
typedef char *uvfs_buffer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Start the thread for the client of `superblock`. It sleeps until memory runs short of the limit. -EINVAL if the
 superblock is not of this cache.
 */
int uvfs_balance_start(const struct uvfs_cache *cache,
                       const struct uvfs_superblock *superblock,
                       const struct uvfs_holder *holder,
                       struct uvfs_balancer **balancer);

/*
 End the thread. Returns when no call runs any more, so it must not be called from one.
 */
void uvfs_balance_stop(struct uvfs_balancer *balancer);

/*
 Make a cache. `config`: NULL for the defaults.
 */
int uvfs_cache_new(const struct uvfs_config *config, struct uvfs_cache **cache);

/*
 Free a cache, once its superblocks and all other handles are gone.
 */
void uvfs_cache_free(struct uvfs_cache *cache);

/*
 Set the memory limit in bytes (0: none), and evict down to it as far as possible.
 */
int uvfs_set_memory_limit(const struct uvfs_cache *cache, uint64_t bytes);

/*
 Figures of a cache.
 */
int uvfs_get_counters(const struct uvfs_cache *cache, struct uvfs_counters *counters);

/*
 Add a file system with its root, which has the node id 1 in it. `watched`: the server reports every change that
 others make (`uvfs_name_changed`, `uvfs_inode_changed`), and UVFS_FOREVER holds until then. -ENOTDIR: the root is
 no directory.
 */
int uvfs_superblock_add(const struct uvfs_cache *cache,
                        bool watched,
                        const struct uvfs_answer *root,
                        struct uvfs_superblock **superblock);

/*
 Remove a file system: its names, its root, and all lookups that its client has not forgotten.
 */
void uvfs_superblock_remove(struct uvfs_superblock *superblock);

/*
 Others have changed a name in the directory whose inode number is `dir`. Call this after the change. Returns 1
 if the directory is cached, else 0.
 */
int uvfs_name_changed(const struct uvfs_superblock *superblock,
                      uint64_t dir,
                      uvfs_name name);

/*
 Others have changed the inode with this number and the type bits of `mode`; with `content`, its content too.
 Returns 1 if it is cached, else 0.
 */
int uvfs_inode_changed(const struct uvfs_superblock *superblock,
                       uint64_t ino,
                       uint32_t mode,
                       bool content);

/*
 Reports of changes were lost: nothing cached of a watched superblock is trusted before the back end was asked.
 */
int uvfs_all_suspect(const struct uvfs_superblock *superblock);

/*
 Lock a name of the directory `dir`. Waits for others that ask about the name or change it.
 */
int uvfs_lock_name(const struct uvfs_superblock *superblock,
                   uint64_t dir,
                   uvfs_name name,
                   struct uvfs_lock **lock);

/*
 Lock two names, in the one order that all callers use; for a rename. They may be the same.
 */
int uvfs_lock_names(const struct uvfs_superblock *superblock,
                    uint64_t from_dir,
                    uvfs_name from_name,
                    uint64_t to_dir,
                    uvfs_name to_name,
                    struct uvfs_lock **from,
                    struct uvfs_lock **to);

/*
 Unlock a name without a change, and give back what was reserved.
 */
void uvfs_unlock(struct uvfs_lock *lock);

/*
 The cache's knowledge of a locked name: UVFS_HIT (with `entry`), UVFS_NEGATIVE or UVFS_MISS. On a hit the client
 holds the node `lookups` times more. `entry` may be NULL.
 */
int uvfs_locked_known(struct uvfs_lock *lock,
                      uint64_t lookups,
                      struct uvfs_entry *entry);

/*
 `uvfs_ticket_found` for a caller that keeps the lock.
 */
int uvfs_locked_found(struct uvfs_lock *lock,
                      const struct uvfs_answer *answer,
                      uint64_t lookups,
                      struct uvfs_entry *entry);

/*
 Reserve memory (UVFS_ROOM_NAME, _NODE or _DIR) before the back end is asked for the change. The change cannot
 fail then. -ENOENT: the directory is being removed.
 */
int uvfs_reserve(struct uvfs_lock *lock,
                 int room);

/*
 Before the back end removes or replaces the directory `node`, which the locked name leads to: it gets no entries
 from now on. -ENOTEMPTY: it has some. -EBUSY: it is the root. Unlocking allows entries again. Nothing for other
 types.
 */
int uvfs_begin_removal(const struct uvfs_superblock *superblock,
                       struct uvfs_lock *lock,
                       uint64_t node);

/*
 Ends a lock: the back end has made a new inode under this name. The client holds it `lookups` times more. `entry`
 may be NULL.
 */
int uvfs_create(struct uvfs_lock *lock,
                const struct uvfs_answer *answer,
                uint64_t lookups,
                struct uvfs_entry *entry);

/*
 Ends a lock: the back end has given this name to `node` too. -EXDEV: the node is of another superblock. -EPERM: it
 is a directory.
 */
int uvfs_link(const struct uvfs_superblock *superblock,
              struct uvfs_lock *lock,
              uint64_t node,
              uint64_t name_ttl);

/*
 Ends a lock: the back end has removed the name. For a directory, call `uvfs_begin_removal` before.
 */
int uvfs_remove(struct uvfs_lock *lock);

/*
 Ends two locks: the back end has given the name of `from` to `to`, and replaced what `to` led to. If that was a
 directory, call `uvfs_begin_removal` on `to` before. -EXDEV: they are of two superblocks.
 */
int uvfs_rename(struct uvfs_lock *from,
                struct uvfs_lock *to);

/*
 Take the rename lock. Waits for others that have it.
 */
int uvfs_lock_renames(const struct uvfs_superblock *superblock, struct uvfs_rename_lock **lock);

/*
 Give the rename lock back.
 */
void uvfs_unlock_renames(struct uvfs_rename_lock *lock);

/*
 Whether `node` is `ancestor` or lies below it: 1 or 0. Ask this with the rename lock, before a directory moves.
 */
int uvfs_is_below(const struct uvfs_superblock *superblock,
                  uint64_t node,
                  uint64_t ancestor);

/*
 Call this before the back end is asked for the names in `dir`.
 */
int uvfs_listing_begin(const struct uvfs_superblock *superblock,
                       uint64_t dir,
                       struct uvfs_listing **listing);

/*
 The directory has this name, and it leads to this inode. Cached unless a name in the directory changed since the
 listing began. The client holds the node `lookups` times more. `entry` may be NULL. Waits for the holder of
 the name's lock, so the caller has none.
 */
int uvfs_listing_found(const struct uvfs_listing *listing,
                       uvfs_name name,
                       const struct uvfs_answer *answer,
                       uint64_t lookups,
                       struct uvfs_entry *entry);

/*
 Ends a listing of which every name was reported. Returns 1 if nothing changed since it began: the directory is
 complete then, so a miss there is a certain absence, for `listing_ttl` milliseconds. Returns 0 otherwise.
 */
int uvfs_listing_complete(struct uvfs_listing *listing,
                          uint64_t listing_ttl);

/*
 Ends a listing that was not read to its end.
 */
void uvfs_listing_drop(struct uvfs_listing *listing);

/*
 Look a name up in the directory `dir`, and wait while another thread asks about it. On a hit the client holds
 the node `lookups` times more (1 for a FUSE reply), until `uvfs_forget`. Returns UVFS_HIT (with `entry`),
 UVFS_NEGATIVE, or UVFS_MISS (with `ticket`). A thread that has a ticket or a name lock must not wait here:
 `uvfs_try_lookup`. Errors: those that another thread gave to `uvfs_ticket_fail`.
 */
int uvfs_lookup(const struct uvfs_superblock *superblock,
                uint64_t dir,
                uvfs_name name,
                uint64_t lookups,
                struct uvfs_entry *entry,
                struct uvfs_ticket **ticket);

/*
 `uvfs_lookup` that never waits. -EAGAIN: another thread asks about the name, or changes it.
 */
int uvfs_try_lookup(const struct uvfs_superblock *superblock,
                    uint64_t dir,
                    uvfs_name name,
                    uint64_t lookups,
                    struct uvfs_entry *entry,
                    struct uvfs_ticket **ticket);

/*
 Ends a ticket: the name leads to this inode. It is cached unless the directory changed meanwhile. The client
 holds the node `lookups` times more. `entry` may be NULL. -ENOMEM: the data was destroyed.
 */
int uvfs_ticket_found(struct uvfs_ticket *ticket,
                      const struct uvfs_answer *answer,
                      uint64_t lookups,
                      struct uvfs_entry *entry);

/*
 Ends a ticket: there is no such name. That is trusted for `name_ttl` milliseconds.
 */
int uvfs_ticket_absent(struct uvfs_ticket *ticket, uint64_t name_ttl);

/*
 Ends a ticket: the back end failed. All threads that wait for this name get -`error` (a positive errno).
 */
int uvfs_ticket_fail(struct uvfs_ticket *ticket,
                     int error);

/*
 Ends a ticket without an answer: one of the threads that wait gets the next ticket.
 */
void uvfs_ticket_drop(struct uvfs_ticket *ticket);

/*
 The cached attributes of a node. Returns 1 if they are trusted. Returns 0 if they have expired: then call
 `uvfs_revision`, ask the back end, and call `uvfs_refresh`.
 */
int uvfs_getattr(const struct uvfs_superblock *superblock,
                 uint64_t node,
                 struct uvfs_attr *attr);

/*
 The revision of a node's attributes, to be read before the back end is asked for them.
 */
int uvfs_revision(const struct uvfs_superblock *superblock, uint64_t node, uint64_t *revision);

/*
 The back end's attributes, asked for after `uvfs_revision`, trusted for `attr_ttl` milliseconds. Returns 1 if they
 are kept. Returns 0 if the attributes changed meanwhile. -EINVAL: number or type are of another inode.
 */
int uvfs_refresh(const struct uvfs_superblock *superblock,
                 uint64_t node,
                 uint64_t revision,
                 const struct uvfs_attr *attr,
                 uint64_t attr_ttl);

/*
 Change those attributes that `fields` names (UVFS_SIZE and so on) in one step, after the back end has done so.
 Answers that are on their way are late from then on.
 */
int uvfs_update(const struct uvfs_superblock *superblock,
                uint64_t node,
                const struct uvfs_attr *attr,
                uint32_t fields);

/*
 The client looked the node up `lookups` times more.
 */
int uvfs_add_lookups(const struct uvfs_superblock *superblock, uint64_t node, uint64_t lookups);

/*
 The client forgets `lookups` lookups of a node. Unknown ids are ignored, but not those of another superblock:
 -EXDEV.
 */
int uvfs_forget(const struct uvfs_superblock *superblock,
                uint64_t node,
                uint64_t lookups);

/*
 The server's data of a node. It stays while the client has lookups of the node, or a hold; of the root, while
 the superblock is there.
 */
int uvfs_data(const struct uvfs_superblock *superblock,
              uint64_t node,
              void **data);

/*
 Hold a node, beside the client's lookups. `data` may be NULL.
 */
int uvfs_hold_node(const struct uvfs_superblock *superblock,
                   uint64_t node,
                   void **data,
                   struct uvfs_hold **hold);

/*
 Give a hold up. The node may go with it.
 */
void uvfs_put(struct uvfs_hold *hold);

/*
 The inode with this number. The client holds the node `lookups` times more. `entry` may be NULL. -ENOENT: it is
 not cached.
 */
int uvfs_by_number(const struct uvfs_superblock *superblock,
                   uint64_t ino,
                   uint64_t lookups,
                   struct uvfs_entry *entry);

/*
 Call this before the back end is asked about an inode for `uvfs_found_number`.
 */
int uvfs_ask(const struct uvfs_superblock *superblock, struct uvfs_asked **asked);

/*
 Ends a question: the inode, known or new, without a name (`name_ttl` is not used). The client holds the node
 `lookups` times more; without a lookup, a hold or a name it is gone at once. With a NULL answer only ends the
 question. `entry` may be NULL. -EXDEV: the question is another superblock's.
 */
int uvfs_found_number(const struct uvfs_superblock *superblock,
                      struct uvfs_asked *asked,
                      const struct uvfs_answer *answer,
                      uint64_t lookups,
                      struct uvfs_entry *entry);

/*
 A name of the node, and its directory. Returns the name's length. -ENOENT: it has none in the cache (the root
 has none). -ERANGE: the buffer is too small; 256 bytes are enough.
 */
int uvfs_name_of(const struct uvfs_superblock *superblock,
                 uint64_t node,
                 uint64_t *dir,
                 uvfs_buffer buffer,
                 size_t size);

/*
 The path below the root, without a leading slash, as it was at one moment. Returns its length. -ENOENT: it has
 none in the cache. -EAGAIN: directories on the way kept moving. -ERANGE: the buffer is too small.
 */
int uvfs_path_of(const struct uvfs_superblock *superblock,
                 uint64_t node,
                 uvfs_buffer buffer,
                 size_t size);

/*
 The cached entry of a name may be wrong: the next lookup asks. Answers on their way are late.
 */
int uvfs_invalidate(const struct uvfs_superblock *superblock, uint64_t dir, uvfs_name name);

/*
 The node's inode number belongs to another inode from now on. Its holders keep this one; names ask again.
 */
int uvfs_replaced(const struct uvfs_superblock *superblock,
                  uint64_t node);

/*
 Call `attempt` with `context`, in this thread, until it returns anything but -ENOMEM, or `milliseconds` have passed.
 Between two attempts it waits until a client has forgotten nodes, and for 10 ms at most. An attempt may exceed the
 memory limit by 4% once half of the time has passed, and the last attempt always may. So may one once a call of a
 balancing thread has taken 2 ms, because that call may wait for this request. Returns the result of the last
 attempt. The caller holds no lock of a name, no ticket and no listing; `attempt` ends those that it begins.
 */
int uvfs_with_patience(const struct uvfs_cache *cache,
                       uint64_t milliseconds,
                       int (*attempt)(void *context),
                       void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UVFS_H */

#ifndef UVFS_STAT_H
#define UVFS_STAT_H

/* Nanoseconds: without POSIX 2008, as by -std=c99, the C library has other names for them. */
#ifdef st_atime
#define UVFS_NSEC(st, time) ((st)->st_##time##tim.tv_nsec)
#else
#define UVFS_NSEC(st, time) ((st)->st_##time##timensec)
#endif

/* Attributes of a `struct stat`. */
static inline struct uvfs_attr uvfs_attr_of(const struct stat *st)
{
  struct uvfs_attr attr;
  attr.ino = st->st_ino;
  attr.size = (uint64_t)st->st_size;
  attr.blocks = (uint64_t)st->st_blocks;
  attr.atime.sec = st->st_atime;
  attr.atime.nsec = (uint32_t)UVFS_NSEC(st, a);
  attr.mtime.sec = st->st_mtime;
  attr.mtime.nsec = (uint32_t)UVFS_NSEC(st, m);
  attr.ctime.sec = st->st_ctime;
  attr.ctime.nsec = (uint32_t)UVFS_NSEC(st, c);
  attr.mode = st->st_mode;
  attr.nlink = (uint32_t)st->st_nlink;
  attr.uid = st->st_uid;
  attr.gid = st->st_gid;
  attr.rdev = (uint32_t)st->st_rdev;
  return attr;
}

/* The `struct stat` of attributes; the rest of it is zero. */
static inline struct stat uvfs_stat_of(const struct uvfs_attr *attr)
{
  struct stat st;
  memset(&st, 0, sizeof st);
  st.st_ino = attr->ino;
  st.st_size = (off_t)attr->size;
  st.st_blocks = (blkcnt_t)attr->blocks;
  st.st_blksize = 4096;
  st.st_atime = attr->atime.sec;
  UVFS_NSEC(&st, a) = attr->atime.nsec;
  st.st_mtime = attr->mtime.sec;
  UVFS_NSEC(&st, m) = attr->mtime.nsec;
  st.st_ctime = attr->ctime.sec;
  UVFS_NSEC(&st, c) = attr->ctime.nsec;
  st.st_mode = attr->mode;
  st.st_nlink = attr->nlink;
  st.st_uid = attr->uid;
  st.st_gid = attr->gid;
  st.st_rdev = attr->rdev;
  return st;
}

#undef UVFS_NSEC

#endif  /* UVFS_STAT_H */
