"""Policy versions: which weights answered."""

BASE_POLICY = 0
"""The version of untrained weights: whatever the provider serves, with no adapter of ours."""
