"""A sense of failure: what a turn came to, from what followed it."""
