"""`start --mode`: a preset over the configuration, for one run."""

from pathlib import Path

import pytest

from metaclaw.cli.home import prepared
from metaclaw.cli.lifecycle import settings_of_mode
from tests.cli.program import metaclaw


@pytest.mark.parametrize(
    ("file", "mode", "in_force"),
    [
        ("", None, "skills_only"),
        ("", "skills_only", "skills_only"),
        ("", "rl", "rl"),
        ("", "auto", "auto"),
        ("[policy]\n", None, "auto"),
        ("[policy]\nmode = 'rl'\n", None, "rl"),
        ("[policy]\nmode = 'rl'\n", "skills_only", "skills_only"),
        ("[policy]\nmode = 'rl'\n", "auto", "auto"),
    ],
)
def test_a_mode_is_a_preset_over_the_file(
    home: Path, file: str, mode: str | None, in_force: str
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(file)
    config = prepared(home, settings_of_mode(home, mode, []))
    assert config.mode == in_force
    assert (config.policy is None) == (in_force == "skills_only" and not file)


def test_a_mode_that_cannot_be_served_is_refused_in_words(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[[providers]]\nname = 'a'\nkind = 'openai'\n")
    refused = metaclaw("start", "--mode", "rl")
    assert (refused.code, refused.out) == (2, "")
    assert "--mode rl trains weights" in refused.err
    assert "Leave out --mode" in refused.err
    assert "policy.backend" not in refused.err  # which nobody wrote
