"""The fixtures of the product's tests that plugins need, too."""

from tests.conftest import anyio_backend, home

__all__ = ["anyio_backend", "home"]
