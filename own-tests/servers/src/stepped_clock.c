// A preloaded library that shifts a server's wall clock. The file that STEPPED_CLOCK names contains
// the offset in microseconds.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void find_offset(void) {
    int file = open(getenv("STEPPED_CLOCK"), O_RDONLY);
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        abort();
    offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME && offset) {
        int64_t micros = now->tv_sec * 1000000LL + now->tv_nsec / 1000 + *offset;
        now->tv_sec = micros / 1000000;
        now->tv_nsec = micros % 1000000 * 1000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &at);
    if (!failed) {
        now->tv_sec = at.tv_sec;
        now->tv_usec = at.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out)
        *out = at.tv_sec;
    return at.tv_sec;
}
