/* Holds back every write to a journal of WiredTiger for as long as the file that LEASEHOLD_JOURNAL_HELD
   names is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void hold_back(int file) {
    char link[64], path[4096];
    const char *flag = getenv("LEASEHOLD_JOURNAL_HELD");
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (flag == NULL || length < 0) { return; }
    path[length] = 0;
    if (strstr(path, "/WiredTigerLog.") == NULL) { return; }
    while (access(flag, F_OK) == 0) usleep(1000);
}

#define HELD_BACK(name)                                                                            \
    ssize_t name(int file, const void *bytes, size_t length, off_t at) {                           \
        ssize_t (*write)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, #name);              \
        hold_back(file);                                                                           \
        return write(file, bytes, length, at);                                                     \
    }

HELD_BACK(pwrite)
HELD_BACK(pwrite64)
