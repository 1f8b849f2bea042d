"""Proof that it learns: the public MetaClaw-Bench, days of our own making, a staged research pipeline, scores and reports."""
