"""Retrieval by meaning: a small embedding model in a process of its own, or a provider's, and the client that asks it. Imports
nothing heavy."""

from metaclaw.engine.embedding.client import INSTALL, INSTALL_FOR_PROVIDER, MeaningSearch, missing_packages
