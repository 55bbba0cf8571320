/* Lookups or forced getattrs below a mount: load DIR FILES THREADS SECONDS lookup|getattr|open. Prints calls a second.
 * With "open", files are found once, and held: then there are no lookups. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static int files, flags, *held;
static atomic_int stop;
static atomic_long calls;
static const char *dir;

static void *load(void *seed)
{
	unsigned state = (unsigned)(size_t)seed;
	char path[4096];
	struct statx st;
	long done = 0;

	while (!stop) {
		int n = rand_r(&state) % files;

		snprintf(path, sizeof path, "%s/%d/%d", dir, n / 1000, n % 1000);
		if (statx(held ? held[n] : AT_FDCWD, held ? "" : path, flags, STATX_BASIC_STATS, &st)) {
			perror(path);
			exit(1);
		}
		done++;
	}
	calls += done;
	return NULL;
}

static int hold(void)
{
	char path[4096];

	held = calloc(files, sizeof *held);
	for (int n = 0; held && n < files; n++) {
		snprintf(path, sizeof path, "%s/%d/%d", dir, n / 1000, n % 1000);
		held[n] = open(path, O_PATH);
		if (held[n] < 0) {
			perror(path);
			return 0;
		}
	}
	return held != NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	struct timespec time = { 0 };

	if (argc != 6)
		return 2;
	dir = argv[1];
	files = atoi(argv[2]);
	time.tv_sec = atoi(argv[4]);
	flags = strcmp(argv[5], "lookup") ? AT_STATX_FORCE_SYNC : AT_STATX_SYNC_AS_STAT;
	if (!strcmp(argv[5], "open")) {
		flags |= AT_EMPTY_PATH;
		if (!hold())
			return 1;
	}
	for (long t = 0; t < atoi(argv[3]); t++)
		pthread_create(&threads[t], NULL, load, (void *)(t + 1));
	nanosleep(&time, NULL);
	stop = 1;
	for (long t = 0; t < atoi(argv[3]); t++)
		pthread_join(threads[t], NULL);
	printf("%ld\n", calls / time.tv_sec);
	return 0;
}
