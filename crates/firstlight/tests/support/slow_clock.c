/* A clock that runs eight times as fast in the check process of a fleet's rank, so that its timings are eight times as long. This
   exceeds the noise of ranks that share a busy machine. The communication process of the rank keeps the real clock. */
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_part(void) {
    char words[4096];
    int file = open("/proc/self/cmdline", O_RDONLY);
    long count = file < 0 ? 0 : read(file, words, sizeof words);
    if (file >= 0) close(file);
    return count > 0 && memmem(words, count, "--part", 7) != 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static long long began;
    static int part;
    if (!real) {
        part = is_part();
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    }
    int code = real(id, now);
    if (code || id != CLOCK_MONOTONIC || !part) return code;
    long long nanos = now->tv_sec * 1000000000ll + now->tv_nsec;
    if (!began) began = nanos;
    nanos += 7 * (nanos - began);
    now->tv_sec = nanos / 1000000000ll;
    now->tv_nsec = nanos % 1000000000ll;
    return 0;
}
