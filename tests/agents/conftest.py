"""Tests with an `agent` are run for each agent in `TRIED` of their module."""

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "agent" in metafunc.fixturenames:
        metafunc.parametrize("agent", metafunc.module.TRIED, ids=lambda agent: agent.name)
