/* A model provider that costs almost nothing: OpenAI chat completions and Anthropic messages, one thread, epoll.
 *
 *   provider [PORT]          prints "listening PORT"; 0 or nothing picks a free port
 *
 * A request may carry a wish anywhere in its body: [[bench delay_us=0 pace_us=5000 chunks=64]]
 *   stream:      the first token after delay_us, then one token each pace_us, every one written on its own (0: a burst)
 *   not stream:  the same tokens in one answer, after the time the stream would have taken
 * Every such token is a stamp of the moment it was made. Without a wish the answer is fixed, about 600 bytes, at once.
 * [[bench keep]] remembers the request's body, GET /kept gives it back: that is how placing skills is checked.
 */
#include "common.h"

enum { CHUNKS = 64, MAX_EVENTS = 256, MAX_HEAD = 65536 };

struct conn {
  int fd;
  bool wants_out, dead, busy;
  struct buffer in, out;
  size_t out_off, head_len, body_len;
  bool chunked, anthropic, stream, wish;
  int chunks, sent;
  uint64_t start, due, pace_ns;
  int slot; /* index among the waiting, -1 if not waiting */
};

static int epoll_fd, timer_fd;
static struct conn **waiting;
static int n_waiting, cap_waiting;
static struct conn *graveyard[MAX_EVENTS * 2];
static int n_graves;
static struct buffer kept;
static char chat_answer[2048], messages_answer[2048];
static size_t chat_answer_len, messages_answer_len;
static unsigned long n_requests, n_streams;

static const char PROSE[] =
    "The migration fails because the new column is created without a default while the table already holds rows. I split it in "
    "two revisions: the first adds the column as nullable and fills it in batches, the second sets the constraint. Both were "
    "applied and rolled back on a copy of the database and the suite passes.";

static size_t json_reply(char *to, size_t cap, const char *body) {
  return (size_t)snprintf(to, cap, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", strlen(body),
                          body);
}

static void chat_body(char *to, size_t cap, const char *text, int tokens) {
  snprintf(to, cap,
           "{\"id\":\"chatcmpl-bench0001\",\"object\":\"chat.completion\",\"created\":1750000000,\"model\":\"bench-model\",\"choices\":"
           "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
           "\"usage\":{\"prompt_tokens\":210,\"completion_tokens\":%d,\"total_tokens\":%d}}",
           text, tokens, 210 + tokens);
}

static void messages_body(char *to, size_t cap, const char *text, int tokens) {
  snprintf(to, cap,
           "{\"id\":\"msg_bench0001\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"bench-model\",\"content\":[{\"type\":"
           "\"text\",\"text\":\"%s\"}],\"stop_reason\":\"end_turn\",\"stop_sequence\":null,\"usage\":{\"input_tokens\":210,"
           "\"output_tokens\":%d}}",
           text, tokens);
}

static void build_fixed_answers(void) {
  char body[1536];
  chat_body(body, sizeof body, PROSE, CHUNKS);
  chat_answer_len = json_reply(chat_answer, sizeof chat_answer, body);
  messages_body(body, sizeof body, PROSE, CHUNKS);
  messages_answer_len = json_reply(messages_answer, sizeof messages_answer, body);
}

static void stop_waiting(struct conn *c) {
  if (c->slot < 0) return;
  waiting[c->slot] = waiting[--n_waiting];
  waiting[c->slot]->slot = c->slot;
  c->slot = -1;
}

static void bury(struct conn *c) {
  if (c->dead) return;
  c->dead = true;
  stop_waiting(c);
  close(c->fd);
  graveyard[n_graves++] = c; /* freed after the batch: later events of it may still point here */
}

static void flush(struct conn *c) {
  while (c->out_off < c->out.len) {
    ssize_t n = send(c->fd, c->out.data + c->out_off, c->out.len - c->out_off, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n < 0) {
      bury(c);
      return;
    }
    c->out_off += (size_t)n;
  }
  bool pending = c->out_off < c->out.len;
  if (!pending) c->out.len = c->out_off = 0;
  if (pending != c->wants_out) {
    c->wants_out = pending;
    struct epoll_event e = {.events = EPOLLIN | (pending ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
  }
}

static void say(struct conn *c, const char *bytes, size_t n) { buffer_add(&c->out, bytes, n); }

/* One server-sent event as one HTTP chunk, written at once so that it travels alone. */
static void say_event(struct conn *c, const char *event, const char *json) {
  char text[1024], head[32];
  int n = event ? snprintf(text, sizeof text, "event: %s\ndata: %s\n\n", event, json) : snprintf(text, sizeof text, "data: %s\n\n", json);
  int h = snprintf(head, sizeof head, "%x\r\n", (unsigned)n);
  say(c, head, (size_t)h);
  say(c, text, (size_t)n);
  say(c, "\r\n", 2);
  flush(c);
}

static void say_chat_delta(struct conn *c, const char *delta, const char *finish, const char *usage) {
  char json[512];
  snprintf(json, sizeof json,
           "{\"id\":\"chatcmpl-bench0001\",\"object\":\"chat.completion.chunk\",\"created\":1750000000,\"model\":\"bench-model\","
           "\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":%s}]%s}",
           delta, finish, usage);
  say_event(c, NULL, json);
}

static void open_stream(struct conn *c) {
  static const char head[] =
      "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
  n_streams++;
  say(c, head, sizeof head - 1);
  if (!c->anthropic) {
    say_chat_delta(c, "{\"role\":\"assistant\",\"content\":\"\"}", "null", "");
    return;
  }
  say_event(c, "message_start",
            "{\"type\":\"message_start\",\"message\":{\"id\":\"msg_bench0001\",\"type\":\"message\",\"role\":\"assistant\",\"model\":"
            "\"bench-model\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":210,"
            "\"output_tokens\":1}}}");
  say_event(c, "content_block_start",
            "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}");
}

static void say_token(struct conn *c) {
  char piece[256];
  unsigned long long stamp = now_ns();
  if (c->anthropic) {
    snprintf(piece, sizeof piece,
             "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"%c%0*llu%c\"}}", STAMP_MARK,
             STAMP_DIGITS, stamp, STAMP_END);
    say_event(c, "content_block_delta", piece);
  } else {
    snprintf(piece, sizeof piece, "{\"content\":\"%c%0*llu%c\"}", STAMP_MARK, STAMP_DIGITS, stamp, STAMP_END);
    say_chat_delta(c, piece, "null", "");
  }
  c->sent++;
}

static void close_stream(struct conn *c) {
  char json[256];
  if (c->anthropic) {
    say_event(c, "content_block_stop", "{\"type\":\"content_block_stop\",\"index\":0}");
    snprintf(json, sizeof json,
             "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{"
             "\"output_tokens\":%d}}",
             c->sent);
    say_event(c, "message_delta", json);
    say_event(c, "message_stop", "{\"type\":\"message_stop\"}");
  } else {
    snprintf(json, sizeof json, ",\"usage\":{\"prompt_tokens\":210,\"completion_tokens\":%d,\"total_tokens\":%d}", c->sent,
             210 + c->sent);
    say_chat_delta(c, "{}", "\"stop\"", json);
    say_event(c, NULL, "[DONE]");
  }
  say(c, "0\r\n\r\n", 5);
  flush(c);
}

/* The whole stream's text in one answer: each stamp says when a streaming provider would have sent that token. */
static void say_whole(struct conn *c, uint64_t first) {
  size_t cap = (size_t)c->chunks * STAMP_LEN + 1024;
  char *text = malloc(cap), *body = malloc(cap), *reply = malloc(cap + 512);
  if (!text || !body || !reply) die("out of memory");
  size_t n = 0;
  text[0] = 0;
  for (int i = 0; i < c->chunks; i++)
    n += (size_t)snprintf(text + n, cap - n, "%c%0*llu%c", STAMP_MARK, STAMP_DIGITS,
                          (unsigned long long)(first + (uint64_t)i * c->pace_ns), STAMP_END);
  if (c->anthropic)
    messages_body(body, cap, text, c->chunks);
  else
    chat_body(body, cap, text, c->chunks);
  say(c, reply, json_reply(reply, cap + 512, body));
  flush(c);
  free(text), free(body), free(reply);
}

static void wait_until(struct conn *c, uint64_t due) {
  c->due = due;
  if (c->slot >= 0 || c->dead) return;
  if (n_waiting == cap_waiting) {
    cap_waiting = cap_waiting ? cap_waiting * 2 : 256;
    waiting = realloc(waiting, (size_t)cap_waiting * sizeof *waiting);
    if (!waiting) die("out of memory");
  }
  c->slot = n_waiting;
  waiting[n_waiting++] = c;
}

static void arm_timer(void) {
  static uint64_t armed;
  uint64_t first = 0;
  for (int i = 0; i < n_waiting; i++)
    if (!first || waiting[i]->due < first) first = waiting[i]->due;
  if (first == armed) return;
  armed = first;
  struct itimerspec t = {.it_value = {.tv_sec = (time_t)(first / 1000000000ull), .tv_nsec = (long)(first % 1000000000ull)}};
  timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

/* Gives what is due of the answer in progress; true when it is finished. */
static bool advance(struct conn *c, uint64_t now) {
  if (!c->stream) {
    if (now < c->due) return false;
    say_whole(c, c->start);
    return true;
  }
  while (c->sent < c->chunks && now >= c->start + (uint64_t)c->sent * c->pace_ns && !c->dead) say_token(c);
  if (c->sent < c->chunks) {
    wait_until(c, c->start + (uint64_t)c->sent * c->pace_ns);
    return false;
  }
  close_stream(c);
  return true;
}

static void answer_get(struct conn *c, const char *path) {
  char head[256], stats[128];
  if (!strncmp(path, "/kept ", 6)) {
    int n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", kept.len);
    say(c, head, (size_t)n);
    say(c, kept.data ? kept.data : "", kept.len);
  } else if (!strncmp(path, "/stats ", 7)) {
    snprintf(stats, sizeof stats, "{\"requests\":%lu,\"streams\":%lu}", n_requests, n_streams);
    say(c, head, json_reply(head, sizeof head, stats));
  } else {
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"bench-model\",\"object\":\"model\"}]}";
    say(c, head, json_reply(head, sizeof head, models));
  }
  flush(c);
}

static void begin_answer(struct conn *c, const char *path, const char *body, size_t len) {
  n_requests++;
  c->anthropic = strstr(path, "/messages") == path || !strncmp(path, "/v1/messages", 12);
  c->stream = memmem(body, len, "\"stream\":true", 13) || memmem(body, len, "\"stream\": true", 14);
  const char *wish = memmem(body, len, "[[bench ", 8);
  unsigned long delay_us = 0, pace_us = 0;
  c->chunks = CHUNKS, c->sent = 0, c->wish = false;
  if (wish && !strncmp(wish + 8, "keep", 4)) {
    kept.len = 0;
    buffer_add(&kept, body, len);
  } else if (wish) {
    char text[128] = {0};
    memcpy(text, wish, (size_t)(body + len - wish) < sizeof text - 1 ? (size_t)(body + len - wish) : sizeof text - 1);
    c->wish = sscanf(text, "[[bench delay_us=%lu pace_us=%lu chunks=%d]]", &delay_us, &pace_us, &c->chunks) == 3;
  }
  if (!c->stream && !c->wish) {
    say(c, c->anthropic ? messages_answer : chat_answer, c->anthropic ? messages_answer_len : chat_answer_len);
    flush(c);
    return;
  }
  c->pace_ns = pace_us * 1000ull;
  c->start = now_ns() + delay_us * 1000ull;
  c->busy = true;
  if (c->stream) open_stream(c);
  wait_until(c, c->stream ? c->start : c->start + (uint64_t)(c->chunks > 1 ? c->chunks - 1 : 0) * c->pace_ns);
  if (c->due <= now_ns() && advance(c, now_ns())) c->busy = false, stop_waiting(c);
}

/* How many bytes a chunked body that starts at p takes with its framing; 0 while it is incomplete. */
static size_t chunked_len(const char *p, size_t len) {
  for (size_t at = 0;;) {
    const char *line = memmem(p + at, len - at, "\r\n", 2);
    if (!line) return 0;
    size_t size = strtoul(p + at, NULL, 16), end = (size_t)(line - p) + 2 + size + 2;
    if (len < end) return 0;
    if (!size) return end;
    at = end;
  }
}

/* True when a whole request was taken from the buffer. */
static bool take_request(struct conn *c) {
  if (!c->head_len) {
    char *end = c->in.len ? memmem(c->in.data, c->in.len, "\r\n\r\n", 4) : NULL;
    if (!end) {
      if (c->in.len > MAX_HEAD) bury(c);
      return false;
    }
    c->head_len = (size_t)(end - c->in.data) + 4;
    const char *length = header_value(c->in.data, c->head_len, "content-length");
    const char *coding = header_value(c->in.data, c->head_len, "transfer-encoding");
    c->body_len = length ? strtoul(length, NULL, 10) : 0;
    c->chunked = coding && !strncasecmp(coding, "chunked", 7);
    if (header_value(c->in.data, c->head_len, "expect")) say(c, "HTTP/1.1 100 Continue\r\n\r\n", 25), flush(c);
  }
  /* A chunked body is searched with its framing left in: a wish is short, and proxies send a small body in one chunk. */
  size_t body_len = c->chunked ? chunked_len(c->in.data + c->head_len, c->in.len - c->head_len) : c->body_len;
  if ((c->chunked && !body_len) || c->in.len < c->head_len + body_len) return false;
  char *space = memchr(c->in.data, ' ', c->head_len);
  char *path = space ? space + 1 : c->in.data;
  if (!strncmp(c->in.data, "POST ", 5))
    begin_answer(c, path, c->in.data + c->head_len, body_len);
  else
    answer_get(c, path);
  buffer_drop(&c->in, c->head_len + body_len);
  c->head_len = 0;
  return true;
}

static void on_readable(struct conn *c) {
  for (;;) {
    char *room = buffer_room(&c->in, 65536);
    ssize_t n = recv(c->fd, room, 65536, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      bury(c);
      return;
    }
    c->in.len += (size_t)n;
    if (n < 65536) break;
  }
  while (!c->busy && !c->dead && c->in.len && take_request(c)) continue;
}

static void on_accept(int listener) {
  for (;;) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    quiet_socket(fd);
    struct conn *c = calloc(1, sizeof *c);
    if (!c) die("out of memory");
    c->fd = fd, c->slot = -1;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
  }
}

static void on_timer(void) {
  uint64_t fired, now = now_ns();
  if (read(timer_fd, &fired, sizeof fired) < 0 && errno != EAGAIN) die("timer");
  for (int i = n_waiting - 1; i >= 0 && n_graves < MAX_EVENTS; i--) {
    if (i >= n_waiting) continue; /* the tail moved into freed slots */
    struct conn *c = waiting[i];
    if (c->due > now || !advance(c, now)) continue;
    c->busy = false;
    if (c->dead) continue;
    stop_waiting(c);
    while (!c->busy && !c->dead && c->in.len && take_request(c)) continue;
  }
}

static int listen_on(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof at;
  if (bind(fd, (struct sockaddr *)&at, len) || listen(fd, 4096) || getsockname(fd, (struct sockaddr *)&at, &len)) die("listen");
  printf("listening %d\n", ntohs(at.sin_port));
  fflush(stdout);
  return fd;
}

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);
  allow_many_sockets();
  build_fixed_answers();
  int listener = listen_on(argc > 1 ? atoi(argv[1]) : 0);
  epoll_fd = epoll_create1(0);
  timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = &listener};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
  e.data.ptr = &timer_fd;
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &e);
  struct epoll_event events[MAX_EVENTS];
  for (;;) {
    arm_timer();
    int n = epoll_wait(epoll_fd, events, MAX_EVENTS, -1);
    for (int i = 0; i < n; i++) {
      struct conn *c = events[i].data.ptr;
      if ((void *)c == &listener) {
        on_accept(listener);
      } else if ((void *)c == &timer_fd) {
        on_timer();
      } else if (!c->dead) {
        if (events[i].events & EPOLLOUT) flush(c);
        if (!c->dead && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c);
      }
    }
    for (; n_graves; n_graves--) {
      struct conn *c = graveyard[n_graves - 1];
      free(c->in.data), free(c->out.data), free(c);
    }
  }
}
