"""The languages that working days are written in: one file each."""

from typing import Final

from metaclaw_bench.workdays.words.english import ENGLISH
from metaclaw_bench.workdays.words.french import FRENCH
from metaclaw_bench.workdays.words.german import GERMAN
from metaclaw_bench.workdays.words.spanish import SPANISH
from metaclaw_bench.workdays.words.wording import Words

LANGUAGES: Final[dict[str, Words]] = {"en": ENGLISH, "de": GERMAN, "fr": FRENCH, "es": SPANISH}
