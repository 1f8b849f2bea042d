"""Training services behind an SDK."""
