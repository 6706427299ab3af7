/* A program that asks for its parent forks instead: Rust has no fork without unsafe code. */
#include <unistd.h>

pid_t getppid(void) { return fork(); }
