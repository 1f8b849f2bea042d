"""Contracts of the paper: outline, draft, review, revision, quality, archive, export and citations
(stages 16 to 23).
"""

import re
from typing import Final

from metaclaw_bench.research.contracts.contract import Contract, Files, no_rule
from metaclaw_bench.research.contracts.experiments import best_of, design_in, results_in
from metaclaw_bench.research.contracts.scoping import kept_in
from metaclaw_bench.research.forms import (
    ContractError,
    cited_in,
    entries_of,
    front_of,
    object_of,
    objects_of,
    sections_of,
    text_at,
    texts_at,
    whole_at,
)
from metaclaw_bench.research.stages import Stage

SECTIONS: Final = ("Abstract", "Introduction", "Method", "Results", "Conclusion")
ACCEPTED_FROM: Final = 6
_MOST_ABSTRACT_WORDS: Final = 60
_LEAST_KEYWORDS: Final = 3
_ANSWERED: Final = re.compile(r"^(\d+)\. ", re.MULTILINE)


def _outline_form(text: str, files: Files) -> None:
    sections_of(text, SECTIONS)


def _outline_rule(text: str, files: Files) -> None:
    sections_of(text, ("Limitations",))


def _paper_form(text: str, files: Files) -> None:
    sections = sections_of(text, SECTIONS)
    if len(cited_in(text)) < 2:
        raise ContractError("it cites fewer than two works as [@key]")
    name, mean = best_of(results_in(files))
    if f"{mean:.3f}" not in sections["Results"] or name not in sections["Results"]:
        raise ContractError(f"its section 'Results' does not report {name!r} with {mean:.3f}")


def _draft_rule(text: str, files: Files) -> None:
    if len(sections_of(text, SECTIONS)["Abstract"].split()) > _MOST_ABSTRACT_WORDS:
        raise ContractError(f"the abstract has more than {_MOST_ABSTRACT_WORDS} words")


def weaknesses_in(files: Files) -> list[str]:
    """What the review found wrong with the draft."""
    return texts_at(object_of(files["review.json"]), "weaknesses", least=1)


def _review_form(text: str, files: Files) -> None:
    review = object_of(text)
    texts_at(review, "strengths", least=1)
    texts_at(review, "weaknesses", least=1)
    if not 1 <= whole_at(review, "score") <= 10:
        raise ContractError("the score is not from 1 to 10")


def _review_rule(text: str, files: Files) -> None:
    for weakness in texts_at(object_of(text), "weaknesses", least=1):
        if weakness.partition(":")[0] not in (*SECTIONS, "Limitations"):
            raise ContractError(
                f"the weakness {weakness[:40]!r} does not begin with a section's name and a colon"
            )


def _revision_form(text: str, files: Files) -> None:
    _paper_form(text, files)
    sections_of(text, ("Changes",))
    if len(text.partition("## Changes")[0].strip()) < len(files["draft.md"].strip()):
        raise ContractError("it is shorter than the draft")


def _revision_rule(text: str, files: Files) -> None:
    answered = [
        int(number) for number in _ANSWERED.findall(sections_of(text, ("Changes",))["Changes"])
    ]
    if answered != list(range(1, len(weaknesses_in(files)) + 1)):
        raise ContractError(
            "the section 'Changes' does not answer every weakness in a numbered list"
        )


def is_accepted(text: str) -> bool:
    """Whether the quality gate lets the paper pass."""
    value = object_of(text)
    return text_at(value, "verdict") == "accept" and whole_at(value, "score") >= ACCEPTED_FROM


def _quality_form(text: str, files: Files) -> None:
    value = object_of(text)
    if not 1 <= whole_at(value, "score") <= 10:
        raise ContractError("the score is not from 1 to 10")
    if text_at(value, "verdict") not in ("accept", "revise"):
        raise ContractError("the verdict is neither accept nor revise")
    text_at(value, "evidence")


def _quality_rule(text: str, files: Files) -> None:
    if not text_at(object_of(text), "evidence").strip().startswith("Results"):
        raise ContractError("the evidence does not point into the section Results")


def _archive_form(text: str, files: Files) -> None:
    sections_of(text, ("Lessons", "Reproduce"))


def _archive_rule(text: str, files: Files) -> None:
    seeds = ", ".join(map(str, design_in(files).seeds))
    if f"seeds: {seeds}" not in sections_of(text, ("Reproduce",))["Reproduce"]:
        raise ContractError(f"the section 'Reproduce' has no line 'seeds: {seeds}'")


def _export_form(text: str, files: Files) -> None:
    if not front_of(text).get("title"):
        raise ContractError("the front matter has no title")
    _paper_form(text, files)


def _export_rule(text: str, files: Files) -> None:
    keywords = [word.strip() for word in front_of(text).get("keywords", "").split(",")]
    if len([word for word in keywords if word]) < _LEAST_KEYWORDS:
        raise ContractError(
            f"the front matter has no line 'keywords' with {_LEAST_KEYWORDS} or more of them"
        )


def _citations_form(text: str, files: Files) -> None:
    known = {text_at(one, "key"): one.get("known") for one in objects_of(text)}
    unknown = [key for key, is_known in known.items() if is_known is not True]
    if unknown:
        raise ContractError(
            f"the paper cites {unknown[0]}, which is not in references.bib or was not kept"
        )


def citations(files: Files) -> list[dict[str, bool | str]]:
    """Every citation of the paper, and whether there is such a work."""
    known = set(entries_of(files["references.bib"])).intersection(kept_in(files))
    return [{"key": key, "known": key in known} for key in cited_in(files["paper.md"])]


_PAPER_FORM: Final = (
    "Markdown with the sections Abstract, Introduction, Method, Results and Conclusion, two or more"
    " citations as [@key], and in Results the best condition with its mean to three decimals."
)

WRITING: Final = (
    Contract(
        Stage.PAPER_OUTLINE,
        "outline.md",
        ("analysis.md", "decision.json"),
        "Outline the paper.",
        "Markdown with a heading for each of Abstract, Introduction, Method, Results and"
        " Conclusion, and under each a line that says its goal.",
        _outline_form,
        "when you outline a paper, always give a goal under Abstract, Introduction, Method, Results"
        " and Conclusion",
        _outline_rule,
        "when you outline a paper, always plan a section Limitations too",
    ),
    Contract(
        Stage.PAPER_DRAFT,
        "draft.md",
        ("outline.md", "analysis.md", "cards.json"),
        "Draft the paper.",
        _PAPER_FORM,
        _paper_form,
        "when you draft a paper, always write all five sections, cite two works and report the best"
        " mean in Results",
        _draft_rule,
        f"when you draft a paper, always keep the abstract to {_MOST_ABSTRACT_WORDS} words or"
        " fewer",
    ),
    Contract(
        Stage.PEER_REVIEW,
        "review.json",
        ("draft.md",),
        "Review the draft as a peer.",
        "A JSON object with 'strengths' and 'weaknesses' (lists of texts, none empty) and 'score'"
        " (a whole number from 1 to 10).",
        _review_form,
        "when you review a draft as a peer, always list strengths and weaknesses and give a whole"
        " score from 1 to 10",
        _review_rule,
        "when you review a draft as a peer, always begin each weakness with the section it is about"
        " and a colon",
    ),
    Contract(
        Stage.PAPER_REVISION,
        "revised.md",
        ("draft.md", "review.json", "analysis.md"),
        "Revise the paper by the review.",
        f"{_PAPER_FORM} Nothing is shortened, and a last section '## Changes' says what was"
        " changed.",
        _revision_form,
        "when you revise a paper by its review, always keep all of the draft and add a section"
        " Changes",
        _revision_rule,
        "when you revise a paper by its review, always answer each weakness under Changes in a"
        " numbered list",
    ),
    Contract(
        Stage.QUALITY_GATE,
        "quality.json",
        ("revised.md",),
        "Judge the quality of the revised paper for publication.",
        "A JSON object with 'score' (a whole number from 1 to 10), 'verdict' (accept or revise) and"
        " 'evidence'.",
        _quality_form,
        "when you judge the quality of a paper for publication, always give score, verdict and"
        " evidence",
        _quality_rule,
        "when you judge the quality of a paper for publication, always begin the evidence with the"
        " word Results",
    ),
    Contract(
        Stage.KNOWLEDGE_ARCHIVE,
        "archive.md",
        ("decision.json", "design.json"),
        "Archive what was learned and how to reproduce it.",
        "Markdown with the sections '## Lessons' and '## Reproduce'.",
        _archive_form,
        "when you archive what was learned, always write the sections Lessons and Reproduce",
        _archive_rule,
        "when you archive what was learned, always list the seeds to reproduce it on one line, such"
        " as seeds: 1, 2, 3",
    ),
    Contract(
        Stage.EXPORT_PUBLISH,
        "paper.md",
        ("revised.md",),
        "Export the final paper.",
        "Front matter between two lines of three dashes with 'title: …', then the paper:"
        f" {_PAPER_FORM}",
        _export_form,
        "when you export the final paper, always begin with front matter that has a title, and cite"
        " only works that were kept",
        _export_rule,
        f"when you export the final paper, always put a line keywords with {_LEAST_KEYWORDS} or"
        " more into the front matter",
    ),
    Contract(
        Stage.CITATION_VERIFY,
        "citations.json",
        ("paper.md", "references.bib", "shortlist.json"),
        "Verify the citations.",
        "A JSON list of every cited key and whether there is such a work.",
        _citations_form,
        "when you export the final paper, always cite only works that were kept on the shortlist",
        no_rule,
        "",
    ),
)
