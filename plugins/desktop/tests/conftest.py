"""The X server of the scheduler's tests."""

from tests.schedule.conftest import display, server

__all__ = ["display", "server"]
