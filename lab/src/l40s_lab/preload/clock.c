/* A node's own time of day: CLOCK_REALTIME moved by the seconds in /run/l40s-lab/clock, which is read when a process
 * begins and again ten times a second: a file that changes is a clock that is set; one that goes changes nothing.
 * The kernel has time namespaces for every clock but this one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew;
static long long read_at;
static int (*real_gettime)(clockid_t, struct timespec *);

static void look(void) {
  char text[32];
  int kept = errno, file = open("/run/l40s-lab/clock", O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
  if (length > 0) {
    text[length] = 0;
    skew = strtol(text, NULL, 10);
  }
  if (file >= 0) close(file);
  errno = kept;
}

__attribute__((constructor)) static void begin(void) {
  real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  look();
}

int clock_gettime(clockid_t clock, struct timespec *out) {
  if (!real_gettime) real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int wrong = real_gettime(clock, out);
  if (!wrong && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    struct timespec now;
    if (!real_gettime(CLOCK_MONOTONIC_COARSE, &now)) {
      long long tenths = now.tv_sec * 10LL + now.tv_nsec / 100000000;
      if (tenths != read_at) {
        read_at = tenths;
        look();
      }
    }
    out->tv_sec += skew;
  }
  return wrong;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
