/* What the provider and the load clients share: a clock, a growing buffer, samples with percentiles. */
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* A stamped token is STAMP_MARK, STAMP_DIGITS digits of CLOCK_MONOTONIC nanoseconds, STAMP_END: no proxy has a reason to
 * escape or rewrite it, and a reader on the same machine can subtract it from its own clock. */
#define STAMP_MARK '@'
#define STAMP_END ';'
#define STAMP_DIGITS 19
#define STAMP_LEN (STAMP_DIGITS + 2)

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

struct buffer {
  char *data;
  size_t len, cap;
};

static inline char *buffer_room(struct buffer *b, size_t more) {
  if (b->len + more > b->cap) {
    b->cap = (b->len + more) * 2;
    b->data = realloc(b->data, b->cap);
    if (!b->data) die("out of memory");
  }
  return b->data + b->len;
}

static inline void buffer_add(struct buffer *b, const void *bytes, size_t n) {
  memcpy(buffer_room(b, n), bytes, n);
  b->len += n;
}

static inline void buffer_drop(struct buffer *b, size_t n) {
  memmove(b->data, b->data + n, b->len - n);
  b->len -= n;
}

struct samples {
  double *at;
  size_t n, cap;
};

static inline void samples_add(struct samples *s, double x) {
  if (s->n == s->cap) {
    s->cap = s->cap ? s->cap * 2 : 4096;
    s->at = realloc(s->at, s->cap * sizeof *s->at);
    if (!s->at) die("out of memory");
  }
  s->at[s->n++] = x;
}

static int samples_order(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Prints "name":{...} with nearest-rank percentiles; nulls where nothing was measured, never a zero. */
static inline void samples_print(struct samples *s, const char *name) {
  if (!s->n) {
    printf("\"%s\":{\"n\":0,\"mean\":null,\"p50\":null,\"p90\":null,\"p99\":null,\"max\":null}", name);
    return;
  }
  qsort(s->at, s->n, sizeof *s->at, samples_order);
  double sum = 0;
  for (size_t i = 0; i < s->n; i++) sum += s->at[i];
#define RANK(p) s->at[(size_t)((p) * (double)(s->n - 1) + 0.5)]
  printf("\"%s\":{\"n\":%zu,\"mean\":%.2f,\"p50\":%.2f,\"p90\":%.2f,\"p99\":%.2f,\"max\":%.2f}", name, s->n, sum / (double)s->n,
         RANK(0.50), RANK(0.90), RANK(0.99), s->at[s->n - 1]);
#undef RANK
}

/* Finds a header's value inside a head that ends with a blank line; NULL if absent. */
static inline const char *header_value(const char *head, size_t len, const char *name) {
  size_t n = strlen(name);
  const char *end = head + len;
  for (const char *line = memchr(head, '\n', len); line && line + 1 < end; line = memchr(line, '\n', (size_t)(end - line))) {
    line++;
    if ((size_t)(end - line) > n && line[n] == ':' && !strncasecmp(line, name, n)) {
      const char *v = line + n + 1;
      while (v < end && *v == ' ') v++;
      return v;
    }
  }
  return NULL;
}

static inline void allow_many_sockets(void) {
  struct rlimit r;
  if (!getrlimit(RLIMIT_NOFILE, &r)) {
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
  }
}

static inline void quiet_socket(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}
