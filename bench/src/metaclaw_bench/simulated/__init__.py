"""Policies for runs without a model: always simulated, always called so."""
