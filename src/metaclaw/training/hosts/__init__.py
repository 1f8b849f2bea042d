"""Servers of trained weights beside the embedded engine."""
