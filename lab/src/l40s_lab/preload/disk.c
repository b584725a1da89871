/* A slow disk: what a program reads from and writes to ordinary files takes as long as /run/l40s-lab/disk-rate (bytes
 * a second, read once a process) says. Memory mappings are not slowed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double rate;

__attribute__((constructor)) static void begin(void) {
  FILE *file = fopen("/run/l40s-lab/disk-rate", "re");
  if (!file) return;
  if (fscanf(file, "%lf", &rate) != 1) rate = 0;
  fclose(file);
}

/* Files of /proc and /sys say that they are empty or one page long; pipes and sockets are no ordinary files. */
static ssize_t spend(int file, ssize_t bytes) {
  struct stat what;
  if (bytes > 0 && rate > 0 && !fstat(file, &what) && S_ISREG(what.st_mode) && what.st_size > 4096) {
    double seconds = (double)bytes / rate;
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
  }
  return bytes;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

ssize_t read(int file, void *out, size_t count) {
  return spend(file, REAL(ssize_t, "read", int, void *, size_t)(file, out, count));
}
ssize_t pread(int file, void *out, size_t count, off_t at) {
  return spend(file, REAL(ssize_t, "pread", int, void *, size_t, off_t)(file, out, count, at));
}
ssize_t pread64(int file, void *out, size_t count, off64_t at) {
  return spend(file, REAL(ssize_t, "pread64", int, void *, size_t, off64_t)(file, out, count, at));
}
ssize_t write(int file, const void *from, size_t count) {
  return spend(file, REAL(ssize_t, "write", int, const void *, size_t)(file, from, count));
}
ssize_t pwrite(int file, const void *from, size_t count, off_t at) {
  return spend(file, REAL(ssize_t, "pwrite", int, const void *, size_t, off_t)(file, from, count, at));
}
