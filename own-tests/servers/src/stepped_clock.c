// A preloaded library that shifts the wall clock and the monotonic clock of a program. The file that STEPPED_CLOCK
// names contains both offsets in microseconds.
//
// Waits until an absolute monotonic time end early while that clock is behind. CLOCK_BOOTTIME stays true.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offsets;

__attribute__((constructor)) static void find_offset(void) {
    int file = open(getenv("STEPPED_CLOCK"), O_RDONLY);
    void *mapped = mmap(NULL, 2 * sizeof *offsets, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        abort();
    offsets = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    int monotonic = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW;
    if (!failed && (clock == CLOCK_REALTIME || monotonic) && offsets && offsets[monotonic]) {
        int64_t nanos = now->tv_sec * 1000000000LL + now->tv_nsec + offsets[monotonic] * 1000;
        now->tv_sec = nanos / 1000000000;
        now->tv_nsec = nanos % 1000000000;
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
