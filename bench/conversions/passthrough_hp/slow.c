/* A slow back end: each stat takes 10 ms more. LD_PRELOAD this into both servers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

int fstatat(int dir, const char *restrict path, struct stat *restrict to, int flags)
{
	int (*real)(int, const char *, struct stat *, int) = dlsym(RTLD_NEXT, "fstatat");

	usleep(10000);
	return real(dir, path, to, flags);
}

int fstatat64(int dir, const char *restrict path, struct stat64 *restrict to, int flags)
{
	int (*real)(int, const char *, struct stat64 *, int) = dlsym(RTLD_NEXT, "fstatat64");

	usleep(10000);
	return real(dir, path, to, flags);
}
