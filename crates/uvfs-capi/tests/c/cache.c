/*
 * The cache as a server in C uses it: first each call's meaning in one thread, then a storm in four.
 *
 * Under ThreadSanitizer only this file is instrumented, so the library's own ordering of data is told to the tool:
 * the maker of data releases it, each user acquires and releases it, and the destructor acquires it.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uvfs.h>

#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *);
void __tsan_release(void *);
#else
#define __tsan_acquire(p) ((void)(p))
#define __tsan_release(p) ((void)(p))
#endif

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
			abort(); \
		} \
	} while (0)
#define IS(call, want) \
	do { \
		long long got_ = (call), want_ = (want); \
		if (got_ != want_) { \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #call, got_, want_); \
			abort(); \
		} \
	} while (0)

#define MAGIC 0x600dda7aull

struct data {
	uint64_t magic;
	uint64_t ino;
};

static atomic_long made, destroyed;

static void *make(uint64_t ino)
{
	struct data *data = malloc(sizeof *data);

	CHECK(data);
	data->magic = MAGIC;
	data->ino = ino;
	atomic_fetch_add(&made, 1);
	__tsan_release(data);
	return data;
}

static void destroy(void *pointer)
{
	struct data *data = pointer;

	__tsan_acquire(data);
	CHECK(data->magic == MAGIC);
	data->magic = 0;
	atomic_fetch_add(&destroyed, 1);
	free(data);
}

/* The data of a node that the caller holds. */
static void use(struct uvfs_superblock *sb, uint64_t node, uint64_t ino)
{
	void *pointer;
	struct data *data;

	IS(uvfs_data(sb, node, &pointer), 0);
	data = pointer;
	__tsan_acquire(data);
	CHECK(data->magic == MAGIC);
	CHECK(data->ino == ino);
	__tsan_release(data);
}

static struct uvfs_answer answer(uint64_t ino, mode_t mode, uint64_t ttl)
{
	struct stat st = { .st_ino = ino, .st_mode = mode, .st_nlink = 1, .st_size = 10 };
	struct uvfs_answer got = { .name_ttl = ttl, .attr_ttl = ttl };

	got.attr = uvfs_attr_of(&st);
	got.data = make(ino);
	return got;
}

static struct uvfs_superblock *superblock(struct uvfs_cache **cache, uint64_t limit)
{
	struct uvfs_config config = { .max_inodes = 1 << 20, .memory_limit = limit, .destroy = destroy };
	struct uvfs_answer root = answer(2, S_IFDIR | 0755, UVFS_FOREVER);
	struct uvfs_superblock *sb;

	IS(uvfs_cache_new(&config, cache), 0);
	IS(uvfs_superblock_add(*cache, false, &root, &sb), 0);
	return sb;
}

static void nothing_left(void)
{
	IS(atomic_load(&made), atomic_load(&destroyed));
}

/* A name that is not cached yet: its ticket is answered. */
static uint64_t found(struct uvfs_superblock *sb, uint64_t dir, const char *name, uint64_t ino, mode_t mode)
{
	struct uvfs_answer got = answer(ino, mode, UVFS_FOREVER);
	struct uvfs_ticket *ticket;
	struct uvfs_entry entry;

	IS(uvfs_lookup(sb, dir, name, 1, &entry, &ticket), UVFS_MISS);
	IS(uvfs_ticket_found(ticket, &got, 1, &entry), 0);
	IS(entry.attr.ino, ino);
	return entry.node;
}

static void arguments(struct uvfs_cache *cache, struct uvfs_superblock *sb)
{
	struct uvfs_answer file = answer(3, S_IFREG, 0), odd = file;
	struct uvfs_ticket *ticket;
	struct uvfs_listing *listing;
	struct uvfs_entry entry;
	struct uvfs_attr attr;
	struct uvfs_lock *lock;
	struct uvfs_superblock *none;
	char longer[257];

	IS(uvfs_cache_new(NULL, NULL), -EINVAL);
	IS(uvfs_superblock_add(cache, false, NULL, &none), -EINVAL);
	IS(uvfs_superblock_add(cache, false, &file, &none), -ENOTDIR);
	IS(uvfs_lookup(NULL, 1, "a", 1, &entry, &ticket), -EINVAL);
	IS(uvfs_lookup(sb, 1, NULL, 1, &entry, &ticket), -EINVAL);
	IS(uvfs_lookup(sb, 1, "a", 1, &entry, NULL), -EINVAL);
	IS(uvfs_lookup(sb, 1, "", 1, &entry, &ticket), -EINVAL);
	IS(uvfs_lookup(sb, 1, "..", 1, &entry, &ticket), -EINVAL);
	IS(uvfs_lookup(sb, 1, "a/b", 1, &entry, &ticket), -EINVAL);
	memset(longer, 'x', 256);
	longer[256] = 0;
	IS(uvfs_lookup(sb, 1, longer, 1, &entry, &ticket), -ENAMETOOLONG);
	IS(uvfs_listing_begin(sb, 1, &listing), 0);
	file.data = make(3);
	IS(uvfs_listing_found(listing, longer, &file, 0, NULL), -ENAMETOOLONG);
	uvfs_listing_drop(listing);
	IS(uvfs_getattr(sb, 1, NULL), -EINVAL);
	IS(uvfs_getattr(sb, 0xdeadull << 32 | 7, &attr), -ESTALE);
	IS(uvfs_getattr(sb, UINT64_MAX, &attr), -ESTALE);
	IS(uvfs_add_lookups(sb, 1ull << 40, 1), -ESTALE);
	IS(uvfs_forget(sb, UINT64_MAX, 1), 0);
	IS(uvfs_lock_name(sb, 12345, "a", &lock), -ESTALE);
	IS(uvfs_rename(NULL, NULL), -EINVAL);
	IS(uvfs_remove(NULL), -EINVAL);
	IS(uvfs_ticket_fail(NULL, EIO), -EINVAL);
	/* A ticket and its answer stay the caller's after -EINVAL. */
	IS(uvfs_lookup(sb, 1, "odd", 0, &entry, &ticket), UVFS_MISS);
	IS(uvfs_ticket_found(ticket, NULL, 0, &entry), -EINVAL);
	odd.attr.mode = 0;
	odd.data = NULL;
	IS(uvfs_ticket_found(ticket, &odd, 0, &entry), -EINVAL);
	IS(uvfs_ticket_absent(ticket, 0), 0);
	uvfs_ticket_drop(NULL);
	uvfs_unlock(NULL);
	uvfs_put(NULL);
	uvfs_cache_free(NULL);
}

static void lookups(struct uvfs_superblock *sb)
{
	struct uvfs_ticket *ticket, *other;
	struct uvfs_answer again;
	struct uvfs_entry entry;
	struct uvfs_attr attr;
	struct uvfs_hold *hold;
	uint64_t file, revision;
	void *data;

	file = found(sb, UVFS_ROOT, "file", 10, S_IFREG | 0644);
	IS(uvfs_lookup(sb, UVFS_ROOT, "file", 1, &entry, &ticket), UVFS_HIT);
	IS(entry.node, file);
	CHECK(entry.trusted && entry.attr.size == 10);
	use(sb, file, 10);
	use(sb, UVFS_ROOT, 2);
	/* Another name of an inode that is known: its own data stay, the answer's are destroyed. */
	IS(uvfs_lookup(sb, UVFS_ROOT, "same", 1, &entry, &ticket), UVFS_MISS);
	again = answer(10, S_IFREG | 0644, UVFS_FOREVER);
	long before = atomic_load(&destroyed);
	IS(uvfs_ticket_found(ticket, &again, 1, &entry), 0);
	IS(entry.node, file);
	IS(atomic_load(&destroyed), before + 1);
	IS(uvfs_lookup(sb, file, "below", 1, &entry, &ticket), -ENOTDIR);
	/* Absent, failed, dropped, busy. */
	IS(uvfs_lookup(sb, UVFS_ROOT, "none", 1, &entry, &ticket), UVFS_MISS);
	IS(uvfs_try_lookup(sb, UVFS_ROOT, "none", 1, &entry, &other), -EAGAIN);
	IS(uvfs_ticket_absent(ticket, UVFS_FOREVER), 0);
	IS(uvfs_lookup(sb, UVFS_ROOT, "none", 1, &entry, &ticket), UVFS_NEGATIVE);
	IS(uvfs_invalidate(sb, UVFS_ROOT, "none"), 0);
	IS(uvfs_lookup(sb, UVFS_ROOT, "none", 1, &entry, &ticket), UVFS_MISS);
	IS(uvfs_ticket_fail(ticket, EIO), 0);
	IS(uvfs_lookup(sb, UVFS_ROOT, "none", 1, &entry, &ticket), UVFS_MISS);
	uvfs_ticket_drop(ticket);
	IS(uvfs_by_number(sb, 10, 0, &entry), 0);
	IS(entry.node, file);
	IS(uvfs_by_number(sb, 2, 0, &entry), 0);
	IS(entry.node, UVFS_ROOT);
	IS(uvfs_by_number(sb, 999, 0, &entry), -ENOENT);
	/* Attributes. */
	IS(uvfs_revision(sb, file, &revision), 0);
	attr = entry.attr;
	attr.size = 77;
	IS(uvfs_update(sb, file, &attr, UVFS_SIZE), 0);
	IS(uvfs_getattr(sb, file, &attr), 1);
	IS(attr.size, 77);
	CHECK(S_ISREG(attr.mode) && uvfs_stat_of(&attr).st_size == 77);
	attr.size = 5;
	IS(uvfs_refresh(sb, file, revision, &attr, UVFS_FOREVER), 0);
	IS(uvfs_revision(sb, file, &revision), 0);
	IS(uvfs_refresh(sb, file, revision, &attr, 0), 1);
	IS(uvfs_getattr(sb, file, &attr), 0);
	IS(attr.size, 5);
	attr.ino = 11;
	IS(uvfs_refresh(sb, file, revision, &attr, 0), -EINVAL);
	/* The type stays. */
	attr.mode = S_IFDIR | 0600;
	IS(uvfs_update(sb, file, &attr, UVFS_MODE), 0);
	IS(uvfs_getattr(sb, file, &attr), 0);
	IS(attr.mode, S_IFREG | 0600);
	/* An inode without a name. */
	struct uvfs_asked *asked;

	IS(uvfs_ask(sb, &asked), 0);
	again = answer(12, S_IFREG | 0600, UVFS_FOREVER);
	IS(uvfs_found_number(sb, asked, &again, 1, &entry), 0);
	use(sb, entry.node, 12);
	IS(uvfs_forget(sb, entry.node, 1), 0);
	IS(uvfs_by_number(sb, 12, 0, NULL), -ENOENT);
	IS(uvfs_ask(sb, &asked), 0);
	IS(uvfs_found_number(sb, asked, NULL, 0, NULL), 0);
	/* The last of three lookups outlives the names. */
	IS(uvfs_invalidate(sb, UVFS_ROOT, "file"), 0);
	IS(uvfs_invalidate(sb, UVFS_ROOT, "same"), 0);
	IS(uvfs_forget(sb, file, 2), 0);
	IS(uvfs_getattr(sb, file, &attr), 0);
	/* A hold outlives the client's lookups. */
	IS(uvfs_hold_node(sb, file, &data, &hold), 0);
	CHECK(((struct data *)data)->ino == 10);
	IS(uvfs_forget(sb, file, 1), 0);
	IS(uvfs_getattr(sb, file, &attr), 0);
	before = atomic_load(&destroyed);
	uvfs_put(hold);
	IS(atomic_load(&destroyed), before + 1);
	IS(uvfs_getattr(sb, file, &attr), -ESTALE);
}

static void changes(struct uvfs_superblock *sb)
{
	struct uvfs_lock *from, *to, *lock;
	struct uvfs_rename_lock *renames;
	struct uvfs_answer dir, file;
	struct uvfs_entry a, b, f, entry;
	struct uvfs_ticket *ticket;
	char name[256];
	uint64_t parent;

	IS(uvfs_lock_name(sb, UVFS_ROOT, "a", &lock), 0);
	IS(uvfs_reserve(lock, UVFS_ROOM_DIR), 0);
	IS(uvfs_reserve(lock, 99), -EINVAL);
	dir = answer(20, S_IFDIR | 0755, UVFS_FOREVER);
	IS(uvfs_create(lock, &dir, 1, &a), 0);
	IS(uvfs_lock_name(sb, UVFS_ROOT, "b", &lock), 0);
	dir = answer(21, S_IFDIR | 0755, UVFS_FOREVER);
	IS(uvfs_create(lock, &dir, 1, &b), 0);
	IS(uvfs_lock_name(sb, a.node, "f", &lock), 0);
	IS(uvfs_locked_known(lock, 0, NULL), UVFS_MISS);
	file = answer(22, S_IFREG | 0644, UVFS_FOREVER);
	IS(uvfs_create(lock, &file, 1, &f), 0);
	IS(uvfs_path_of(sb, f.node, name, sizeof name), 3);
	CHECK(!strcmp(name, "a/f"));
	IS(uvfs_path_of(sb, f.node, name, 3), -ERANGE);
	IS(uvfs_path_of(sb, UVFS_ROOT, name, sizeof name), 0);
	IS(uvfs_name_of(sb, f.node, &parent, name, sizeof name), 1);
	IS(parent, a.node);
	IS(uvfs_name_of(sb, UVFS_ROOT, NULL, name, sizeof name), -ENOENT);
	/* A directory moves; what is below it moves too. */
	IS(uvfs_lock_renames(sb, &renames), 0);
	IS(uvfs_is_below(sb, b.node, a.node), 0);
	IS(uvfs_is_below(sb, f.node, a.node), 1);
	IS(uvfs_lock_names(sb, UVFS_ROOT, "a", b.node, "moved", &from, &to), 0);
	IS(uvfs_reserve(to, UVFS_ROOM_NAME), 0);
	IS(uvfs_rename(from, to), 0);
	uvfs_unlock_renames(renames);
	IS(uvfs_path_of(sb, f.node, name, sizeof name), 9);
	CHECK(!strcmp(name, "b/moved/f"));
	/* A link, and the removal of both names. */
	IS(uvfs_lock_name(sb, b.node, "link", &lock), 0);
	IS(uvfs_link(sb, lock, f.node, UVFS_FOREVER), 0);
	IS(uvfs_lookup(sb, b.node, "link", 0, &entry, &ticket), UVFS_HIT);
	IS(entry.node, f.node);
	IS(uvfs_lock_name(sb, b.node, "moved", &lock), 0);
	IS(uvfs_locked_known(lock, 0, &entry), UVFS_HIT);
	IS(uvfs_begin_removal(sb, lock, entry.node), -ENOTEMPTY);
	uvfs_unlock(lock);
	IS(uvfs_lock_name(sb, a.node, "f", &lock), 0);
	IS(uvfs_remove(lock), 0);
	IS(uvfs_lock_name(sb, b.node, "moved", &lock), 0);
	IS(uvfs_begin_removal(sb, lock, a.node), 0);
	IS(uvfs_remove(lock), 0);
	/* Neither name is known now, so the back end is asked. */
	IS(uvfs_lookup(sb, b.node, "moved", 0, &entry, &ticket), UVFS_MISS);
	uvfs_ticket_drop(ticket);
	IS(uvfs_forget(sb, a.node, 1), 0);
	IS(uvfs_forget(sb, b.node, 1), 0);
	IS(uvfs_forget(sb, f.node, 1), 0);
}

/* Neither the root nor a directory that is not empty is removed, and directories have one name. */
static void refusals(struct uvfs_superblock *sb)
{
	uint64_t dir = found(sb, UVFS_ROOT, "refused", 60, S_IFDIR | 0755);
	uint64_t file = found(sb, dir, "file", 61, S_IFREG | 0644);
	struct uvfs_ticket *ticket;
	struct uvfs_entry entry;
	struct uvfs_lock *lock;
	char path[64];

	IS(uvfs_lock_name(sb, UVFS_ROOT, "refused", &lock), 0);
	IS(uvfs_begin_removal(sb, lock, UVFS_ROOT), -EBUSY);
	IS(uvfs_begin_removal(sb, lock, dir), -ENOTEMPTY);
	IS(uvfs_begin_removal(sb, lock, 12345), -ESTALE);
	IS(uvfs_begin_removal(sb, NULL, dir), -EINVAL);
	uvfs_unlock(lock);
	IS(uvfs_lookup(sb, dir, "file", 0, &entry, &ticket), UVFS_HIT);
	IS(uvfs_lock_name(sb, UVFS_ROOT, "link", &lock), 0);
	IS(uvfs_link(sb, lock, dir, UVFS_FOREVER), -EPERM);
	IS(uvfs_lock_name(sb, dir, "link", &lock), 0);
	IS(uvfs_link(sb, lock, UVFS_ROOT, UVFS_FOREVER), -EPERM);
	IS(uvfs_path_of(sb, file, path, sizeof path), 12);
	CHECK(!strcmp(path, "refused/file"));
	IS(uvfs_lock_name(sb, file, "below", &lock), -ENOTDIR);
	IS(uvfs_forget(sb, file, 1), 0);
	IS(uvfs_forget(sb, dir, 1), 0);
}

/* A superblock does not lead to the nodes of another one, cached and trusted though they are. */
static void others(struct uvfs_cache *cache, struct uvfs_superblock *sb)
{
	struct uvfs_answer got = answer(2, S_IFDIR | 0755, UVFS_FOREVER);
	struct uvfs_superblock *other;
	struct uvfs_listing *listing;
	struct uvfs_ticket *ticket;
	struct uvfs_asked *asked;
	struct uvfs_entry entry;
	struct uvfs_lock *lock, *to;
	struct uvfs_hold *hold;
	struct uvfs_attr attr;
	void *data = NULL;
	uint64_t dir, file, revision;
	char path[64];

	IS(uvfs_superblock_add(cache, false, &got, &other), 0);
	dir = found(other, UVFS_ROOT, "dir", 3, S_IFDIR | 0755);
	file = found(other, dir, "file", 4, S_IFREG | 0644);
	IS(uvfs_lookup(other, dir, "none", 0, &entry, &ticket), UVFS_MISS);
	IS(uvfs_ticket_absent(ticket, UVFS_FOREVER), 0);
	IS(uvfs_lookup(other, dir, "none", 0, &entry, &ticket), UVFS_NEGATIVE);
	IS(uvfs_lookup(sb, dir, "file", 1, &entry, &ticket), -EXDEV);
	IS(uvfs_lookup(sb, dir, "none", 0, &entry, &ticket), -EXDEV);
	IS(uvfs_try_lookup(sb, dir, "unknown", 0, &entry, &ticket), -EXDEV);
	IS(uvfs_getattr(other, file, &attr), 1);
	IS(uvfs_getattr(sb, file, &attr), -EXDEV);
	IS(uvfs_revision(sb, file, &revision), -EXDEV);
	IS(uvfs_refresh(sb, file, 0, &attr, 0), -EXDEV);
	IS(uvfs_update(sb, file, &attr, UVFS_SIZE), -EXDEV);
	IS(uvfs_add_lookups(sb, file, 1), -EXDEV);
	IS(uvfs_forget(sb, file, 1), -EXDEV);
	IS(uvfs_data(sb, file, &data), -EXDEV);
	IS(uvfs_hold_node(sb, file, &data, &hold), -EXDEV);
	CHECK(!data);
	IS(uvfs_name_of(sb, file, NULL, path, sizeof path), -EXDEV);
	IS(uvfs_path_of(sb, file, path, sizeof path), -EXDEV);
	IS(uvfs_is_below(sb, file, UVFS_ROOT), -EXDEV);
	IS(uvfs_invalidate(sb, dir, "file"), -EXDEV);
	IS(uvfs_replaced(sb, file), -EXDEV);
	IS(uvfs_listing_begin(sb, dir, &listing), -EXDEV);
	IS(uvfs_lock_name(sb, dir, "file", &lock), -EXDEV);
	IS(uvfs_lock_names(sb, UVFS_ROOT, "a", dir, "b", &lock, &to), -EXDEV);
	IS(uvfs_lock_name(sb, UVFS_ROOT, "a", &lock), 0);
	IS(uvfs_begin_removal(sb, lock, dir), -EXDEV);
	IS(uvfs_begin_removal(other, lock, dir), -EXDEV);
	IS(uvfs_link(other, lock, file, UVFS_FOREVER), -EXDEV);
	/* The question goes with its answer, which nothing takes. */
	IS(uvfs_ask(sb, &asked), 0);
	got = answer(5, S_IFREG | 0644, UVFS_FOREVER);
	long before = atomic_load(&destroyed);
	IS(uvfs_found_number(other, asked, &got, 0, &entry), -EXDEV);
	IS(atomic_load(&destroyed), before + 1);
	/* The other superblock's client has what it had. */
	IS(uvfs_lock_name(other, dir, "file", &lock), 0);
	IS(uvfs_remove(lock), 0);
	IS(uvfs_getattr(other, file, &attr), 1);
	use(other, file, 4);
	IS(uvfs_forget(other, file, 1), 0);
	IS(uvfs_getattr(other, file, &attr), -ESTALE);
	uvfs_superblock_remove(other);
}

static void listings(struct uvfs_cache *cache, struct uvfs_superblock *sb)
{
	struct uvfs_counters counters;
	struct uvfs_listing *listing;
	struct uvfs_ticket *ticket;
	struct uvfs_answer got;
	struct uvfs_entry entry;
	uint64_t dir = found(sb, UVFS_ROOT, "listed", 30, S_IFDIR | 0755);

	IS(uvfs_listing_begin(sb, dir, &listing), 0);
	for (int i = 0; i < 10; i++) {
		char name[8];

		sprintf(name, "n%d", i);
		got = answer(40 + i, S_IFREG | 0644, UVFS_FOREVER);
		IS(uvfs_listing_found(listing, name, &got, 0, NULL), 0);
	}
	IS(uvfs_listing_complete(listing, UVFS_FOREVER), 1);
	IS(uvfs_lookup(sb, dir, "n7", 0, &entry, &ticket), UVFS_HIT);
	IS(uvfs_lookup(sb, dir, "other", 0, &entry, &ticket), UVFS_NEGATIVE);
	/* Others make a name meanwhile: the listing proves no absence. */
	IS(uvfs_listing_begin(sb, dir, &listing), 0);
	IS(uvfs_name_changed(sb, 30, "other"), 1);
	IS(uvfs_listing_complete(listing, UVFS_FOREVER), 0);
	IS(uvfs_lookup(sb, dir, "other", 0, &entry, &ticket), UVFS_MISS);
	uvfs_ticket_drop(ticket);
	IS(uvfs_get_counters(cache, &counters), 0);
	CHECK(counters.inodes >= 12 && counters.names >= 11 && counters.bytes > 0);
	IS(uvfs_forget(sb, dir, 1), 0);
}

/* A client that forgets what it is asked to. */
struct client {
	struct uvfs_superblock *sb;
	atomic_long pruned, named;
};

static int prune(void *context, const uint64_t *nodes, size_t count)
{
	struct client *client = context;

	for (size_t i = 0; i < count; i++)
		IS(uvfs_forget(client->sb, nodes[i], 1), 0);
	atomic_fetch_add(&client->pruned, (long)count);
	return 0;
}

static void limit(void)
{
	struct uvfs_cache *cache;
	struct uvfs_superblock *sb = superblock(&cache, 8 << 20);
	struct client client = { .sb = sb };
	struct uvfs_holder holder = { .context = &client, .prune = prune };
	struct uvfs_balancer *balancer;
	struct uvfs_counters counters;
	struct uvfs_cache *other;
	struct uvfs_superblock *other_sb = superblock(&other, 8 << 20);

	IS(uvfs_balance_start(cache, other_sb, &holder, &balancer), -EINVAL);
	uvfs_superblock_remove(other_sb);
	uvfs_cache_free(other);
	IS(uvfs_balance_start(cache, sb, &holder, &balancer), 0);
	for (int i = 0; i < 100000; i++) {
		char name[16];

		sprintf(name, "%d", i);
		found(sb, UVFS_ROOT, name, 100 + i, S_IFREG | 0644);
	}
	uvfs_balance_stop(balancer);
	IS(uvfs_get_counters(cache, &counters), 0);
	CHECK(counters.bytes <= 10 << 20);
	CHECK(counters.evicted > 0 && atomic_load(&client.pruned) > 0);
	IS(uvfs_set_memory_limit(cache, 0), 0);
	uvfs_superblock_remove(sb);
	uvfs_cache_free(cache);
	nothing_left();
}

/* A lookup that needs memory, as often as it is called. */
struct attempts {
	struct uvfs_superblock *sb;
	int calls, enough;
	/* The back end's time. */
	struct timespec slow;
};

static int attempt_nothing(void *context)
{
	struct attempts *attempts = context;

	return ++attempts->calls < attempts->enough ? -ENOMEM : 7;
}

static int attempt_lookup(void *context)
{
	struct attempts *attempts = context;
	char name[16];
	struct uvfs_ticket *ticket;
	struct uvfs_entry entry;
	struct uvfs_answer got = answer(100 + attempts->calls, S_IFREG | 0644, UVFS_FOREVER);
	int result;

	sprintf(name, "%d", attempts->calls++);
	IS(uvfs_lookup(attempts->sb, UVFS_ROOT, name, 1, &entry, &ticket), UVFS_MISS);
	nanosleep(&attempts->slow, NULL);
	result = uvfs_ticket_found(ticket, &got, 1, &entry);
	CHECK(result == 0 || result == -ENOMEM);
	return result;
}

/* Nodes that the client never forgets fill the cache. */
static void patience(void)
{
	struct uvfs_cache *cache;
	struct uvfs_superblock *sb = superblock(&cache, 8 << 20);
	struct attempts attempts = { .sb = sb, .enough = 1 };
	struct uvfs_counters counters;

	IS(uvfs_with_patience(cache, 10, NULL, NULL), -EINVAL);
	IS(uvfs_with_patience(NULL, 10, attempt_nothing, &attempts), -EINVAL);
	IS(uvfs_with_patience(cache, 0, attempt_nothing, &attempts), 7);
	IS(attempts.calls, 1);
	attempts.enough = 4;
	IS(uvfs_with_patience(cache, UINT64_MAX, attempt_nothing, &attempts), 7);
	IS(attempts.calls, 4);
	attempts.enough = INT_MAX;
	IS(uvfs_with_patience(cache, 30, attempt_nothing, &attempts), -ENOMEM);
	CHECK(attempts.calls > 4);
	attempts.calls = 0;
	while (attempt_lookup(&attempts) == 0)
		CHECK(attempts.calls < 100000);
	/* 4% more, though the first attempt takes all of the time. */
	attempts.slow.tv_nsec = 40000000;
	IS(uvfs_with_patience(cache, 20, attempt_lookup, &attempts), 0);
	IS(uvfs_get_counters(cache, &counters), 0);
	CHECK(counters.bytes > 8 << 20);
	uvfs_superblock_remove(sb);
	uvfs_cache_free(cache);
	nothing_left();
}

/* The server's data of two inodes. */
static void data_counts(void)
{
	struct uvfs_config config = { .data_bytes = 1 << 30, .destroy = destroy };
	struct uvfs_answer root = answer(2, S_IFDIR | 0755, UVFS_FOREVER);
	struct uvfs_counters counters;
	struct uvfs_cache *cache;
	struct uvfs_superblock *sb;

	IS(uvfs_cache_new(&config, &cache), 0);
	IS(uvfs_superblock_add(cache, false, &root, &sb), 0);
	found(sb, UVFS_ROOT, "file", 3, S_IFREG | 0644);
	IS(uvfs_get_counters(cache, &counters), 0);
	IS(counters.bytes >> 30, 2);
	uvfs_superblock_remove(sb);
	uvfs_cache_free(cache);
	nothing_left();
}

#define THREADS 4
#define NAMES 64
#define DIRS 4
#define TURNS 20000

struct storm {
	struct uvfs_superblock *sb;
	uint64_t dirs[DIRS];
	unsigned seed;
};

/* A name of the storm; every file of one name has one number in each directory. */
static uint64_t storm_ino(int dir, int name)
{
	return 1000 + (uint64_t)dir * NAMES + name;
}

static void storm_lookup(struct storm *storm, int dir, int n, const char *name, int how)
{
	struct uvfs_answer got;
	struct uvfs_ticket *ticket;
	struct uvfs_entry entry;
	int result = uvfs_lookup(storm->sb, storm->dirs[dir], name, 1, &entry, &ticket);

	if (result == UVFS_MISS) {
		switch (how) {
		case 0:
			uvfs_ticket_drop(ticket);
			return;
		case 1:
			IS(uvfs_ticket_fail(ticket, ENETDOWN), 0);
			return;
		case 2:
			IS(uvfs_ticket_absent(ticket, UVFS_FOREVER), 0);
			return;
		default:
			got = answer(storm_ino(dir, n), S_IFREG | 0644, UVFS_FOREVER);
			IS(uvfs_ticket_found(ticket, &got, 1, &entry), 0);
			result = UVFS_HIT;
		}
	}
	CHECK(result == UVFS_HIT || result == UVFS_NEGATIVE || result == -ENETDOWN);
	if (result == UVFS_HIT) {
		char path[1024];

		use(storm->sb, entry.node, entry.attr.ino);
		result = uvfs_path_of(storm->sb, entry.node, path, sizeof path);
		CHECK(result > 0 || result == -ENOENT || result == -EAGAIN);
		IS(uvfs_forget(storm->sb, entry.node, 1), 0);
	}
}

static void storm_rename(struct storm *storm, int dir, const char *name, int to_dir, const char *to_name)
{
	struct uvfs_lock *from, *to;
	struct uvfs_entry entry;

	IS(uvfs_lock_names(storm->sb, storm->dirs[dir], name, storm->dirs[to_dir], to_name, &from, &to), 0);
	if (uvfs_locked_known(from, 0, &entry) == UVFS_HIT && uvfs_reserve(to, UVFS_ROOM_NAME) == 0) {
		IS(uvfs_rename(from, to), 0);
		return;
	}
	uvfs_unlock(to);
	uvfs_unlock(from);
}

static void *storm_thread(void *argument)
{
	struct storm *storm = argument;

	for (int turn = 0; turn < TURNS; turn++) {
		int dir = rand_r(&storm->seed) % DIRS, n = rand_r(&storm->seed) % NAMES;
		int to_dir = rand_r(&storm->seed) % DIRS, to = rand_r(&storm->seed) % NAMES;
		char name[8], to_name[8];
		struct uvfs_lock *lock;
		struct uvfs_hold *hold;
		struct uvfs_entry entry;

		sprintf(name, "%d", n);
		sprintf(to_name, "%d", to);
		switch (rand_r(&storm->seed) % 16) {
		case 0:
			storm_rename(storm, dir, name, to_dir, to_name);
			break;
		case 1:
			IS(uvfs_lock_name(storm->sb, storm->dirs[dir], name, &lock), 0);
			IS(uvfs_remove(lock), 0);
			break;
		case 2:
			IS(uvfs_invalidate(storm->sb, storm->dirs[dir], name), 0);
			break;
		case 3:
			if (uvfs_by_number(storm->sb, storm_ino(dir, n), 1, &entry) == 0) {
				IS(uvfs_hold_node(storm->sb, entry.node, NULL, &hold), 0);
				IS(uvfs_forget(storm->sb, entry.node, 1), 0);
				use(storm->sb, entry.node, entry.attr.ino);
				uvfs_put(hold);
			}
			break;
		default:
			storm_lookup(storm, dir, n, name, rand_r(&storm->seed) % 8);
		}
	}
	return NULL;
}

static void storm(void)
{
	struct uvfs_cache *cache;
	struct uvfs_superblock *sb = superblock(&cache, 0);
	struct storm storms[THREADS];
	pthread_t threads[THREADS];

	for (int d = 0; d < DIRS; d++) {
		char name[8];

		sprintf(name, "d%d", d);
		storms[0].dirs[d] = found(sb, UVFS_ROOT, name, 10 + d, S_IFDIR | 0755);
	}
	for (int t = 0; t < THREADS; t++) {
		memcpy(storms[t].dirs, storms[0].dirs, sizeof storms[t].dirs);
		storms[t].sb = sb;
		storms[t].seed = (unsigned)t + 1;
		IS(pthread_create(&threads[t], NULL, storm_thread, &storms[t]), 0);
	}
	for (int t = 0; t < THREADS; t++)
		IS(pthread_join(threads[t], NULL), 0);
	CHECK(atomic_load(&made) > 1000);
	uvfs_superblock_remove(sb);
	uvfs_cache_free(cache);
	nothing_left();
}

int main(void)
{
	struct uvfs_cache *cache;
	struct uvfs_superblock *sb = superblock(&cache, 0);

	arguments(cache, sb);
	lookups(sb);
	changes(sb);
	refusals(sb);
	listings(cache, sb);
	others(cache, sb);
	uvfs_superblock_remove(sb);
	uvfs_cache_free(cache);
	nothing_left();
	limit();
	patience();
	data_counts();
	storm();
	puts("passed");
	return 0;
}
