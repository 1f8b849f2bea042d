"""Benchmarks for MetaClaw: the public MetaClaw-Bench, generated workdays, a staged research
pipeline, scores and reports.
"""

__version__ = "0.1.0"
