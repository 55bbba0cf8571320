/*
 * Reads the attributes 0 .. COUNT-1 of a directory again and again, as programs do that list the GIDs of
 * an InfiniBand port: open, read 40 bytes, close. Prints how many were read; ends with status 1 at the first
 * one that is not 40 bytes long.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char path[4096], gid[40];
	long count, loops, loop, i, done = 0;

	if (argc != 4) {
		fprintf(stderr, "usage: %s DIR COUNT LOOPS\n", argv[0]);
		return 2;
	}
	count = atol(argv[2]);
	loops = atol(argv[3]);
	for (loop = 0; loop < loops; loop++) {
		for (i = 0; i < count; i++) {
			ssize_t len;
			int fd;

			snprintf(path, sizeof(path), "%s/%ld", argv[1], i);
			fd = open(path, O_RDONLY);
			if (fd < 0) {
				perror(path);
				return 1;
			}
			len = read(fd, gid, sizeof(gid));
			close(fd);
			if (len != (ssize_t)sizeof(gid)) {
				fprintf(stderr, "%s: read %zd bytes\n", path, len);
				return 1;
			}
			done++;
		}
	}
	printf("%ld\n", done);
	return 0;
}
