"""Fixtures of the tests about agents."""

from tests.agents.conftest import pytest_generate_tests
from tests.cli.test_agents import user

__all__ = ["pytest_generate_tests", "user"]
