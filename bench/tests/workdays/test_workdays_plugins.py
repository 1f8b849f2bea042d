"""Rules that an owner adds: one file, found out about at once where it is broken."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.tests.workdays.samples import file_checks
from metaclaw.plugin import ConfigError
from metaclaw_bench.workdays import TINY, add_rules, generate, load_rules, score, write
from metaclaw_bench.workdays.rulebook import built_in_rules

_GOOD = """
PLACE = "inline"
BEGINS = 2
FORMS = {"plus": "+1 555", "zeros": "001 555"}
SAYS = {"en": "Always write telephone numbers like {}."}
TOPIC = {"en": "telephone numbers"}
_PREFIX = {"plus": "+1", "zeros": "001"}


def fact(draw):
    number = str(draw.number(100000, 999999))
    return {"number": number, "told": f"telephone {number}"}


def comply(fact, variant):
    return f"{_PREFIX[variant]} {fact['number']}"


def violate(fact, variant):
    return (fact["number"], *(comply(fact, other) for other in FORMS if other != variant))


def check(files, context):
    pieces = [comply(fact, context["variant"]) for fact in context["facts"]]
    return [(piece, piece in files[path]) for path in context["targets"] for piece in pieces]
"""


def _folder(tmp_path: Path, text: str, name: str = "phones.py") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path


def test_a_rule_from_a_file_is_asked_for_checked_and_written(tmp_path: Path) -> None:
    rules = load_rules(_folder(tmp_path, _GOOD))
    plan = add_rules(TINY, rules)
    made = generate(1, plan, rules)
    asked = [(day, item) for day, item in file_checks(made) if "phones" in item.rules]
    assert asked
    for day, item in asked:
        assert day.number >= 2
        assert score(item, item.reference, day.begins_with).passed
        assert "+1 555" in item.round.feedback.incorrect
    written = write(made, tmp_path / "out")
    assert (written / "eval/scripts/phones.py").read_text() == _GOOD


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('PLACE = "inline"', 'PLACE = "somewhere"', "PLACE must be one of inline"),
        ("BEGINS = 2", 'BEGINS = "soon"', "BEGINS must be the number of a day"),
        ("SAYS = {", "SAID = {", "SAYS must be a dictionary"),
        ('SAYS = {"en"', 'SAYS = {"nl"', "must have the language 'en'"),
        ("def violate(fact, variant)", "def violate(fact)", "a function violate with 2 parameters"),
        ("def check(", "def checks(", "a function check with 2 parameters"),
        ("def fact(draw):", "def fact(draw)", "SyntaxError"),
        ("draw.number(", "draw.numeral(", "AttributeError: .*numeral"),
        ("number = str(draw.number(100000, 999999))", 'number = "555"', "too few different facts"),
        ("piece in files[path]", "False", "check refuses what comply makes"),
        ("piece in files[path]", "True", "check accepts what violate makes"),
        ("_PREFIX[variant]", "_PREFIX['minus']", "KeyError"),
    ],
)
def test_a_broken_rule_is_refused_with_its_file_and_the_reason(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    assert old in _GOOD
    with pytest.raises(ConfigError, match=rf"phones.*{why}"):
        load_rules(_folder(tmp_path, _GOOD.replace(old, new)))


def test_a_rule_that_needs_what_is_not_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"phones\.py cannot be used: ModuleNotFoundError"):
        load_rules(_folder(tmp_path, "import nothing_that_there_is\n" + _GOOD))


def test_a_rule_can_be_named_by_its_file(tmp_path: Path) -> None:
    folder = _folder(tmp_path, _GOOD)
    (path,) = folder.glob("*.py")
    assert [rule.id for rule in load_rules(path)] == [path.stem]


def test_a_rule_may_not_take_the_name_of_a_built_in_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'times' cannot be a new rule's name"):
        load_rules(_folder(tmp_path, _GOOD, "times.py"))


def test_a_folder_without_rules_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no rule in"):
        load_rules(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        load_rules(tmp_path / "missing")


def test_every_built_in_rule_would_pass_as_a_plug_in(tmp_path: Path) -> None:
    for rule in built_in_rules():
        (tmp_path / f"my_{rule.id}.py").write_text(rule.source.read_text())
    loaded = load_rules(tmp_path)
    assert {rule.id for rule in loaded} == {f"my_{rule.id}" for rule in built_in_rules()}
    plan = add_rules(replace(TINY, begins={"times": 1}, drift=None), loaded)
    assert len(generate(1, plan, loaded).items) == 18
