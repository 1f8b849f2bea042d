"""Retrieval by meaning: a small embedding model in a process of its own, and the client that asks it. Imports nothing heavy."""

from metaclaw.engine.meaning.client import INSTALL, MeaningSearch, missing_packages

__all__ = ["INSTALL", "MeaningSearch", "missing_packages"]
