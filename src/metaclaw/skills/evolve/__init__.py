"""Writing skills from failures: groups of failures, the request to a model, and its proposals."""
