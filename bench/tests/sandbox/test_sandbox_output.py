"""The law of kept output: within bounds, nothing lost that fits, and what is missing is counted."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw_bench.sandbox.output import Kept


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text("abc\n", max_size=30).map(str.encode), max_size=20), st.integers(2, 100))
def test_output_is_whole_or_has_its_beginning_and_its_end(chunks: list[bytes], most: int) -> None:
    kept, whole, half = Kept(most), b"".join(chunks).decode(), most // 2
    for chunk in chunks:
        kept.add(chunk)
    if len(whole) <= 2 * half:
        assert (kept.text(), kept.left_out_bytes) == (whole, 0)
    else:
        assert kept.left_out_bytes == len(whole) - 2 * half
        assert (
            kept.text()
            == f"{whole[:half]}\n[… {kept.left_out_bytes} bytes left out …]\n{whole[-half:]}"
        )
