/* A slow back end: each open with O_PATH takes 10 ms more. LD_PRELOAD this into both servers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

static int slow_openat(const char *symbol, int dir, const char *path, int flags, mode_t mode)
{
	int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, symbol);

	if (flags & O_PATH)
		usleep(10000);
	return real(dir, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return slow_openat("openat", dir, path, flags, mode);
}

int openat64(int dir, const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	return slow_openat("openat64", dir, path, flags, mode);
}
