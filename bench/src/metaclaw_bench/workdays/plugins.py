"""Rules that an owner adds as files: read, and tried out, so that a broken one is found here and
not in a run.
"""

import datetime
import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from metaclaw.plugin import ConfigError
from metaclaw_bench.workdays.checker import check_parts
from metaclaw_bench.workdays.choices import make_choice_item
from metaclaw_bench.workdays.demands import Rule
from metaclaw_bench.workdays.draw import Draw
from metaclaw_bench.workdays.model import Item
from metaclaw_bench.workdays.rulebook import BUILT_IN, read_rule, unusable
from metaclaw_bench.workdays.tasks import InForce, make_file_item
from metaclaw_bench.workdays.words import LANGUAGES

_TAKEN: Final = (*BUILT_IN, "checker", "task")
_PROBES: Final = 5
# What a file of somebody else's may raise when it is run; a rule that ends the program is not
# guarded against.
_FAULTS: Final = (
    SyntaxError,
    ImportError,
    NameError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    OSError,
    ArithmeticError,
)


def load_rules(folder: Path) -> tuple[Rule, ...]:
    """The rule of a Python file, or those of every one in a folder, by name. Raises ConfigError,
    which says what is wrong with which file."""
    if folder.is_file() and folder.suffix == ".py":
        return (_load(folder),)
    if not folder.is_dir():
        raise ConfigError(
            f"rules: {folder} is not a folder. Name a Python file, or a folder that holds one per"
            " rule."
        )
    paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    if not paths:
        raise ConfigError(
            f"rules: there is no rule in {folder}. Put one Python file per rule there, like those"
            " of the house."
        )
    return tuple(_load(path) for path in paths)


def _load(path: Path) -> Rule:
    if path.stem in _TAKEN or not path.stem.isidentifier():
        raise unusable(
            path, f"{path.stem!r} cannot be a new rule's name; it is taken or not a name"
        )
    try:
        rule = read_rule(_import(path), path)
        for item, begins_with in _probe(rule):
            _try_out(rule, item, begins_with)
    except _FAULTS as problem:
        raise unusable(path, f"{type(problem).__name__}: {problem}") from problem
    return rule


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _probe(rule: Rule) -> Iterator[tuple[Item, dict[str, str]]]:
    """File-checks about nothing but this rule, in every way it can be meant, in every language,
    easy and hard.

    Choices are made as well: that they can be is all there is to see of them.
    """
    for variant in rule.variants:
        for language, words in LANGUAGES.items():
            for nth in range(_PROBES):
                chance = random.Random(f"{rule.id}:{variant}:{language}:{nth}")
                date, level = datetime.date(2026, 3, 2), nth / (_PROBES - 1)
                draw = Draw(
                    nth, False, language, words, "office", "day01", date, level, "Alex", chance
                )
                begins_with: dict[str, str] = {}
                make_choice_item(draw, [InForce(rule, variant)], 1)
                yield make_file_item(draw, [[InForce(rule, variant)]], 2, begins_with), begins_with


def _try_out(rule: Rule, item: Item, begins_with: dict[str, str]) -> None:
    def broken(files: dict[str, str]) -> bool:
        return not all(
            held
            for _, _, held in check_parts(
                item.parts, {**begins_with, **files}, lambda _: rule.check
            )
        )

    if broken(dict(item.reference.files)):
        raise unusable(
            rule.source, f"check refuses what comply makes: {dict(item.reference.files)}"
        )
    passing = next((miss for miss in item.near_misses if not broken(dict(miss.files))), None)
    if passing is not None:
        raise unusable(rule.source, f"check accepts what violate makes: {dict(passing.files)}")
