"""The placed block: its content, what fits, and its removal."""

import re

from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Rule, Skill
from metaclaw.skills import (
    Block,
    already_present,
    estimate_tokens,
    is_listed_in,
    is_placed_in,
    remove_blocks,
    render_block,
    rule_line,
)
from metaclaw.skills.block import gist
from tests.support.cases import each

ONE = Skill(
    SkillName("iso-times"),
    "When writing times into files",
    "Use the offset.\n\n- never a bare date",
)
TWO = Skill(SkillName("refunds"), "When a customer wants money back", "Say by when.")
LONG = Skill(SkillName("long-one"), "When it is long", "word " * 2000)


def test_a_block_names_each_skill_says_what_they_are_and_holds_them_whole() -> None:
    block = render_block((ONE, TWO), 1000)
    assert block.skills == ("iso-times", "refunds")
    assert "Procedures for requests like this" in block.text
    for skill in (ONE, TWO):
        assert f"[{skill.name}] {skill.trigger}\n{skill.body}" in block.text
    assert block.text.startswith("\n\n<house_rules ")
    assert block.text.endswith("\n</house_rules>\n")


def test_a_block_does_not_look_like_a_clients_own_sections() -> None:
    text = render_block((ONE, TWO), 1000).text
    assert not re.search(
        r"skills_instructions|system-reminder|available_skills|SKILL\.md|^#", text, re.MULTILINE
    )


def test_the_same_skills_give_the_same_bytes() -> None:
    assert render_block((ONE, TWO), 1000) == render_block([ONE, TWO], 900)
    assert render_block((TWO, ONE), 1000).text != render_block((ONE, TWO), 1000).text


def test_what_does_not_fit_is_left_out_whole_and_the_next_may_still_fit() -> None:
    assert render_block((LONG, TWO), 200) == render_block((TWO,), 200)
    assert render_block((ONE, LONG, TWO), 200).skills == ("iso-times", "refunds")


def test_nothing_that_fits_gives_an_empty_block() -> None:
    assert render_block((ONE,), 10) == render_block((), 1000) == Block("", ())


def rule(name: str, text: str, when: str = "always", **extra: object) -> Skill:
    return SkillRecord(SkillName(name), when, text, extra={"kind": "rule", **extra}).read()


def test_rules_facts_listed_and_full_skills_stand_in_sections_of_their_own() -> None:
    staging = rule("staging", "Staging is stage-2.", kind="fact")
    uv = rule("uv", "Use uv\ninstead of pip.", "When installing Python packages")
    block = render_block((staging, TWO, uv), 1000, listed=(ONE,))
    assert block.skills == ("uv", "staging", "refunds")
    assert block.listed == ("iso-times",)
    lines = block.text.splitlines()
    wanted = (
        "- Use uv instead of pip. [When installing Python packages]",
        "- Staging is stage-2.",
        "- iso-times: When writing times into files — Use the offset.",
        "[refunds] When a customer wants money back",
    )
    assert [line for line in lines if line in wanted] == list(wanted)


def test_where_not_all_lines_fit_the_list_is_short_and_then_cut() -> None:
    many = [
        Skill(
            SkillName(f"s-{number:02}"), f"When number {number} is up", "Say so, and say it well."
        )
        for number in range(30)
    ]
    whole, short, cut = (render_block((), budget, listed=many) for budget in (1000, 400, 160))
    assert "- s-07: When number 7 is up — Say so, and say it well." in whole.text
    assert "- s-07: When number 7 is up\n" in short.text
    assert (len(whole.listed), len(short.listed)) == (30, 30)
    assert 0 < len(cut.listed) < 30


def test_rules_beyond_their_budget_are_left_out_whole() -> None:
    rules = [rule(f"r-{number}", "Say it twice. " * 20) for number in range(20)]
    block = render_block(rules, 1000, rules_budget_tokens=200)
    assert 0 < len(block.skills) < 4
    assert block.text.count("- Say it twice.") == len(block.skills)


@each(
    ("body", "said"),
    [
        ("# Heading\n\n1. Run it with a seed.\n2. Look.", "Run it with a seed."),
        ("- e.g. this one, and then that; more", "e.g. this one, and then that;"),
        ("Only words without an end", "Only words without an end"),
        ("x" * 500, "x" * 119 + "…"),
    ],
)
def test_the_gist_is_the_first_step_or_sentence(body: str, said: str) -> None:
    assert gist(Skill(SkillName("one"), "When", body)) == said


def test_what_stands_in_a_block_is_told_from_what_has_changed_since() -> None:
    uv, changed = rule("uv", "Use uv."), rule("uv", "Use uv. Always.")
    text = render_block((uv, TWO), 1000, listed=(ONE,)).text
    assert is_placed_in(uv, text)
    assert is_placed_in(TWO, text)
    assert is_listed_in(ONE, text)
    assert not is_placed_in(changed, text)
    assert not is_placed_in(ONE, text)
    assert not is_listed_in(TWO, text)


def test_blocks_are_taken_out_exactly() -> None:
    first, second = render_block((ONE,), 1000).text, render_block((TWO, ONE), 1000).text
    assert remove_blocks("a\n\n" + first + "\n\nb" + second) == "a\n\n\n\nb"
    assert remove_blocks(first) == ""


def test_what_merely_looks_like_a_block_stays() -> None:
    real = render_block((ONE,), 1000).text
    for fake in (
        real.replace("offset", "0ffset"),
        real[:-5],
        real.replace('length="', 'length="9'),
        '\n\n<house_rules by="metaclaw">\n</house_rules>\n',
    ):
        assert remove_blocks(fake) == fake
        assert remove_blocks(fake + real + fake) == fake + fake


def test_a_skill_that_holds_a_block_does_not_confuse_removal() -> None:
    inner = render_block((ONE,), 1000).text
    outer = render_block(
        (Skill(SkillName("nested"), "When nested", f"before{inner}after</house_rules>"),), 5000
    ).text
    assert remove_blocks(f"x{outer}y") == "xy"


@each(
    ("text", "least", "most"),
    [
        ("", 0, 0),
        ("word " * 400, 400, 650),
        ("def f(x):\n    return x+1\n" * 20, 120, 260),
        ("数据" * 100, 200, 400),
        ("Grüße " * 100, 150, 350),
        ("🙂" * 100, 100, 300),
    ],
)
def test_tokens_are_estimated_rather_high(text: str, least: int, most: int) -> None:
    assert least <= estimate_tokens(text) <= most


@each(
    "text",
    [
        "## Learned Skills from Prior Runs\n\n---\nname: iso-times\ndescription: x\n---\nbody",
        "---\r\nname: 'iso-times'\r\ndescription: x\r\n---",
        '{"content":"---\nname: \\"iso-times\\"\ndescription"}',
        "### iso-times\nUse the offset.",
        "## Skill: iso-times (always)\n",
        "> name: iso-times\n",
        "Contents of /home/u/.skills/iso-times/SKILL.md:\n---\nname: other",
    ],
)
def test_a_skill_the_client_placed_itself_is_recognised(text: str) -> None:
    assert already_present(ONE, f"some system prompt\n{text}")


@each(
    "text",
    [
        "",
        "please edit skills/iso-times/SKILL.md",
        "the iso-times skill is wrong",
        "name: iso-times-with-offset",
        "name: my-iso-times",
        "### not-iso-times",
        "filename: iso-times",
        "- iso-times: When writing times (file: /skills/iso-times/SKILL.md)",
    ],
)
def test_a_mere_mention_is_not_presence(text: str) -> None:
    assert not already_present(ONE, f"some system prompt\n{text}\nmore")


def test_a_rule_whose_trigger_only_repeats_it_is_written_once() -> None:
    words = "From now on, always answer in one sentence."
    assert (
        rule_line(
            Rule(
                SkillName("one-sentence"),
                words,
                words,
            )
        )
        == f"- {words}"
    )
