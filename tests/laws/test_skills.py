"""Laws of the skills room: files round-trip, the index is its own definition, blocks come out
again, retrieval is a function.
"""

import string
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Nearness, Skill
from metaclaw.errors import SkillError
from metaclaw.skills.block import estimate_tokens, remove_blocks, render_block
from metaclaw.skills.files import (
    _parse_plain,
    parse_front_matter,
    parse_skill,
    read_skill,
    render_skill,
    write_skill,
)
from metaclaw.skills.index import (
    _MOST_TERMS,
    _NEAR_BEST,
    GRADES,
    UNIT,
    PersistentMap,
    SkillIndex,
    evidence_needed,
    grade_terms,
    informativeness,
)
from metaclaw.skills.query import query_text
from metaclaw.text import count_terms
from tests.support.depth import tries

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True).map(SkillName)
# What a text file may hold: no lone surrogates, no NUL; carriage returns are line ends and so not
# part of a text.
CHARS = st.characters(codec="utf-8", exclude_characters="\0\r")
TEXT = st.text(CHARS, max_size=120)
LINE = st.text(CHARS, min_size=1, max_size=60).map(lambda text: " ".join(text.split())).filter(bool)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | LINE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LINE, inner, max_size=3),
    max_leaves=6,
)
EXTRA = st.dictionaries(
    st.sampled_from(["license", "check-list", "metadata", "tags", "ÄÖ"]), VALUES, max_size=3
)


@st.composite
def skills(draw: st.DrawFn) -> Skill:
    body = draw(
        TEXT.map(lambda text: text.strip("\n").rstrip()).filter(lambda text: bool(text.strip()))
    )
    return Skill(
        draw(NAMES),
        draw(LINE),
        body,
        draw(st.none() | LINE),
        draw(st.none() | LINE),
        other=draw(EXTRA),
    )


@given(skills())
@settings(max_examples=tries(20, nightly=200), suppress_health_check=[HealthCheck.too_slow])
def test_a_skill_that_is_written_is_read_back_equal(skill: Skill) -> None:
    with TemporaryDirectory() as folder:
        assert read_skill(write_skill(Path(folder), skill)) == skill


@given(skills())
def test_rendering_what_was_parsed_changes_no_byte(skill: Skill) -> None:
    text = render_skill(skill)
    assert render_skill(parse_skill(text, "here")) == text


@given(st.text(max_size=300) | st.text(alphabet="-: \n\"'[]{}&*!#|>ab1", max_size=60))
def test_any_text_is_a_skill_or_a_skill_error(text: str) -> None:
    for candidate in (
        text,
        f"---\n{text}\n---\nbody",
        f"---\nname: a\ndescription: {text}\n---\nbody",
    ):
        try:
            outcome = f"here: {parse_skill(candidate, 'here').body}"
        except SkillError as error:
            outcome = str(error)
        assert outcome.startswith("here: ")


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z_-]{0,8}", fullmatch=True),
            st.text(alphabet=string.printable + "äé世界\xa0\u2028", min_size=1, max_size=40),
        )
    )
)
def test_the_quick_way_through_front_matter_agrees_with_yaml(pairs: list[tuple[str, str]]) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in pairs)
    quick = _parse_plain(text)
    if quick is not None and quick:
        assert yaml.safe_load(text) == quick == parse_front_matter(text, "here")


WORDS = [
    "espresso",
    "lever",
    "machine",
    "tamp",
    "brew",
    "orchid",
    "water",
    "bath",
    "test",
    "file",
    "write",
    "数据",
    "周报",
    "commit",
    "Café",
]
SENTENCES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
SMALL = st.builds(
    lambda number, head, trigger, body, scope, examples: Skill(
        SkillName(f"{head}-{number}"), trigger, body, scope=scope, examples=tuple(examples)
    ),
    st.integers(0, 5),
    st.sampled_from(["espresso", "orchid", "test", "x"]),
    SENTENCES,
    st.lists(SENTENCES, min_size=1, max_size=4).map("\n".join),
    st.sampled_from([None, None, None, "alice"]),
    st.lists(SENTENCES, max_size=3),
)
STEPS = st.lists(
    st.one_of(st.lists(SMALL, max_size=5), st.lists(st.integers(0, 30), max_size=3)), max_size=10
)


def define(
    skills: list[Skill], query: str, limit: int, scopes: frozenset[str]
) -> list[tuple[str, float]]:
    """What a search is, without an index: score everything, keep what there is enough evidence
    for.
    """
    graded = {skill.name: grade_terms(skill) for skill in skills}
    having = {
        term: sum(term in grades for grades in graded.values()) for term in count_terms(query)
    }
    weights = {term: informativeness(term, count, len(skills)) for term, count in having.items()}
    needed = evidence_needed(sum(sorted(weights.values(), reverse=True)[:_MOST_TERMS]), len(skills))
    found = []
    for skill in skills:
        grades = graded[skill.name]
        evidence = sum(
            round(UNIT * weights[term] * GRADES[grades[term]]) for term in weights if term in grades
        )
        if evidence >= needed and (skill.scope is None or skill.scope in scopes):
            found.append((str(skill.name), evidence / needed))
    found.sort(key=lambda one: (-one[1], one[0]))
    return [one for one in found[:limit] if one[1] >= found[0][1] * _NEAR_BEST]


@given(
    STEPS,
    st.lists(SENTENCES, min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([frozenset[str](), frozenset({"alice"})]),
)
@settings(max_examples=tries(33, nightly=500))
def test_after_any_changes_the_index_finds_what_its_definition_says(
    steps: list[list[Skill] | list[int]], queries: list[str], limit: int, scopes: frozenset[str]
) -> None:
    index, there = SkillIndex(), dict[str, Skill]()
    for step in steps:
        put = [one for one in step if isinstance(one, Skill)]
        removed = [
            sorted(there)[one % len(there)] for one in step if isinstance(one, int) and there
        ]
        index = index.changed(put, removed)
        for name in removed:
            there.pop(name, None)
        there.update({skill.name: skill for skill in put})
    assert sorted(index.skills(), key=lambda skill: skill.name) == [
        there[name] for name in sorted(there)
    ]
    for query in queries:
        found = [(str(one.skill.name), one.score) for one in index.search(query, limit, scopes)]
        assert found == define(list(there.values()), query, limit, scopes)
        assert found == [
            (str(one.skill.name), one.score)
            for one in SkillIndex().changed(list(there.values())).search(query, limit, scopes)
        ]


@given(st.integers(0, 2**32))
@settings(max_examples=2, deadline=None)
def test_the_shortcuts_a_large_library_allows_change_nothing(seed: int) -> None:
    """Thousands of skills share the ordinary words, so that long lists are probed instead of
    walked.
    """
    random = Random(seed)
    things = [
        f"{first}{second}"
        for first in ("kalo", "miter", "vandor", "selpra", "nuris")
        for second in ("ben", "qua", "fex", "zor")
    ]
    library = []
    for number in range(2_500):
        thing, other = random.sample(things, 2)
        scope = "alice" if number % 7 == 0 else None
        trigger = f"When polishing the {thing} with wax before a {other}"
        library.append(
            Skill(
                SkillName(f"{other}-{number}"), trigger, "Polish gently; wax thinly.", scope=scope
            )
        )
    index = SkillIndex().changed(library)
    for _ in range(5):
        query = (
            f"polish the {' '.join(random.sample(things, 3))} with wax, gently,"
            f" {random.choice(things)}-{random.randrange(2500)}"
        )
        for scopes in (frozenset[str](), frozenset({"alice"})):
            found = [(str(one.skill.name), one.score) for one in index.search(query, 3, scopes)]
            assert found == define(library, query, 3, scopes)


@given(
    st.lists(SMALL, max_size=8),
    SENTENCES,
    st.lists(st.tuples(st.integers(0, 30), st.floats(-1, 1)), max_size=5),
    st.floats(-1, 1),
)
def test_ranking_by_words_does_not_depend_on_what_is_known_of_meaning(
    library: list[Skill], query: str, near: list[tuple[int, float]], background: float
) -> None:
    index = SkillIndex().changed(library)
    before = index.rank(query)
    names = [one.name for one in index.skills()] or [SkillName("none")]
    index.rank(
        query,
        Nearness([(names[at % len(names)], similarity) for at, similarity in near], background),
    )
    assert index.rank(query) == before


@given(st.lists(SMALL, max_size=8), st.text(max_size=200))
def test_any_request_is_answered_and_always_the_same(library: list[Skill], query: str) -> None:
    index = SkillIndex().changed(library)
    assert (
        index.search(query)
        == index.search(query)
        == SkillIndex().changed(index.skills()[::-1]).search(query)
    )


@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), st.none() | st.integers(), max_size=6), max_size=8
    )
)
def test_a_persistent_map_is_a_map_and_old_ones_stay(changes: list[dict[str, int | None]]) -> None:
    current, plain = PersistentMap[int](), dict[str, int]()
    history = []
    for change in changes:
        history.append((current, dict(plain)))
        current = current.changed(change)
        for key, value in change.items():
            if value is None:
                plain.pop(key, None)
            else:
                plain[key] = value
    for old, expected in [*history, (current, plain)]:
        assert len(old) == len(expected)
        assert all(old.get(key) == expected.get(key) for change in changes for key in change)


ANY_TEXT = st.text(max_size=80) | st.lists(
    st.sampled_from(
        [
            '\n\n<house_rules by="metaclaw" length="',
            "5",
            '" sum="',
            "0123456789ab",
            '">\n',
            "\n</house_rules>\n",
            "x",
        ]
    ),
    max_size=12,
).map("".join)


@given(
    st.lists(skills(), min_size=1, max_size=4, unique_by=lambda skill: skill.name),
    st.integers(60, 400),
    ANY_TEXT,
    ANY_TEXT,
)
def test_a_block_is_in_budget_and_comes_out_without_a_trace(
    library: list[Skill], budget: int, before: str, after: str
) -> None:
    block = render_block(library, budget)
    assert estimate_tokens(block.text) <= budget
    assert render_block(library, budget) == block
    assert remove_blocks(before + block.text + after) == before + after
    for skill in library:
        assert (skill.body in block.text) or skill.name not in block.skills


@given(st.text(max_size=400), st.text(max_size=200))
def test_a_cleaned_query_is_one_line_and_tagged_blocks_never_reach_it(
    words: str, secret: str
) -> None:
    assert "\n" not in query_text(words)
    hidden = "".join(char for char in secret if char not in "<>")
    assert query_text(f"<system-reminder>{hidden}</system-reminder>deploy") == "deploy"
