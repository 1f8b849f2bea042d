"""The languages that working days are written in: one file each."""

from typing import Final

from metaclaw.bench.workdays.words.english import ENGLISH
from metaclaw.bench.workdays.words.french import FRENCH
from metaclaw.bench.workdays.words.german import GERMAN
from metaclaw.bench.workdays.words.spanish import SPANISH
from metaclaw.bench.workdays.words.wording import Words

LANGUAGES: Final[dict[str, Words]] = {"en": ENGLISH, "de": GERMAN, "fr": FRENCH, "es": SPANISH}

__all__ = ["LANGUAGES", "Words"]
