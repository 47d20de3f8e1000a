/* A file system that fails, and a death at a chosen moment: preloaded into one command.
 *
 * Counts the changes that a process makes below DRILL_BELOW (files opened for writing, writes,
 * syncs, renames, directories, links, removals), and the programs that it starts and waits for.
 * From change DRILL_FROM on, DRILL_FAULT happens: an errno, or 0, which is SIGKILL.
 * DRILL_COUNTER names a file of 8 bytes where the count can be read, also of one that was killed.
 * With DRILL_LATE the change is made, and its answer is the error: so NFS answers where a reply was
 * lost and the request came again. DRILL_SLOW is the seconds that the change takes, without a fault.
 * DRILL_LOCK is the errno of every lock. Only the first process is meant, or all with DRILL_ALL.
 * With DRILL_CLIENT, a file, a process sees files as a client of NFS does (nfs(5), "Data and
 * metadata coherence"): names, also of what is not there, attributes and links are what this client
 * saw in the last minute. Opening a file or a directory, and a lock, look anew.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REAL_(type, name, params) ((type (*)params)dlsym(RTLD_NEXT, #name))

static const char *below;
static long from = 0, fault = 0, lock_fault = 0, once = 0, late = 0, slow = 0, ready = 0;
static long own_count, *count = &own_count;

static void join(void);

__attribute__((constructor)) static void begin(void) {
    char number[32];
    const char *pid = getenv("DRILL_PID"), *file = getenv("DRILL_COUNTER");
    below = getenv("DRILL_BELOW");
    if (below) join();
    snprintf(number, sizeof number, "%d", (int)getpid());
    if (!below || (pid && strcmp(pid, number) && !getenv("DRILL_ALL"))) return;
    setenv("DRILL_PID", number, 0);
    if (getenv("DRILL_FROM")) from = atol(getenv("DRILL_FROM"));
    if (getenv("DRILL_FAULT")) fault = atol(getenv("DRILL_FAULT"));
    if (getenv("DRILL_LOCK")) lock_fault = atol(getenv("DRILL_LOCK"));
    if (getenv("DRILL_SLOW")) slow = atol(getenv("DRILL_SLOW"));
    once = getenv("DRILL_ONCE") != 0;
    late = getenv("DRILL_LATE") != 0;
    int fd = file ? syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *map = mmap(0, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) count = map;
        syscall(SYS_close, fd);
    }
    ready = getpid();
}

static int is_below(const char *path) {
    size_t length = strlen(below);
    return !strncmp(path, below, length) && (path[length] == '/' || !path[length]);
}

static int at_path(int dir, const char *path) {
    char whole[PATH_MAX], link[64];
    if (!ready || !path) return 0;
    if (path[0] == '/') return is_below(path);
    if (dir == AT_FDCWD) return getcwd(whole, sizeof whole) && is_below(whole);
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t size = readlink(link, whole, sizeof whole - 1);
    if (size < 0) return 0;
    whole[size] = 0;
    return is_below(whole);
}

static int at_file(int fd) { return fd > 2 && at_path(fd, "."); }

/* What a client of NFS remembers. Its processes share the file; a name has a slot for each question. */
enum { SLOTS = 8192, LONGEST = 320 };
struct seen { double until; int question, error; char path[LONGEST], target[LONGEST]; struct stat64 status; };
static struct { int busy; struct seen slots[SLOTS]; } *client;
static const double kept = 60;

static void join(void) {
    const char *file = getenv("DRILL_CLIENT");
    int fd = file ? (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    syscall(SYS_ftruncate, fd, sizeof *client);
    client = mmap(0, sizeof *client, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (client == MAP_FAILED) client = 0;
    syscall(SYS_close, fd);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const char *named(int dir, const char *path, char *whole) {
    char link[64];
    if (!client || !path || !below) return 0;
    if (path[0] == '/') snprintf(whole, LONGEST, "%s", path);
    else {
        snprintf(link, sizeof link, dir == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dir);
        ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, whole, LONGEST - 1);
        if (size < 0) return 0;
        snprintf(whole + size, (size_t)(LONGEST - size), "/%s", path);
    }
    return is_below(whole) ? whole : 0;
}

static struct seen *slot(const char *path, int question) {
    unsigned long hash = (unsigned long)question;
    for (const char *p = path; *p; p++) hash = hash * 131 + (unsigned char)*p;
    return &client->slots[hash % SLOTS];
}

static int recalled(const char *path, int question, struct seen *found) {
    while (__atomic_exchange_n(&client->busy, 1, __ATOMIC_ACQUIRE)) usleep(50);
    *found = *slot(path, question);
    __atomic_store_n(&client->busy, 0, __ATOMIC_RELEASE);
    return found->until > now_s() && found->question == question && !strcmp(found->path, path);
}

static void keep(const char *path, struct seen *found, int question, int failed) {
    if (failed && errno != ENOENT) return;
    found->error = failed ? errno : 0;
    found->until = now_s() + kept;
    found->question = question;
    snprintf(found->path, LONGEST, "%s", path);
    while (__atomic_exchange_n(&client->busy, 1, __ATOMIC_ACQUIRE)) usleep(50);
    *slot(path, question) = *found;
    __atomic_store_n(&client->busy, 0, __ATOMIC_RELEASE);
}

/* Forget a name and, with BELOW, all that is below it; with INSIDE what is directly in it, and what
 * is reached by a link in it. */
enum { ITSELF, INSIDE, BELOW };

static int concerns(const char *rest, const char *path, int what) {
    char child[LONGEST], target[4];
    if (!*rest || what == BELOW) return !*rest || *rest == '/';
    const char *end = *rest == '/' && what == INSIDE ? strchr(rest + 1, '/') : rest;
    if (end == rest || !end) return !end;
    snprintf(child, sizeof child, "%.*s", (int)(end - path), path);
    return syscall(SYS_readlinkat, AT_FDCWD, child, target, sizeof target) > 0;
}

static void forget(int dir, const char *path, int what) {
    char whole[LONGEST];
    int error = errno;
    if (named(dir, path, whole)) {
        size_t length = strlen(whole);
        if (length > 2 && !strcmp(whole + length - 2, "/.")) length -= 2;
        for (struct seen *one = client->slots; one < client->slots + SLOTS; one++)
            if (one->until && !strncmp(one->path, whole, length) &&
                concerns(one->path + length, one->path, what)) one->until = 0;
    }
    errno = error;
}

#define ASKED(path, dir, question, call, copy_in, copy_out) \
    char whole[LONGEST]; struct seen found; \
    if (!named(dir, path, whole)) return call; \
    if (recalled(whole, question, &found)) { \
        if (found.error) { errno = found.error; return -1; } \
        copy_out; \
    } \
    memset(&found, 0, sizeof found); \
    ssize_t answer = call; \
    if (answer >= 0) copy_in; \
    keep(whole, &found, question, answer < 0); \
    return (typeof(call))answer;

#define STAT(name, params, args, type, dir, question) \
    int name params { \
        ASKED(path, dir, question, ((int (*)params)dlsym(RTLD_NEXT, #name)) args, \
            memcpy(&found.status, status, sizeof *status), \
            memcpy(status, &found.status, sizeof *status); return 0) \
    }
STAT(stat, (const char *path, struct stat *status), (path, status), stat, AT_FDCWD, 1)
STAT(stat64, (const char *path, struct stat64 *status), (path, status), stat64, AT_FDCWD, 1)
STAT(lstat, (const char *path, struct stat *status), (path, status), stat, AT_FDCWD, 2)
STAT(lstat64, (const char *path, struct stat64 *status), (path, status), stat64, AT_FDCWD, 2)
#define AT_QUESTION (flags & AT_SYMLINK_NOFOLLOW ? 2 : 1)
STAT(fstatat, (int dir, const char *path, struct stat *status, int flags), (dir, path, status, flags), stat, dir, AT_QUESTION)
STAT(fstatat64, (int dir, const char *path, struct stat64 *status, int flags), (dir, path, status, flags), stat64, dir, AT_QUESTION)

ssize_t readlinkat(int dir, const char *path, char *target, size_t size) {
    ASKED(path, dir, 3, ((ssize_t (*)(int, const char *, char *, size_t))dlsym(RTLD_NEXT, "readlinkat"))(dir, path, target, size),
        snprintf(found.target, LONGEST, "%.*s", (int)answer, target),
        size_t length = strnlen(found.target, size); memcpy(target, found.target, length); return (ssize_t)length)
}
ssize_t readlink(const char *path, char *target, size_t size) { return readlinkat(AT_FDCWD, path, target, size); }

DIR *opendir(const char *path) {
    forget(AT_FDCWD, path, INSIDE);
    return REAL_(DIR *, opendir, (const char *))(path);
}

/* One change: whether it fails now. `frees` are those that a full disk allows. */
static int fails(int frees) {
    long now = __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    if (!from || now < from || (once && now > from)) return 0;
    if (slow) { if (now == from) sleep((unsigned)slow); return 0; }
    if (!fault) { if (ready == getpid() || getenv("DRILL_ALL")) kill(getpid(), SIGKILL); return 0; }
    if (frees && (fault == ENOSPC || fault == EDQUOT)) return 0;
    errno = (int)fault;
    return 1;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(type, name, params, args, where, frees) CHANGE(type, name, params, args, where, frees, )
#define CHANGE(type, name, params, args, where, frees, forgotten) \
    type name params { \
        forgotten; \
        if (!(where) || !fails(frees)) return REAL(name) args; \
        int error = errno; \
        if (late) REAL(name) args; \
        errno = error; \
        return (type)-1; \
    }

WRAP(ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n), at_file(fd), 0)
WRAP(ssize_t, pwrite, (int fd, const void *d, size_t n, off_t o), (fd, d, n, o), at_file(fd), 0)
WRAP(ssize_t, pwrite64, (int fd, const void *d, size_t n, off64_t o), (fd, d, n, o), at_file(fd), 0)
WRAP(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), at_file(fd), 0)
WRAP(ssize_t, sendfile, (int out, int in, off_t *o, size_t n), (out, in, o, n), at_file(out), 0)
WRAP(ssize_t, sendfile64, (int out, int in, off64_t *o, size_t n), (out, in, o, n), at_file(out), 0)
WRAP(int, fsync, (int fd), (fd), at_file(fd), 0)
WRAP(int, fdatasync, (int fd), (fd), at_file(fd), 0)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), at_file(fd), 1)
WRAP(int, fchmod, (int fd, mode_t m), (fd, m), at_file(fd), 1)
CHANGE(int, chmod, (const char *p, mode_t m), (p, m), at_path(AT_FDCWD, p), 1, forget(AT_FDCWD, p, ITSELF))
CHANGE(int, mkdir, (const char *p, mode_t m), (p, m), at_path(AT_FDCWD, p), 0, forget(AT_FDCWD, p, BELOW))
CHANGE(int, mkdirat, (int d, const char *p, mode_t m), (d, p, m), at_path(d, p), 0, forget(d, p, BELOW))
CHANGE(int, rmdir, (const char *p), (p), at_path(AT_FDCWD, p), 1, forget(AT_FDCWD, p, BELOW))
CHANGE(int, unlink, (const char *p), (p), at_path(AT_FDCWD, p), 1, forget(AT_FDCWD, p, BELOW))
CHANGE(int, unlinkat, (int d, const char *p, int f), (d, p, f), at_path(d, p), 1, forget(d, p, BELOW))
CHANGE(int, rename, (const char *a, const char *b), (a, b), at_path(AT_FDCWD, b), 1, forget(AT_FDCWD, a, BELOW); forget(AT_FDCWD, b, BELOW))
CHANGE(int, renameat, (int c, const char *a, int d, const char *b), (c, a, d, b), at_path(d, b), 1, forget(c, a, BELOW); forget(d, b, BELOW))
CHANGE(int, symlink, (const char *a, const char *b), (a, b), at_path(AT_FDCWD, b), 0, forget(AT_FDCWD, b, BELOW))
CHANGE(int, link, (const char *a, const char *b), (a, b), at_path(AT_FDCWD, b), 0, forget(AT_FDCWD, b, BELOW))

#define OPEN(name, first, passed, dir) \
    int name(first const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int changes = (flags & (O_CREAT | O_TRUNC)) || (flags & O_ACCMODE) != O_RDONLY; \
        char whole[LONGEST]; struct seen found; \
        if (!changes && named(dir, path, whole) && recalled(whole, 2, &found) && found.error) { \
            errno = found.error; return -1; \
        } \
        if (!(flags & O_PATH)) forget(dir, path, changes ? BELOW : flags & O_DIRECTORY ? INSIDE : ITSELF); \
        if (changes && at_path(dir, path) && fails(!(flags & O_CREAT))) return -1; \
        return ((int (*)(first const char *, int, ...))dlsym(RTLD_NEXT, #name))(passed path, flags, mode); \
    }
#define NOTHING
#define DIR_ int dir,
#define PASS dir,
OPEN(open, NOTHING, NOTHING, AT_FDCWD)
OPEN(open64, NOTHING, NOTHING, AT_FDCWD)
OPEN(openat, DIR_, PASS, dir)
OPEN(openat64, DIR_, PASS, dir)

int flock(int fd, int how) {
    if (lock_fault && at_file(fd) && !(how & LOCK_UN)) { errno = (int)lock_fault; return -1; }
    int answer = REAL(flock)(fd, how);
    if (!answer) forget(fd, ".", ITSELF);
    return answer;
}

/* The moments before a program is started and after it has ended. */
int pipe2(int fds[2], int flags) {
    if (ready && !fault) fails(0);
    return REAL(pipe2)(fds, flags);
}

pid_t waitpid(pid_t pid, int *status, int options) {
    pid_t done = REAL(waitpid)(pid, status, options);
    if (ready && !fault && done > 0) fails(0);
    return done;
}
