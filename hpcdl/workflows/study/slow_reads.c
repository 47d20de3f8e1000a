/* Gives a program the files below one folder as slower storage would: preloaded into it.
 *
 * HPCDL_READS_BELOW   the folder; files elsewhere are left alone
 * HPCDL_READS_RATE    bytes per second of this process; 0 for no limit
 *
 * Pages leave memory once they are read, as when a data set is larger than memory and every epoch
 * reads from the storage again.
 * Reads wait in one line, as at one device: each takes its bytes / rate from when the one before
 * was done. The data themselves are read from where they are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

typedef ssize_t (*pread_t)(int, void *, size_t, off_t);

static pthread_mutex_t line = PTHREAD_MUTEX_INITIALIZER;
static struct timespec device_free;

static int lies_below(int fd, const char *folder)
{
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    size_t prefix = strlen(folder);
    return strncmp(path, folder, prefix) == 0 && path[prefix] == '/';
}

static void wait_for_device(ssize_t bytes, double rate)
{
    struct timespec now, until;
    pthread_mutex_lock(&line);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (device_free.tv_sec < now.tv_sec ||
        (device_free.tv_sec == now.tv_sec && device_free.tv_nsec < now.tv_nsec))
        device_free = now;
    double seconds = (double)bytes / rate;
    device_free.tv_sec += (time_t)seconds;
    device_free.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (device_free.tv_nsec >= 1000000000L) {
        device_free.tv_nsec -= 1000000000L;
        device_free.tv_sec += 1;
    }
    until = device_free;
    pthread_mutex_unlock(&line);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        ;
}

static ssize_t slow(const char *name, int fd, void *data, size_t count, off_t offset)
{
    ssize_t got = ((pread_t)dlsym(RTLD_NEXT, name))(fd, data, count, offset);
    const char *folder = getenv("HPCDL_READS_BELOW");
    if (got <= 0 || folder == NULL || !lies_below(fd, folder))
        return got;
    const char *rate = getenv("HPCDL_READS_RATE");
    posix_fadvise(fd, 0, offset + got, POSIX_FADV_DONTNEED);
    if (rate != NULL && atof(rate) > 0)
        wait_for_device(got, atof(rate));
    return got;
}

ssize_t pread(int fd, void *data, size_t count, off_t offset)
{
    return slow("pread", fd, data, count, offset);
}

ssize_t pread64(int fd, void *data, size_t count, off_t offset)
{
    return slow("pread64", fd, data, count, offset);
}
