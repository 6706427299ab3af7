// A preloaded library that shifts the wall clock and the monotonic clock of a program, and changes the rate of its
// monotonic clocks. The file that STEPPED_CLOCK names contains both offsets in microseconds, which may change, and how many
// parts per million the monotonic clocks are too fast. The program reads that once, when it starts.
//
// Waits until an absolute monotonic time end early while that clock is behind. CLOCK_BOOTTIME has the rate, but no offset.
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offsets;
static int64_t rate;
// What each clock showed when the program began.
static int64_t began[CLOCK_BOOTTIME + 1];

static int64_t nanos_of(const struct timespec *at) {
    return at->tv_sec * 1000000000LL + at->tv_nsec;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    int monotonic = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW;
    int64_t shift = 0;
    if (failed || !offsets)
        return failed;
    if (clock == CLOCK_REALTIME || monotonic)
        shift = offsets[monotonic] * 1000;
    if (clock == CLOCK_BOOTTIME || monotonic)
        shift += (nanos_of(now) - began[clock]) * rate / 1000000;
    if (shift) {
        int64_t nanos = nanos_of(now) + shift;
        now->tv_sec = nanos / 1000000000;
        now->tv_nsec = nanos % 1000000000;
    }
    return failed;
}

static void fail(const char *what) {
    fprintf(stderr, "stepped_clock: %s\n", what);
    abort();
}

// Some programs read clocks from the kernel's library in the process (vDSO), past the C library. This replaces its function in
// this process by a jump to the one above.
static void replace_function_of_kernel(void) {
#ifdef __x86_64__
    const char *image = (const char *)getauxval(AT_SYSINFO_EHDR);
    if (!image)
        fail("there is no vDSO");
    const Elf64_Ehdr *header = (const void *)image;
    const Elf64_Shdr *sections = (const void *)(image + header->e_shoff), *symbols = sections;
    while (symbols < sections + header->e_shnum && symbols->sh_type != SHT_DYNSYM)
        symbols++;
    if (symbols == sections + header->e_shnum)
        fail("the vDSO has no symbols");
    const char *names = image + sections[symbols->sh_link].sh_offset;
    const Elf64_Sym *symbol = (const void *)(image + symbols->sh_offset), *end = symbol + symbols->sh_size / sizeof *symbol;
    while (symbol < end && strcmp(names + symbol->st_name, "__vdso_clock_gettime"))
        symbol++;
    if (symbol == end)
        fail("the vDSO reads no clocks");
    // movabs to %rax, jmp *%rax
    unsigned char jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
    int (*function)(clockid_t, struct timespec *) = clock_gettime;
    memcpy(jump + 2, &function, sizeof function);
    int memory = open("/proc/self/mem", O_RDWR);
    if (pwrite(memory, jump, sizeof jump, (off_t)(image + symbol->st_value)) != sizeof jump)
        fail("the vDSO can't be written");
    close(memory);
#else
    fail("a clock with another rate works on x86_64 only");
#endif
}

__attribute__((constructor)) static void find_offsets(void) {
    int file = open(getenv("STEPPED_CLOCK"), O_RDONLY);
    void *mapped = mmap(NULL, 3 * sizeof *offsets, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        fail("STEPPED_CLOCK is no file of offsets");
    struct timespec now;
    for (clockid_t clock = 0; clock <= CLOCK_BOOTTIME; clock++)
        if (!clock_gettime(clock, &now))
            began[clock] = nanos_of(&now);
    rate = ((const int64_t *)mapped)[2];
    offsets = mapped;
    if (rate)
        replace_function_of_kernel();
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
