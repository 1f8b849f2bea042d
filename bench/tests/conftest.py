"""The fixtures of the product's tests: an isolated home folder, the event loop, shared data."""

from tests.conftest import anyio_backend, home, shared

__all__ = ["anyio_backend", "home", "shared"]
