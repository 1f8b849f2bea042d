"""Signals of presence, one file each."""
