/*
 * A wall clock that may be set, for one process (LD_PRELOAD).
 *
 * The file that WALL_CLOCK_FILE names holds one int64: by how many nanoseconds the wall clock is wrong. It is mapped, so
 * whoever writes it moves the clock of every process at once. Whatever counts from the boot of the machine is untouched,
 * as on a machine whose clock is set. A wait until a moment of the wall clock ends when the wrong clock says so, at most
 * SLICE_NS late.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
#define SLICE_NS 50000000LL
/* No machine has been up for so long: a later moment is one of the wall clock. */
#define LONGEST_UPTIME_SECONDS 1000000000LL

static const int64_t right;
static const volatile int64_t *wrong_by = &right;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_sem_timedwait)(sem_t *, const struct timespec *);
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_cond_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
    real_syscall = dlsym(RTLD_NEXT, "syscall");
    const char *path = getenv("WALL_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        wrong_by = mapped;
}

static int64_t nanoseconds(const struct timespec *moment) {
    return moment->tv_sec * SECOND_NS + moment->tv_nsec;
}

static struct timespec moment(int64_t ns) {
    struct timespec made = {ns / SECOND_NS, ns % SECOND_NS};
    return made;
}

static int64_t now(clockid_t clock) {
    struct timespec read;
    if (!real_clock_gettime)
        begin();
    real_clock_gettime(clock, &read);
    return nanoseconds(&read);
}

/* Where a wait until `until` (of the wrong clock) has to look again, in the right clock. */
static struct timespec next_look(const struct timespec *until) {
    int64_t at = nanoseconds(until) - *wrong_by, soon = now(CLOCK_REALTIME) + SLICE_NS;
    return moment(at < soon ? (at < 0 ? 0 : at) : soon);
}

static int is_over(const struct timespec *until) {
    return now(CLOCK_REALTIME) + *wrong_by >= nanoseconds(until);
}

int clock_gettime(clockid_t clock, struct timespec *read) {
    if (!real_clock_gettime)
        begin();
    int status = real_clock_gettime(clock, read);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *read = moment(nanoseconds(read) + *wrong_by);
    return status;
}

int gettimeofday(struct timeval *restrict read, void *restrict zone) {
    (void)zone;
    int64_t ns = now(CLOCK_REALTIME) + *wrong_by;
    read->tv_sec = ns / SECOND_NS;
    read->tv_usec = ns % SECOND_NS / 1000;
    return 0;
}

time_t time(time_t *read) {
    time_t seconds = (now(CLOCK_REALTIME) + *wrong_by) / SECOND_NS;
    if (read)
        *read = seconds;
    return seconds;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    for (;;) {
        struct timespec look = next_look(until);
        int status = real_sem_timedwait(semaphore, &look);
        if (status == 0 || errno != ETIMEDOUT || is_over(until))
            return status;
    }
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    if (until->tv_sec < LONGEST_UPTIME_SECONDS)
        return real_cond_timedwait(condition, mutex, until);
    struct timespec look = next_look(until);
    int status = real_cond_timedwait(condition, mutex, &look);
    /* A wake-up without a reason is allowed, and whoever waits looks again. */
    return status == ETIMEDOUT && !is_over(until) ? 0 : status;
}

long syscall(long number, ...) {
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int index = 0; index < 6; index++)
        given[index] = va_arg(rest, long);
    va_end(rest);
    if (!real_syscall)
        begin();
    const struct timespec *until = (const struct timespec *)given[3];
    int by_wall_clock = number == SYS_futex && until && (given[1] & FUTEX_CLOCK_REALTIME);
    for (;;) {
        struct timespec look;
        if (by_wall_clock) {
            look = next_look(until);
            given[3] = (long)&look;
        }
        long status =
            real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
        if (!by_wall_clock || status != -1 || errno != ETIMEDOUT || is_over(until))
            return status;
    }
}
