"""What the agent is told about itself and the person it works for: files that every day shares. No
rule stands in them.
"""

from metaclaw_bench.workdays.model import Files
from metaclaw_bench.workdays.plans import Plan


def persona_of(plan: Plan) -> Files:
    """The shared files of a plan's workspaces."""
    users = ", ".join(f"{user.name} ({user.language})" for user in plan.users)
    return {
        "AGENTS.md": (
            "# Agent\n\nYou keep files for a person at work. You read and write files in the"
            " workspace.\n"
        ),
        "IDENTITY.md": (
            "# Identity\n\nA careful assistant. You answer in the language in which you are spoken"
            " to.\n"
        ),
        "SOUL.md": (
            "# Manner\n\nDo what was asked, no more. Learn from what people say about your work.\n"
        ),
        "TOOLS.md": (
            "# Tools\n\nFiles are named relative to the workspace. Each day has a folder of its"
            " own.\n"
        ),
        "USER.md": (
            f"# People\n\nYou work for: {users}. They tell you when something is not as they want"
            " it.\n"
        ),
    }
