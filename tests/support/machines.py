"""State machines on real databases: any moves in any order, each run on a database of its own."""

import shutil
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from metaclaw.store import open_database


def migrated_copies(folder: Path) -> Callable[[], str]:
    """Fresh databases, each a copy of one that was made once."""
    open_database(f"sqlite:///{folder / 'first.db'}").close()
    copies = count()
    return lambda: f"sqlite:///{shutil.copy(folder / 'first.db', folder / f'{next(copies)}.db')}"


def assert_machine_holds(
    kind: type[RuleBasedStateMachine], given: Mapping[str, object], *, examples: int, steps: int
) -> None:
    """Let a machine with these attributes (where its databases come from) try many orders of its
    rules.
    """
    machine = type("Machine", (kind,), dict(given))
    relaxed = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[
            Phase.reuse,
            Phase.generate,
        ],  # each step is a real database at work: shrinking would take many minutes
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
    run_state_machine_as_test(machine, settings=relaxed)
