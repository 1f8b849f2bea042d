"""Thirty simulated days of a developer whose agent works in three projects."""
