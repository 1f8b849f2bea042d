"""Numbers in words, as the pages say them."""

from metaclaw.api.web.formats import signal
from metaclaw.outcome.detectors import WEIGHTS
from tests.support.cases import each


@each("detector", [*WEIGHTS.signals, "check"])
def test_every_signal_is_shown_in_words(detector: str) -> None:
    words = signal(detector)
    assert " " in words
    assert ": " not in words, "the fallback shows the name of the detector"
