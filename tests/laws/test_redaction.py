"""Laws of redaction: it can be done again without effect, it changes nothing but secrets, and no
cut brings one back.
"""

import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.secrets import survives
from benchmarks.secrets_planted import KINDS, KNOWN, plant
from metaclaw.privacy import KnownSecrets, Redactor
from metaclaw.privacy.secret_values import PLACEHOLDER
from tests.privacy.stage import redacted_arguments, redacted_parts
from tests.support.depth import tries

REDACTOR = Redactor()
_PIECES = st.sampled_from(
    [
        "password",
        "=",
        ": ",
        '"',
        "'",
        "\\",
        "\n",
        " ",
        "token",
        "sk-",
        "ghp_",
        "a1B2c3D4e5F6g7H8i9J0",
        "https://",
        "@",
        "eyJ",
        ".",
        "%41",
        "<PASSWORD>",
    ]
)
texts = st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=40).map("".join))
seeds = st.integers(0, 2**32)


@given(texts)
@example("password=<PASSWORD>")
@example("secret: <SECRET#2> token=<TOKEN:url>")
@example("İstanbul password=hunter2")
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = REDACTOR.text(text).text
    assert REDACTOR.text(once).text == once


@given(texts)
def test_nothing_changes_but_what_was_found(text: str) -> None:
    result = REDACTOR.text(text)
    pieces, at = [], 0
    for finding in result.found:
        assert at <= finding.start < finding.end <= len(text)
        pieces += [text[at : finding.start], finding.placeholder]
        at = finding.end
    assert "".join((*pieces, text[at:])) == result.text
    assert (not result.found) == (result.text == text)


@given(st.sampled_from([*KINDS, KNOWN]), seeds)
@settings(max_examples=tries(50, nightly=750))
def test_no_planted_secret_survives(kind: str, seed: int) -> None:
    planted = plant(random.Random(seed), kind)
    redactor = REDACTOR if planted.known is None else Redactor(KnownSecrets((planted.known,)))
    assert not survives(planted, redactor.text(planted.text).text)


@given(st.sampled_from([*KINDS]), seeds, st.floats(0.01, 0.99))
@settings(max_examples=tries(50, nightly=750))
def test_no_cut_between_two_parts_brings_a_secret_back(kind: str, seed: int, where: float) -> None:
    planted = plant(random.Random(seed), kind)
    at = int(len(planted.text) * where)
    assert not survives(planted, "".join(redacted_parts(planted.text[:at], planted.text[at:])))


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["command", "password", "a"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["command", "password", "path"]), _JSON, max_size=3))
def test_arguments_of_a_call_stay_an_object_with_the_same_keys(value: dict[str, object]) -> None:
    assert json.loads(redacted_arguments(json.dumps(value))).keys() == value.keys()


@given(st.lists(texts, max_size=5))
def test_texts_that_follow_one_another_are_as_many_as_before(pieces: list[str]) -> None:
    for before, after in zip(pieces, redacted_parts(*pieces), strict=True):
        assert after == before or PLACEHOLDER.search(after)


@pytest.mark.slow
@given(seeds)
@settings(max_examples=tries(100, nightly=1500), deadline=None)
def test_no_known_secret_survives_in_any_form(seed: int) -> None:
    planted = plant(random.Random(seed), KNOWN)
    assert planted.known is not None
    assert not survives(planted, Redactor(KnownSecrets((planted.known,))).text(planted.text).text)
