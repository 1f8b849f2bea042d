"""Contracts of the first three phases: the goal, the literature, the synthesis and its hypotheses
(stages 1 to 8).
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from metaclaw_bench.json_types import Json
from metaclaw_bench.research.contracts.contract import Contract, Files
from metaclaw_bench.research.forms import (
    ContractError,
    cited_in,
    entries_of,
    object_of,
    objects_of,
    sections_of,
    text_at,
    texts_at,
    whole_at,
)
from metaclaw_bench.research.stages import Stage

_BOUND: Final = re.compile(r"(?:<=|>=|<|>)\s*\d")
_GAP: Final = re.compile(r"^- G\d+: (.+)$", re.MULTILINE)
_NUMBER: Final = re.compile(r"\d")
_MOST_QUERY_WORDS: Final = 6
_LEAST_REASON_WORDS: Final = 5


def _goal_form(text: str, files: Files) -> None:
    sections_of(text, ("Goal", "Scope", "Success"))


def _goal_rule(text: str, files: Files) -> None:
    if not _BOUND.search(sections_of(text, ("Success",))["Success"]):
        raise ContractError("the section 'Success' has no bound such as '>= 0.5'")


def _questions_form(text: str, files: Files) -> None:
    for one in objects_of(text, least=4):
        text_at(one, "id")
        text_at(one, "question")
        whole_at(one, "priority")


def _questions_rule(text: str, files: Files) -> None:
    listed = objects_of(text)
    if sorted(whole_at(one, "priority") for one in listed) != list(range(1, len(listed) + 1)):
        raise ContractError("the priorities are not 1, 2, 3 and so on, each once")


def _search_form(text: str, files: Files) -> None:
    plan = object_of(text)
    texts_at(plan, "queries", least=3)
    texts_at(plan, "sources", least=1)


def _search_rule(text: str, files: Files) -> None:
    for query in texts_at(object_of(text), "queries", least=1):
        if query != query.lower() or not 2 <= len(query.split()) <= _MOST_QUERY_WORDS:
            raise ContractError(f"the query {query!r} is not two to six words in lower case")


def catalogue_of(files: Files) -> list[Mapping[str, Json]]:
    """The works that may be cited: what a search found."""
    return objects_of(files["catalogue.json"])


def _bibliography_form(text: str, files: Files) -> None:
    known = {(text_at(work, "title"), str(work.get("year"))) for work in catalogue_of(files)}
    for key, fields in entries_of(text, least=3).items():
        missing = [name for name in ("author", "title", "year") if not fields.get(name)]
        if missing:
            raise ContractError(f"the entry {key} has no {missing[0]}")
        if (fields["title"], fields["year"]) not in known:
            raise ContractError(f"the entry {key} is no work of the catalogue")


def _bibliography_rule(text: str, files: Files) -> None:
    for key, fields in entries_of(text).items():
        surname = re.sub(r"[^a-z]", "", fields["author"].partition(",")[0].lower())
        if key != f"{surname}{fields['year']}":
            raise ContractError(f"the key {key} should be {surname}{fields['year']}")


def _screen_form(text: str, files: Files) -> None:
    listed = objects_of(text)
    if [text_at(one, "key") for one in listed] != list(entries_of(files["references.bib"])):
        raise ContractError("it does not list every key of references.bib once, in that order")
    for one in listed:
        if not isinstance(one.get("keep"), bool):
            raise ContractError("the field 'keep' is missing or neither true nor false")
        text_at(one, "reason")


def _screen_rule(text: str, files: Files) -> None:
    for one in objects_of(text):
        if len(text_at(one, "reason").split()) < _LEAST_REASON_WORDS:
            raise ContractError(f"the reason for {text_at(one, 'key')} has fewer than five words")


def kept_in(files: Files) -> list[str]:
    """The keys that screening kept."""
    return [
        text_at(one, "key")
        for one in objects_of(files["shortlist.json"])
        if one.get("keep") is True
    ]


def _cards_form(text: str, files: Files) -> None:
    listed = objects_of(text)
    if [text_at(one, "key") for one in listed] != kept_in(files):
        raise ContractError("it does not hold one card for every work that was kept, in that order")
    for one in listed:
        for name in ("claim", "method", "limitation"):
            text_at(one, name)


def _cards_rule(text: str, files: Files) -> None:
    for one in objects_of(text):
        if not text_at(one, "claim").rstrip().endswith(f"[{text_at(one, 'key')}]"):
            raise ContractError(
                f"the claim of {text_at(one, 'key')} does not end with [{text_at(one, 'key')}]"
            )


def _gaps(text: str) -> list[str]:
    gaps: list[str] = _GAP.findall(sections_of(text, ("Clusters", "Gaps"))["Gaps"])
    if not gaps:
        raise ContractError("the section 'Gaps' has no line '- G1: …'")
    return gaps


def _synthesis_form(text: str, files: Files) -> None:
    _gaps(text)


def _synthesis_rule(text: str, files: Files) -> None:
    known = set(kept_in(files))
    for number, gap in enumerate(_gaps(text), 1):
        if not known.intersection(cited_in(gap)):
            raise ContractError(f"the gap G{number} cites none of the works that were kept")


def _hypotheses_form(text: str, files: Files) -> None:
    for number, one in enumerate(objects_of(text, least=2), 1):
        if text_at(one, "id") != f"H{number}":
            raise ContractError("the ids are not H1, H2 and so on")
        text_at(one, "claim")
        text_at(one, "rejected_if")


def _hypotheses_rule(text: str, files: Files) -> None:
    for one in objects_of(text):
        if not _NUMBER.search(text_at(one, "rejected_if")):
            raise ContractError(f"what would reject {text_at(one, 'id')} has no number in it")


SCOPING: Final = (
    Contract(
        Stage.TOPIC_INIT,
        "goal.md",
        (),
        "Write the research goal.",
        "Markdown with the sections '# Goal', '## Scope' and '## Success', each with a sentence or"
        " more.",
        _goal_form,
        "when you write a research goal, always use the three sections Goal, Scope and Success",
        _goal_rule,
        "when you write a research goal, always give its success as a bound on a number, such as"
        " >= 0.5",
    ),
    Contract(
        Stage.PROBLEM_DECOMPOSE,
        "questions.json",
        ("goal.md",),
        "Decompose the problem into open questions.",
        "A JSON list of at least four objects with 'id', 'question' (texts) and 'priority' (a whole"
        " number).",
        _questions_form,
        "when you decompose a problem into questions, always list four or more objects with id,"
        " question and priority",
        _questions_rule,
        "when you decompose a problem into questions, always number the priorities 1, 2, 3 without"
        " ties",
    ),
    Contract(
        Stage.SEARCH_STRATEGY,
        "search_plan.json",
        ("questions.json",),
        "Plan the literature search: queries and sources.",
        "A JSON object with 'queries' (three or more texts) and 'sources' (one or more texts).",
        _search_form,
        "when you plan a literature search, always give an object with queries and sources",
        _search_rule,
        "when you plan a literature search, always write queries of two to six words in lower case",
    ),
    Contract(
        Stage.LITERATURE_COLLECT,
        "references.bib",
        ("search_plan.json", "catalogue.json"),
        "Collect a bibliography from the catalogue that the search found.",
        "BibTeX with three or more '@article' entries, each field in braces on a line of its own:"
        " author, title, year, as in the catalogue. The closing brace of an entry stands on its own"
        " line.",
        _bibliography_form,
        "when you collect a bibliography, always give each BibTeX entry author, title and year"
        " exactly as in the catalogue",
        _bibliography_rule,
        "when you collect a bibliography, always make each BibTeX key of the first author's surname"
        " in lower case and the year",
    ),
    Contract(
        Stage.LITERATURE_SCREEN,
        "shortlist.json",
        ("references.bib",),
        "Screen the collected works for relevance: which of them are kept on the shortlist.",
        "A JSON list with one object for every BibTeX key, in order: 'key', 'keep' (true or false),"
        " 'reason'.",
        _screen_form,
        "when you screen works for a shortlist, always list every key once with keep and reason",
        _screen_rule,
        "when you screen works for a shortlist, always give a relevance reason of five words or"
        " more",
    ),
    Contract(
        Stage.KNOWLEDGE_EXTRACT,
        "cards.json",
        ("shortlist.json", "references.bib"),
        "Extract a knowledge card from every work that was kept.",
        "A JSON list with one object for every kept key, in order: 'key', 'claim', 'method',"
        " 'limitation'.",
        _cards_form,
        "when you extract knowledge cards, always make one for every kept key with claim, method"
        " and limitation",
        _cards_rule,
        "when you extract knowledge cards, always end the claim with the key in square brackets",
    ),
    Contract(
        Stage.SYNTHESIS,
        "synthesis.md",
        ("cards.json",),
        "Synthesise the cards into clusters and name the gaps between them.",
        "Markdown with the sections '## Clusters' and '## Gaps'; every gap is a line '- G1: …'.",
        _synthesis_form,
        "when you synthesise clusters and gaps, always write every gap as a numbered line under"
        " Gaps",
        _synthesis_rule,
        "when you synthesise clusters and gaps, always cite in every gap the key of a card that"
        " leaves it open, in square brackets",
    ),
    Contract(
        Stage.HYPOTHESIS_GEN,
        "hypotheses.json",
        ("synthesis.md",),
        "Generate hypotheses that can be falsified.",
        "A JSON list of two or more objects: 'id' (H1, H2, …), 'claim', 'rejected_if'.",
        _hypotheses_form,
        "when you generate hypotheses, always give each an id such as H1, a claim and what would"
        " reject it",
        _hypotheses_rule,
        "when you generate hypotheses, always say with a number what measurement would falsify"
        " each",
    ),
)


def invented_catalogue(topic: str) -> str:
    """The works a search finds. Nothing is looked up anywhere, so they are invented, and say so."""
    authors = ("Arden, M.", "Brook, T.", "Calder, J.", "Dunmore, R.", "Ellery, S.")
    titles = (
        "Notes on {}",
        "A small study of {}",
        "{}: what is known",
        "Limits of {}",
        "Measuring {}",
    )
    works = [
        {
            "author": author,
            "title": title.format(topic),
            "year": 2015 + 2 * at,
            "venue": "invented for this pipeline",
        }
        for at, (author, title) in enumerate(zip(authors, titles, strict=True))
    ]
    return json.dumps(works, indent=1) + "\n"
