"""Search by meaning: a small embedding model in a child process, or a provider's, and the client of
both. Imports nothing heavy.
"""

from metaclaw.engine.embedding.client import (
    INSTALL,
    INSTALL_FOR_PROVIDER,
    MeaningSearch,
    missing_packages,
)
