"""The fixtures and hooks of the product's tests: an isolated home folder, the event loop, shared data, what only runs at night."""

from tests.conftest import anyio_backend, home, pytest_collection_modifyitems, pytest_configure, shared

__all__ = ["anyio_backend", "home", "pytest_collection_modifyitems", "pytest_configure", "shared"]
