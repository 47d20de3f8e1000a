/* A file system that fails, and a death at a chosen moment: preloaded into one command.
 *
 * Counts the changes that a process makes below DRILL_BELOW (files opened for writing, writes,
 * syncs, renames, directories, links, removals), and the programs that it starts and waits for.
 * From change DRILL_FROM on, DRILL_FAULT happens: an errno, or 0, which is SIGKILL.
 * DRILL_COUNTER names a file of 8 bytes where the count can be read, also of one that was killed.
 * With DRILL_LATE the change is made, and its answer is the error: so NFS answers where a reply was
 * lost and the request came again. DRILL_SLOW is the seconds that the change takes, without a fault.
 * DRILL_LOCK is the errno of every lock. Only the first process is meant, or all with DRILL_ALL.
 */
#define _GNU_SOURCE
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
#include <unistd.h>

static const char *below;
static long from = 0, fault = 0, lock_fault = 0, once = 0, late = 0, slow = 0, ready = 0;
static long own_count, *count = &own_count;

__attribute__((constructor)) static void begin(void) {
    char number[32];
    const char *pid = getenv("DRILL_PID"), *file = getenv("DRILL_COUNTER");
    below = getenv("DRILL_BELOW");
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
#define WRAP(type, name, params, args, where, frees) \
    type name params { \
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
WRAP(int, chmod, (const char *p, mode_t m), (p, m), at_path(AT_FDCWD, p), 1)
WRAP(int, mkdir, (const char *p, mode_t m), (p, m), at_path(AT_FDCWD, p), 0)
WRAP(int, mkdirat, (int d, const char *p, mode_t m), (d, p, m), at_path(d, p), 0)
WRAP(int, rmdir, (const char *p), (p), at_path(AT_FDCWD, p), 1)
WRAP(int, unlink, (const char *p), (p), at_path(AT_FDCWD, p), 1)
WRAP(int, unlinkat, (int d, const char *p, int f), (d, p, f), at_path(d, p), 1)
WRAP(int, rename, (const char *a, const char *b), (a, b), at_path(AT_FDCWD, b), 1)
WRAP(int, renameat, (int c, const char *a, int d, const char *b), (c, a, d, b), at_path(d, b), 1)
WRAP(int, symlink, (const char *a, const char *b), (a, b), at_path(AT_FDCWD, b), 0)
WRAP(int, link, (const char *a, const char *b), (a, b), at_path(AT_FDCWD, b), 0)

#define OPEN(name, first, passed, dir) \
    int name(first const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int changes = (flags & (O_CREAT | O_TRUNC)) || (flags & O_ACCMODE) != O_RDONLY; \
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
    return REAL(flock)(fd, how);
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
