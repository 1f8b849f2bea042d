/* Closed-loop load on one endpoint: requests a second and latency percentiles, one JSON object on stdout.
 *
 * The rate is whole good answers over the time until the last of them, so a slow target is not cut off in mid-flight.
 */
#include "client.h"

static struct samples latency_us;
static unsigned long good, bad, broken;

static void on_end(struct client *c, bool whole) {
  if (!whole) {
    broken++;
  } else if (c->status != 200) {
    bad++;
  } else {
    good++;
    samples_add(&latency_us, (double)(now_ns() - c->began) / 1e3);
  }
}

int main(int argc, char **argv) {
  struct plan plan;
  struct hooks hooks = {.on_end = on_end};
  unsigned long unfinished;
  signal(SIGPIPE, SIG_IGN);
  allow_many_sockets();
  plan_read(&plan, argc, argv);
  double seconds = run_closed_loop(&plan, &hooks, &unfinished);
  printf("{\"ok\":%lu,\"bad\":%lu,\"broken\":%lu,\"unfinished\":%lu,\"seconds\":%.4f,\"rps\":%.2f,", good, bad, broken, unfinished, seconds,
         seconds > 0 ? (double)good / seconds : 0);
  samples_print(&latency_us, "latency_us");
  printf("}\n");
  return 0;
}
