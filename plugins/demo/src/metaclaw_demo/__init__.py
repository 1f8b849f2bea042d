"""`metaclaw demo`: a correction takes effect, and weights are trained, in a temporary home."""

__version__ = "0.1.0"
