"""The rules there are: reading what a rule's file defines, and the built-in ones."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Final, get_args

from metaclaw.plugin import ConfigError
from metaclaw_bench.workdays import rules as _rules
from metaclaw_bench.workdays.demands import Fact, Place, Rule

FALLBACK_LANGUAGE: Final = "en"
BUILT_IN: Final = (
    "times",
    "names",
    "metadata",
    "backups",
    "done_log",
    "money",
    "weeks",
    "units",
    "branches",
    "bullets",
    "signatures",
)
_FUNCTIONS: Final = {"fact": 1, "comply": 2, "violate": 2, "check": 2}
_TABLES: Final = ("FORMS", "SAYS", "TOPIC")


@cache
def built_in_rules() -> tuple[Rule, ...]:
    """The house's own."""
    modules = (importlib.import_module(f"{_rules.__name__}.{name}") for name in BUILT_IN)
    return tuple(read_rule(module, Path(inspect.getfile(module))) for module in modules)


def read_rule(module: ModuleType, path: Path) -> Rule:
    """The rule that a file defines."""
    for name in _TABLES:
        table = getattr(module, name, None)
        if (
            not isinstance(table, dict)
            or not table
            or not all(isinstance(text, str) for pair in table.items() for text in pair)
        ):
            raise unusable(path, f"{name} must be a dictionary from text to text, and not empty")
    if getattr(module, "PLACE", None) not in get_args(Place):
        raise unusable(path, f"PLACE must be one of {', '.join(get_args(Place))}")
    if FALLBACK_LANGUAGE not in module.SAYS or FALLBACK_LANGUAGE not in module.TOPIC:
        raise unusable(
            path,
            f"SAYS and TOPIC must have the language {FALLBACK_LANGUAGE!r}, which stands in for"
            " missing ones",
        )
    if not isinstance(getattr(module, "BEGINS", 1), int):
        raise unusable(path, "BEGINS must be the number of a day")
    for name, takes in _FUNCTIONS.items():
        function = getattr(module, name, None)
        if not inspect.isfunction(function) or len(inspect.signature(function).parameters) != takes:
            raise unusable(
                path,
                f"it must define a function {name} with {takes}"
                f" parameter{'s' if takes > 1 else ''}",
            )
    return Rule(
        id=path.stem,
        place=module.PLACE,
        variants=tuple(module.FORMS),
        source=path,
        says=partial(_say, module.SAYS, module.FORMS),
        example=module.FORMS.__getitem__,
        topic=partial(_in_language, module.TOPIC),
        fact=module.fact,
        comply=module.comply,
        violate=module.violate,
        choices=getattr(module, "choices", None)
        or partial(_choices, module.comply, module.violate),
        check=module.check,
        begins=getattr(module, "BEGINS", 1),
    )


def unusable(path: Path, why: str) -> ConfigError:
    """What to say of a rule's file that cannot be used."""
    return ConfigError(
        f"rules: {path} cannot be used: {why}. Mend the file or take it out of the folder."
    )


def _in_language(texts: Mapping[str, str], language: str) -> str:
    return texts.get(language, texts[FALLBACK_LANGUAGE])


def _say(says: Mapping[str, str], forms: Mapping[str, str], variant: str, language: str) -> str:
    return _in_language(says, language).format(forms[variant])


def _choices(
    comply: Callable[[Fact, str], str],
    violate: Callable[[Fact, str], tuple[str, ...]],
    fact: Fact,
    variant: str,
) -> tuple[str, tuple[str, ...]]:
    return comply(fact, variant), violate(fact, variant)
