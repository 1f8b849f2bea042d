"""The agents of this plugin as a person connects them."""

from pathlib import Path

from tests.agents.test_written_text import connected
from tests.cli.program import metaclaw
from tests.cli.test_agents import no_sandbox_or_permission_in

IRONCLAW = "# db\nDATABASE_URL=x\nexport LLM_BACKEND=nearai\n"
IRONCLAW_CONNECTED = (
    "# db\nDATABASE_URL=x\nexport LLM_BACKEND=openai_compatible\n"
    "LLM_MODEL=gpt-5.1\nLLM_API_KEY=mc-key\nLLM_BASE_URL=http://127.0.0.1:30000/v1\n"
)


def test_only_the_needed_lines_of_a_dotenv_file_change() -> None:
    assert connected("ironclaw", IRONCLAW) == IRONCLAW_CONNECTED


def test_agents_whose_files_are_not_known_are_told_in_commands(user: Path) -> None:
    done = metaclaw("agents", "connect", "nemoclaw")
    assert "openshell provider create" in done.out
    assert "untried" in done.out
    assert metaclaw("agents", "disconnect", "nemoclaw", "--yes").code == 1


def test_agents_that_cannot_run_unattended_are_tried_by_hand(user: Path) -> None:
    listed = {one["name"]: one for one in metaclaw("agents", "list", "--json").facts["agents"]}
    assert listed["picoclaw"]["tried_with"] is None
    assert (
        "Try it: ask it something, then: metaclaw sessions list"
        in metaclaw("agents", "connect", "nanoclaw", "--yes").out
    )
    assert "cannot be run unattended" in metaclaw("agents", "test", "picoclaw").err


def test_no_setting_touches_a_sandbox_or_a_permission(user: Path) -> None:
    for name in ("aider", "zeroclaw", "picoclaw", "ironclaw"):
        assert no_sandbox_or_permission_in(metaclaw("agents", "connect", name, "--yes"))
