/* Records what a process tells the disk about the files of one folder, in order: the names that it makes and removes,
   what it writes and cuts, and its syncs. Only SQLite's shared memory (-shm) is left out, because it is of no use after
   a loss of power.

   LEASEHOLD_RECORDED is the folder, and LEASEHOLD_RECORD is the file of the record. The process reads its boot id from
   the file LEASEHOLD_BOOT_ID, so that for a process that opens the files later the host has booted. log.rs reads the
   record. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NAMED = 1, UNNAMED, WRITTEN, CUT, SYNCED };
struct header { uint64_t kind, file, at, length; };

#define MOST_FILES 4096
/* The inode of each open file in the folder, and of the folder itself, by file descriptor. Any other file has 0. */
static uint64_t recorded[MOST_FILES];

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Each entry is one append, so that the entries of the application itself are in the right places among them. */
static void record(enum kind kind, uint64_t file, uint64_t at, const void *bytes, size_t length) {
    static int out = -1;
    if (out < 0) out = NEXT(open64)(getenv("LEASEHOLD_RECORD"), O_WRONLY | O_APPEND | O_CLOEXEC);
    struct header header = {kind, file, at, length};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)bytes, length}};
    if (writev(out, parts, 2) != (ssize_t)(sizeof header + length)) abort();
}

/* The part of a path after the folder. It is empty for the folder itself, and NULL for a path that is not recorded. */
static const char *name_of(const char *path) {
    const char *folder = getenv("LEASEHOLD_RECORDED");
    size_t length = folder ? strlen(folder) : 0, whole = strlen(path);
    if (length == 0 || strncmp(path, folder, length) != 0) return NULL;
    if (path[length] == 0) return "";
    if (path[length] != '/') return NULL;
    if (whole > 4 && strcmp(path + whole - 4, "-shm") == 0) return NULL;
    return path + length + 1;
}

static uint64_t file_of(int file) {
    return file >= 0 && file < MOST_FILES ? recorded[file] : 0;
}

static int opened(const char *path, int flags, mode_t mode) {
    const char *boot = getenv("LEASEHOLD_BOOT_ID");
    if (boot && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) path = boot;
    int file = NEXT(open64)(path, flags, mode);
    const char *name = file < 0 ? NULL : name_of(path);
    struct stat data;
    if (name == NULL) return file;
    if (file >= MOST_FILES || fstat(file, &data) != 0) abort();
    recorded[file] = data.st_ino;
    record(NAMED, data.st_ino, 0, name, strlen(name));
    if (flags & O_TRUNC) record(CUT, data.st_ino, 0, NULL, 0);
    return file;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;                  \
        va_end(more);                                                                              \
        return opened(path, flags, mode);                                                          \
    }
OPEN(open)
OPEN(open64)

int close(int file) {
    if (file_of(file)) recorded[file] = 0;
    return NEXT(close)(file);
}

ssize_t write(int file, const void *bytes, size_t length) {
    off_t at = file_of(file) ? lseek(file, 0, SEEK_CUR) : 0;
    ssize_t done = NEXT(write)(file, bytes, length);
    if (file_of(file) && done > 0) record(WRITTEN, file_of(file), at, bytes, done);
    return done;
}

#define WRITE_AT(name)                                                                             \
    ssize_t name(int file, const void *bytes, size_t length, off_t at) {                           \
        ssize_t done = NEXT(name)(file, bytes, length, at);                                        \
        if (file_of(file) && done > 0) record(WRITTEN, file_of(file), at, bytes, done);            \
        return done;                                                                               \
    }
WRITE_AT(pwrite)
WRITE_AT(pwrite64)

#define CUT_TO(name)                                                                               \
    int name(int file, off_t length) {                                                             \
        int failed = NEXT(name)(file, length);                                                     \
        if (file_of(file) && !failed) record(CUT, file_of(file), length, NULL, 0);                 \
        return failed;                                                                             \
    }
CUT_TO(ftruncate)
CUT_TO(ftruncate64)

/* In the test the record is the disk, so a sync does not have to wait for the real one. */
#define SYNC(name)                                                                                 \
    int name(int file) {                                                                           \
        if (!file_of(file)) return NEXT(name)(file);                                               \
        record(SYNCED, file_of(file), 0, NULL, 0);                                                 \
        return 0;                                                                                  \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    int failed = NEXT(unlink)(path);
    const char *name = failed ? NULL : name_of(path);
    if (name) record(UNNAMED, 0, 0, name, strlen(name));
    return failed;
}
