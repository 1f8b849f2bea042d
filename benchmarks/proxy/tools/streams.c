/* Streamed answers under load: time to first token, delay of every token, tokens in each read; one JSON object on stdout.
 *
 * All clients open their stream at the same moment, so first tokens queue behind one another: the harsh case.
 */
#include "client.h"

struct progress {
  int digits; /* read so far of the stamp at hand, -1 outside of one */
  uint64_t stamp;
  unsigned long tokens, in_read;
};

static struct samples first_us, relay_us, whole_us, per_read;
static unsigned long good, bad, broken, tokens;
static uint64_t read_at;

static struct progress *progress_of(struct client *c) {
  if (!c->extra) {
    struct progress *p = calloc(1, sizeof *p);
    if (!p) die("out of memory");
    p->digits = -1;
    c->extra = p;
  }
  return c->extra;
}

static void on_token(struct client *c, struct progress *p) {
  if (!p->tokens++) samples_add(&first_us, (double)(read_at - c->began) / 1e3);
  samples_add(&relay_us, ((double)read_at - (double)p->stamp) / 1e3);
  p->in_read++, tokens++;
}

static void on_body(struct client *c, const char *bytes, size_t n) {
  struct progress *p = progress_of(c);
  for (const char *end = bytes + n; bytes < end; bytes++) {
    if (*bytes == STAMP_MARK) {
      p->digits = 0, p->stamp = 0;
    } else if (p->digits >= 0 && p->digits < STAMP_DIGITS && *bytes >= '0' && *bytes <= '9') {
      p->stamp = p->stamp * 10 + (uint64_t)(*bytes - '0');
      p->digits++;
    } else {
      if (p->digits == STAMP_DIGITS && *bytes == STAMP_END) on_token(c, p);
      p->digits = -1;
    }
  }
}

static void on_read(struct client *c, uint64_t at) {
  struct progress *p = progress_of(c);
  if (at) {
    read_at = at;
  } else if (p->in_read) {
    samples_add(&per_read, (double)p->in_read);
    p->in_read = 0;
  }
}

static void on_end(struct client *c, bool whole) {
  struct progress *p = progress_of(c);
  if (!whole)
    broken++;
  else if (c->status != 200 || !p->tokens)
    bad++;
  else
    good++, samples_add(&whole_us, (double)(now_ns() - c->began) / 1e3);
  *p = (struct progress){.digits = -1};
}

int main(int argc, char **argv) {
  struct plan plan;
  struct hooks hooks = {.on_body = on_body, .on_read = on_read, .on_end = on_end};
  unsigned long unfinished;
  signal(SIGPIPE, SIG_IGN);
  allow_many_sockets();
  plan_read(&plan, argc, argv);
  double seconds = run_closed_loop(&plan, &hooks, &unfinished);
  printf("{\"ok\":%lu,\"bad\":%lu,\"broken\":%lu,\"unfinished\":%lu,\"seconds\":%.4f,\"rps\":%.2f,\"tokens\":%lu,", good, bad, broken,
         unfinished, seconds, seconds > 0 ? (double)good / seconds : 0, tokens);
  samples_print(&first_us, "first_us"), putchar(',');
  samples_print(&relay_us, "relay_us"), putchar(',');
  samples_print(&whole_us, "latency_us"), putchar(',');
  samples_print(&per_read, "tokens_per_read");
  printf("}\n");
  return 0;
}
