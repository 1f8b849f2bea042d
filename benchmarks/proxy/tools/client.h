/* The load clients' half of HTTP: one request at a time on a kept connection, answers parsed as they come. */
#pragma once
#include "common.h"

/* Placeholders of eight bytes inside a body, replaced by eight digits before each send: a conversation lasts for
 * TURNS_PER_CONVERSATION requests of one connection, a turn never repeats. Identical requests would flatter every cache. */
#define CONVERSATION_MARK "<<conv>>"
#define TURN_MARK "<<turn>>"
enum { MARK_LEN = 8, MAX_MARKS = 8, TURNS_PER_CONVERSATION = 16, READ_SIZE = 65536 };

enum phase { HEAD, FIXED, CHUNK_SIZE, CHUNK_DATA, CHUNK_TAIL, LAST_LINE, UNTIL_CLOSE, COMPLETE };

struct plan {
  const char *host, *path, *body_file, *key;
  int port, concurrency;
  double seconds, drain_s;
  unsigned long requests, sequence; /* requests 0: as many as fit in the seconds */
  struct sockaddr_in address;
  struct buffer request;
  size_t conversation_at[MAX_MARKS], turn_at[MAX_MARKS];
  int n_conversation, n_turn;
};

struct client {
  int fd;
  bool wants_out, active;
  char *request;
  size_t sent;
  unsigned long turns, conversation;
  uint64_t began;
  enum phase phase;
  struct buffer head;
  size_t left;
  int status;
  bool closes;
  void *extra;
};

typedef void body_reader(struct client *c, const char *bytes, size_t n);

static inline void find_marks(struct plan *p, const char *mark, size_t *at, int *n) {
  const char *from = p->request.data, *end = from + p->request.len;
  for (const char *hit; *n < MAX_MARKS && (hit = memmem(from, (size_t)(end - from), mark, MARK_LEN)); from = hit + MARK_LEN)
    at[(*n)++] = (size_t)(hit - p->request.data);
}

static inline void plan_request(struct plan *p) {
  FILE *f = fopen(p->body_file, "rb");
  if (!f) die(p->body_file);
  struct buffer body = {0};
  for (size_t n; (n = fread(buffer_room(&body, READ_SIZE), 1, READ_SIZE, f));) body.len += n;
  fclose(f);
  char head[1024];
  int n = snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nhost: %s:%d\r\ncontent-type: application/json\r\nauthorization: Bearer %s\r\n"
                   "x-api-key: %s\r\nanthropic-version: 2023-06-01\r\ncontent-length: %zu\r\n\r\n",
                   p->path, p->host, p->port, p->key, p->key, body.len);
  buffer_add(&p->request, head, (size_t)n);
  buffer_add(&p->request, body.data, body.len);
  find_marks(p, CONVERSATION_MARK, p->conversation_at, &p->n_conversation);
  find_marks(p, TURN_MARK, p->turn_at, &p->n_turn);
  p->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)p->port)};
  if (inet_pton(AF_INET, p->host, &p->address.sin_addr) != 1) die("host must be an IPv4 address");
}

static inline void plan_usage(const char *name) {
  fprintf(stderr, "usage: %s -p PORT -u PATH -b BODY_FILE -k KEY [-h HOST] [-c CONCURRENCY] [-d SECONDS] [-n REQUESTS]\n"
                  "       [-s FIRST_SEQUENCE_NUMBER] [-w SECONDS_TO_WAIT_FOR_THE_LAST]\n", name);
  exit(2);
}

static inline void plan_read(struct plan *p, int argc, char **argv) {
  *p = (struct plan){.host = "127.0.0.1", .key = "none", .concurrency = 1, .seconds = 1e9, .drain_s = 60};
  for (int o; (o = getopt(argc, argv, "h:p:u:b:k:c:d:n:s:w:")) != -1;) switch (o) {
      case 'h': p->host = optarg; break;
      case 'p': p->port = atoi(optarg); break;
      case 'u': p->path = optarg; break;
      case 'b': p->body_file = optarg; break;
      case 'k': p->key = optarg; break;
      case 'c': p->concurrency = atoi(optarg); break;
      case 'd': p->seconds = atof(optarg); break;
      case 'n': p->requests = strtoul(optarg, NULL, 10); break;
      case 's': p->sequence = strtoul(optarg, NULL, 10); break;
      case 'w': p->drain_s = atof(optarg); break;
      default: plan_usage(argv[0]);
    }
  if (!p->port || !p->path || !p->body_file || p->concurrency < 1 || (p->seconds > 1e8 && !p->requests)) plan_usage(argv[0]);
  plan_request(p);
}

static inline bool client_connect(struct plan *p, struct client *c, int epoll_fd) {
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (c->fd < 0) return false;
  if (connect(c->fd, (struct sockaddr *)&p->address, sizeof p->address)) {
    close(c->fd);
    c->fd = -1;
    return false;
  }
  quiet_socket(c->fd);
  c->wants_out = false;
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
  return !epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e);
}

static inline void write_number(char *at, unsigned long n) {
  for (int i = MARK_LEN - 1; i >= 0; i--, n /= 10) at[i] = (char)('0' + n % 10);
}

/* Writes what the socket takes; false when the connection is gone. */
static inline bool client_push(struct plan *p, struct client *c, int epoll_fd) {
  while (c->sent < p->request.len) {
    ssize_t n = send(c->fd, c->request + c->sent, p->request.len - c->sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return false;
    c->sent += (size_t)n;
  }
  bool pending = c->sent < p->request.len;
  if (pending != c->wants_out) {
    c->wants_out = pending;
    struct epoll_event e = {.events = EPOLLIN | (pending ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
  }
  return true;
}

static inline bool client_begin(struct plan *p, struct client *c, int epoll_fd) {
  if (!c->request) {
    c->request = malloc(p->request.len);
    if (!c->request) die("out of memory");
    memcpy(c->request, p->request.data, p->request.len);
  }
  unsigned long turn = p->sequence++;
  if (c->turns++ % TURNS_PER_CONVERSATION == 0) c->conversation = turn;
  for (int i = 0; i < p->n_conversation; i++) write_number(c->request + p->conversation_at[i], c->conversation);
  for (int i = 0; i < p->n_turn; i++) write_number(c->request + p->turn_at[i], turn);
  c->sent = 0, c->phase = HEAD, c->head.len = 0, c->status = 0, c->active = true;
  c->began = now_ns();
  return client_push(p, c, epoll_fd);
}

static inline size_t read_head(struct client *c, const char *bytes, size_t n) {
  size_t before = c->head.len;
  buffer_add(&c->head, bytes, n);
  char *end = memmem(c->head.data, c->head.len, "\r\n\r\n", 4);
  if (!end) return n;
  size_t len = (size_t)(end - c->head.data) + 4;
  const char *length = header_value(c->head.data, len, "content-length");
  const char *coding = header_value(c->head.data, len, "transfer-encoding");
  const char *kept = header_value(c->head.data, len, "connection");
  c->status = atoi(c->head.data + 9);
  c->closes = kept && !strncasecmp(kept, "close", 5);
  c->left = length ? strtoul(length, NULL, 10) : 0;
  if (coding && !strncasecmp(coding, "chunked", 7))
    c->phase = CHUNK_SIZE, c->left = 0;
  else if (length)
    c->phase = c->left ? FIXED : COMPLETE;
  else
    c->phase = UNTIL_CLOSE, c->closes = true;
  return len - before;
}

/* Takes bytes of an answer; c->phase is COMPLETE when it ended. */
static inline void client_read(struct client *c, const char *bytes, size_t n, body_reader *on_body) {
  while (n && c->phase != COMPLETE) {
    size_t used = 1;
    switch (c->phase) {
      case HEAD: used = read_head(c, bytes, n); break;
      case CHUNK_SIZE: /* hexadecimal digits up to the end of the line */
        if (*bytes == '\n')
          c->phase = c->left ? CHUNK_DATA : LAST_LINE, c->left += c->left ? 2 : 0;
        else if (strchr("0123456789abcdefABCDEF", *bytes))
          c->left = c->left * 16 + (size_t)(*bytes <= '9' ? *bytes - '0' : (*bytes | 32) - 'a' + 10);
        break;
      case CHUNK_DATA: /* left counts the two bytes after the chunk as well */
        used = n < c->left - 2 ? n : c->left - 2;
        if (on_body && used) on_body(c, bytes, used);
        c->left -= used;
        if (c->left == 2) c->phase = CHUNK_TAIL;
        break;
      case CHUNK_TAIL:
        if (--c->left == 0) c->phase = CHUNK_SIZE;
        break;
      case LAST_LINE: /* no trailers are expected: the blank line ends it */
        if (*bytes == '\n') c->phase = COMPLETE;
        break;
      case FIXED:
      case UNTIL_CLOSE:
        used = c->phase == FIXED && n > c->left ? c->left : n;
        if (on_body) on_body(c, bytes, used);
        if (c->phase == FIXED && !(c->left -= used)) c->phase = COMPLETE;
        break;
      case COMPLETE: break;
    }
    bytes += used, n -= used;
  }
}

/* What happened to a request: told to the program that sent it. */
typedef void outcome_reader(struct client *c, bool whole);
typedef void arrival_reader(struct client *c, uint64_t at);

struct hooks {
  body_reader *on_body;
  arrival_reader *on_read; /* before and after each read's bytes are parsed: may be NULL */
  outcome_reader *on_end;
};

/* Runs the closed loop: every client sends, waits for its answer, sends again; no new ones after the time or the count;
 * then up to drain_s for the last. Returns when the last ended, in seconds since the start; unfinished counts the rest. */
static inline double run_closed_loop(struct plan *p, struct hooks *hooks, unsigned long *unfinished) {
  int epoll_fd = epoll_create1(0);
  struct client *clients = calloc((size_t)p->concurrency, sizeof *clients);
  if (!clients) die("out of memory");
  unsigned long started = 0, active = 0;
  for (int i = 0; i < p->concurrency; i++)
    if (!client_connect(p, &clients[i], epoll_fd)) die("connect");
  uint64_t t0 = now_ns(), stop = t0 + (uint64_t)(p->seconds * 1e9), give_up = stop + (uint64_t)(p->drain_s * 1e9), last = t0;
#define MAY_START() ((!p->requests || started < p->requests) && now_ns() < stop)
  for (int i = 0; i < p->concurrency && MAY_START(); i++) {
    started++, active++;
    if (!client_begin(p, &clients[i], epoll_fd)) die("send");
  }
  struct epoll_event events[256];
  static char bytes[READ_SIZE];
  while (active && now_ns() < give_up) {
    int n = epoll_wait(epoll_fd, events, 256, 100);
    for (int i = 0; i < n; i++) {
      struct client *c = events[i].data.ptr;
      bool gone = events[i].events & EPOLLOUT && c->active && !client_push(p, c, epoll_fd);
      if (!gone && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        ssize_t got = recv(c->fd, bytes, sizeof bytes, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got > 0 && c->active) {
          uint64_t at = now_ns();
          if (hooks->on_read) hooks->on_read(c, at);
          client_read(c, bytes, (size_t)got, hooks->on_body);
          if (hooks->on_read) hooks->on_read(c, 0);
        }
        gone = got <= 0;
      }
      bool ended = c->active && (c->phase == COMPLETE || gone);
      if (ended) {
        hooks->on_end(c, c->phase == COMPLETE || (c->phase == UNTIL_CLOSE && gone));
        last = now_ns();
        c->active = false, active--;
      }
      if (gone || (ended && c->closes)) {
        close(c->fd);
        if (!client_connect(p, c, epoll_fd)) continue; /* the target refuses: this client is out */
      }
      if (!c->active && c->fd >= 0 && MAY_START()) {
        started++, active++;
        client_begin(p, c, epoll_fd);
      }
    }
  }
#undef MAY_START
  *unfinished = active;
  return (double)(last - t0) / 1e9;
}
