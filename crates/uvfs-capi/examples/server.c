/*
 * A bounded read-only server: a host directory, its node table within a memory limit. No file is opened; it is for
 * looking up and listing.
 *
 *   cc -O2 server.c -o server $(pkg-config --cflags --libs uvfs fuse3)
 *   ./server SOURCE MOUNTPOINT LIMIT_MIB
 *
 * A lookup that finds no memory waits for the kernel to forget something, for two seconds at most.
 *
 * The data of each inode is a descriptor, so the process needs as many as the limit has inodes (250 bytes each).
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 314
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <uvfs.h>

#define TTL_MS 1000
#define PATIENCE_MS 2000

static struct uvfs_cache *cache;
static struct uvfs_superblock *sb;
static struct fuse_session *se;

static int fd_of(uint64_t node)
{
	void *fd;

	return uvfs_data(sb, node, &fd) ? -1 : (int)(intptr_t)fd;
}

static void shut(void *fd)
{
	close((int)(intptr_t)fd);
}

static struct uvfs_answer answer(const struct stat *st, int fd)
{
	return (struct uvfs_answer){ uvfs_attr_of(st), TTL_MS, TTL_MS, (void *)(intptr_t)fd };
}

/* A lookup, and its answer. */
struct question {
	fuse_ino_t parent;
	const char *name;
	struct uvfs_entry entry;
};

/* Asks the host. The ticket is gone afterwards. */
static int ask(struct question *q, struct uvfs_ticket *ticket)
{
	struct stat st;
	int fd = openat(fd_of(q->parent), q->name, O_PATH | O_NOFOLLOW);

	if (fd < 0 || fstatat(fd, "", &st, AT_EMPTY_PATH)) {
		int error = errno;

		if (fd >= 0)
			close(fd);
		if (error == ENOENT)
			uvfs_ticket_absent(ticket, TTL_MS);
		else
			uvfs_ticket_fail(ticket, error);
		return -error;
	}
	struct uvfs_answer a = answer(&st, fd);

	return uvfs_ticket_found(ticket, &a, 1, &q->entry);
}

static int look(void *question)
{
	struct question *q = question;
	struct uvfs_ticket *ticket;
	int result = uvfs_lookup(sb, q->parent, q->name, 1, &q->entry, &ticket);

	if (result == UVFS_MISS)
		return ask(q, ticket);
	return result == UVFS_NEGATIVE ? -ENOENT : result;
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct question q = { .parent = parent, .name = name };
	int result = uvfs_with_patience(cache, PATIENCE_MS, look, &q);

	if (result < 0) {
		fuse_reply_err(req, -result);
		return;
	}
	/* Attributes that have expired are asked for at the next getattr. */
	struct fuse_entry_param e = { .ino = q.entry.node, .attr = uvfs_stat_of(&q.entry.attr),
				      .attr_timeout = q.entry.trusted ? 1 : 0, .entry_timeout = 1 };

	if (fuse_reply_entry(req, &e))
		uvfs_forget(sb, q.entry.node, 1);
}

static void do_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
	uvfs_forget(sb, ino, n);
	fuse_reply_none(req);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	if (fstatat(fd_of(ino), "", &st, AT_EMPTY_PATH))
		fuse_reply_err(req, errno);
	else
		fuse_reply_attr(req, &st, 1);
}

static void do_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int fd = openat(fd_of(ino), ".", O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	fi->fh = (uintptr_t)dir;
	if (!dir)
		fuse_reply_err(req, errno);
	else if (fuse_reply_open(req, fi))
		closedir(dir);
}

static void do_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
	DIR *dir = (DIR *)(uintptr_t)fi->fh;
	char *buf = malloc(size);
	size_t used = 0;
	struct dirent *d;

	(void)ino;
	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	seekdir(dir, offset);
	while ((d = readdir(dir))) {
		struct stat st = { .st_ino = d->d_ino, .st_mode = (mode_t)d->d_type << 12 };
		size_t n = fuse_add_direntry(req, buf + used, size - used, d->d_name, &st, d->d_off);

		if (n > size - used)
			break;
		used += n;
	}
	fuse_reply_buf(req, buf, used);
	free(buf);
}

static void do_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	closedir((DIR *)(uintptr_t)fi->fh);
	fuse_reply_err(req, 0);
}

/* The table is near its limit: the kernel forgets a name, and then its node. */
static int invalidate(void *context, uint64_t dir, const char *name)
{
	(void)context;
	return fuse_lowlevel_notify_inval_entry(se, dir, name, strlen(name));
}

static const struct fuse_lowlevel_ops ops = {
	.lookup = do_lookup, .forget = do_forget, .getattr = do_getattr,
	.opendir = do_opendir, .readdir = do_readdir, .releasedir = do_releasedir,
};

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	struct uvfs_config config = { .memory_limit = strtoull(argv[3], NULL, 0) << 20, .destroy = shut };
	struct uvfs_holder holder = { .invalidate = invalidate };
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	struct uvfs_balancer *balancer;
	struct stat st;
	int root = open(argv[1], O_PATH | O_DIRECTORY);

	if (root < 0 || fstat(root, &st))
		return 1;
	struct uvfs_answer a = answer(&st, root);

	if (uvfs_cache_new(&config, &cache) || uvfs_superblock_add(cache, false, &a, &sb))
		return 1;
	se = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (!se || fuse_set_signal_handlers(se) || fuse_session_mount(se, argv[2]))
		return 1;
	if (uvfs_balance_start(cache, sb, &holder, &balancer))
		return 1;
	/* From here on the kernel keeps requests until the loop reads them. */
	printf("%s is mounted\n", argv[2]);
	fflush(stdout);
	/* Several threads: one reads FORGETs while another waits for memory. */
	struct fuse_loop_config *loop = fuse_loop_cfg_create();
	int result = fuse_session_loop_mt(se, loop);

	fuse_loop_cfg_destroy(loop);
	fuse_session_unmount(se);
	uvfs_balance_stop(balancer);
	fuse_session_destroy(se);
	uvfs_superblock_remove(sb);
	uvfs_cache_free(cache);
	return result != 0;
}
