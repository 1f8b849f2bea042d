/* Lets calls of the program it is loaded into fail, as the control file says that the test has mapped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

struct control { volatile int files, processes, slow_ms; };
static struct control none, *control = &none;
static const char *folder = "";
static size_t length;

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_CONTROL");
    folder = getenv("FAULTS_FOLDER") ? getenv("FAULTS_FOLDER") : "";
    length = strlen(folder);
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) control = mapped;
    if (file >= 0) close(file);
}

static int is_below(const char *path) { return path && length && !strncmp(path, folder, length); }

static int fails_path(const char *path) {
    if (!control->files || !is_below(path)) return 0;
    errno = control->files;
    return 1;
}

static int fails(int file) {
    char link[64], path[4096];
    if (!control->files && !control->slow_ms) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    if (control->slow_ms && is_below(path)) usleep(control->slow_ms * 1000);
    return fails_path(path);
}

/* Reading works on a full disk, and not on a broken one: there only the configuration can be read, without which nothing starts. */
static int is_config(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path);
    return size > 5 && !memcmp(path + size - 5, ".toml", 5);
}
static int fails_read(int file) { return control->files == EIO && !is_config(file) && fails(file); }
/* A full disk takes names, but no content. */
static int fails_name(const char *path) { return control->files == EIO && fails_path(path); }
static int fails_open(const char *path, int flags) { return flags & O_CREAT && access(path, F_OK) && fails_name(path); }

#define OPEN(name, before, given) \
    int name before { \
        mode_t mode = 0; \
        if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        REAL(name); \
        return fails_open(path, flags) ? -1 : real given; \
    }
OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))

/* A file that has its one block needs no other on a full disk. */
static int fails_pwrite(int file, size_t end) {
    struct stat found;
    return !(control->files == ENOSPC && !fstat(file, &found) && found.st_size <= 4096 && end <= (size_t)found.st_size) && fails(file);
}

#define ON_FILE(type, name, test, parameters, given) \
    type name parameters { REAL(name); return test(file) ? -1 : real given; }
ON_FILE(ssize_t, write, fails, (int file, const void *from, size_t size), (file, from, size))
ssize_t pwrite(int file, const void *from, size_t size, off_t at) {
    REAL(pwrite);
    return fails_pwrite(file, at + size) ? -1 : real(file, from, size, at);
}
ssize_t pwrite64(int file, const void *from, size_t size, off64_t at) {
    REAL(pwrite64);
    return fails_pwrite(file, at + size) ? -1 : real(file, from, size, at);
}
ON_FILE(ssize_t, read, fails_read, (int file, void *to, size_t size), (file, to, size))
ON_FILE(ssize_t, pread, fails_read, (int file, void *to, size_t size, off_t at), (file, to, size, at))
ON_FILE(ssize_t, pread64, fails_read, (int file, void *to, size_t size, off64_t at), (file, to, size, at))
ON_FILE(int, fsync, fails, (int file), (file))
ON_FILE(int, fdatasync, fails, (int file), (file))
ON_FILE(int, ftruncate, fails_read, (int file, off_t size), (file, size))
ON_FILE(int, ftruncate64, fails_read, (int file, off64_t size), (file, size))

int mkdir(const char *path, mode_t mode) { REAL(mkdir); return access(path, F_OK) && fails_name(path) ? -1 : real(path, mode); }
int rename(const char *from, const char *to) { REAL(rename); return fails_name(to) ? -1 : real(from, to); }
int unlink(const char *path) { REAL(unlink); return fails_name(path) ? -1 : real(path); }

pid_t fork(void) {
    REAL(fork);
    if (!control->processes) return real();
    errno = control->processes;
    return -1;
}

/* The real one must not return from a function of ours. */
pid_t vfork(void) { return fork(); }

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
    REAL(pthread_create);
    return control->processes ? EAGAIN : real(thread, how, run, with);
}
