"""Running a benchmark through the real proxy: its life, the days, the barrier between them, what is
written, and going on later.
"""
