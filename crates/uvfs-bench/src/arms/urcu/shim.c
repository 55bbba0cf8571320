/* liburcu's hash table of directory entries behind functions that Rust can call.
 * Much of liburcu's interface is macros and inline functions, so they are expanded here. */
#define URCU_INLINE_SMALL_FUNCTIONS 1
#define _LGPL_SOURCE 1
#include <urcu/urcu-memb.h>
#include <urcu/rculfhash.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The header of the QSBR flavour gives the same names another meaning, so its one symbol is declared here. */
extern const struct rcu_flavor_struct urcu_qsbr_flavor;

static const struct rcu_flavor_struct *flavour(int qsbr)
{
	return qsbr ? &urcu_qsbr_flavor : &urcu_memb_flavor;
}

enum { NAME_SIZE = 39 };

struct entry {
	struct cds_lfht_node node;
	uint64_t parent;
	uint8_t len;
	unsigned char name[NAME_SIZE];
	/* The value, and behind it a struct tail: what a hit reads stands together. */
	unsigned char value[];
};

struct tail {
	struct entry *entry;
	struct rcu_head rcu;
};

struct wanted {
	uint64_t parent;
	const unsigned char *name;
	size_t len;
};

static int match(struct cds_lfht_node *node, const void *key)
{
	const struct entry *e = caa_container_of(node, struct entry, node);
	const struct wanted *w = key;

	return e->parent == w->parent && e->len == w->len && memcmp(e->name, w->name, w->len) == 0;
}

static void free_entry(struct rcu_head *head)
{
	free(caa_container_of(head, struct tail, rcu)->entry);
}

static struct tail *tail_of(struct entry *e, size_t value_len)
{
	return (struct tail *)(e->value + value_len);
}

void bench_urcu_register(int qsbr) { flavour(qsbr)->register_thread(); }
void bench_urcu_unregister(int qsbr) { flavour(qsbr)->unregister_thread(); }
/* Of the memb flavour. With QSBR a section is nothing. */
void bench_urcu_read_lock(void) { urcu_memb_read_lock(); }
void bench_urcu_read_unlock(void) { urcu_memb_read_unlock(); }
/* The calling thread, registered with QSBR, holds no value. */
void bench_urcu_quiescent(void) { urcu_qsbr_flavor.read_quiescent_state(); }

/* The number of entries is known, so the table is not told to resize itself: at its end it would shrink
 * while it is emptied, which takes quadratic time. */
struct cds_lfht *bench_urcu_new(int qsbr, unsigned long buckets)
{
	return cds_lfht_new_flavor(buckets, buckets, 0, 0, flavour(qsbr), NULL);
}

/* 0, or -1 where there is no memory or the key exists. The caller holds the read lock. The value's length is a
 * multiple of 8, and the same for all entries of a table. */
int bench_urcu_add(struct cds_lfht *ht, unsigned long hash, uint64_t parent, const unsigned char *name,
		   size_t len, const unsigned char *value, size_t value_len)
{
	struct entry *e;
	struct wanted w = { parent, name, len };

	if (len > NAME_SIZE)
		return -1;
	e = calloc(1, sizeof(*e) + value_len + sizeof(struct tail));
	if (!e)
		return -1;
	cds_lfht_node_init(&e->node);
	e->parent = parent;
	e->len = (uint8_t)len;
	memcpy(e->name, name, len);
	memcpy(e->value, value, value_len);
	tail_of(e, value_len)->entry = e;
	if (cds_lfht_add_unique(ht, hash, match, &w, &e->node) != &e->node) {
		free(e);
		return -1;
	}
	return 0;
}

static struct entry *find(struct cds_lfht *ht, unsigned long hash, const struct wanted *w)
{
	struct cds_lfht_iter iter;
	struct cds_lfht_node *node;

	cds_lfht_lookup(ht, hash, match, w, &iter);
	node = cds_lfht_iter_get_node(&iter);
	return node ? caa_container_of(node, struct entry, node) : NULL;
}

/* The value, or NULL. Good while the caller holds the read lock. */
const unsigned char *bench_urcu_find(struct cds_lfht *ht, unsigned long hash, uint64_t parent,
				     const unsigned char *name, size_t len)
{
	struct wanted w = { parent, name, len };
	struct entry *e = find(ht, hash, &w);

	return e ? e->value : NULL;
}

/* 0, or -1 where there is no such key. The caller holds the read lock. */
int bench_urcu_remove(int qsbr, struct cds_lfht *ht, unsigned long hash, uint64_t parent, const unsigned char *name,
		      size_t len, size_t value_len)
{
	struct wanted w = { parent, name, len };
	struct entry *e = find(ht, hash, &w);

	if (!e || cds_lfht_del(ht, &e->node) != 0)
		return -1;
	flavour(qsbr)->update_call_rcu(&tail_of(e, value_len)->rcu, free_entry);
	return 0;
}

/* Frees all. No other thread uses the table; the caller is registered and outside of any section. */
void bench_urcu_free(int qsbr, struct cds_lfht *ht, size_t value_len)
{
	struct cds_lfht_iter iter;
	struct entry *e;

	flavour(qsbr)->read_lock();
	cds_lfht_for_each_entry(ht, &iter, e, node)
		if (cds_lfht_del(ht, &e->node) == 0)
			flavour(qsbr)->update_call_rcu(&tail_of(e, value_len)->rcu, free_entry);
	flavour(qsbr)->read_unlock();
	flavour(qsbr)->barrier();
	cds_lfht_destroy(ht, NULL);
}
