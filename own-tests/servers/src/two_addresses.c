/* Gives the name "two.test" two addresses: first 127.0.0.2, then 127.0.0.1. Other names have their own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>

typedef int (*lookup)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    lookup real = (lookup)dlsym(RTLD_NEXT, "getaddrinfo");
    if (node == NULL || strcmp(node, "two.test") != 0)
        return real(node, service, hints, found);
    int status = real("127.0.0.2", service, hints, found);
    if (status != 0)
        return status;
    struct addrinfo *last = *found;
    while (last->ai_next != NULL)
        last = last->ai_next;
    return real("127.0.0.1", service, hints, &last->ai_next);
}
