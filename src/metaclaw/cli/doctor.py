"""`metaclaw doctor`: look at everything the proxy needs, and say what to do about what is not right."""

from pathlib import Path

import click

from metaclaw.cli.output import json_option, plain, print_json


@click.command()
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds for each provider."
)
@json_option
@click.pass_obj
def doctor(home: Path, timeout_s: float, as_json: bool) -> int:
    """Check home, configuration, port, store, skills, providers and clock. Exits with 1 if something fails."""
    from metaclaw.cli.checks import State, examine

    findings = list(examine(home, timeout_s))
    failed = [finding for finding in findings if finding.state is State.FAIL]
    if as_json:
        print_json(
            {
                "healthy": not failed,
                "checks": [{"name": f.name, "state": f.state, "what": f.what, "remedy": f.remedy} for f in findings],
            }
        )
        return 1 if failed else 0
    for finding in findings:
        click.echo(f"{finding.state.value:<5} {finding.name:<12} {plain(finding.what)}")
        if finding.remedy is not None:
            click.echo(f"{'':18} → {plain(finding.remedy)}")
    warned = sum(finding.state is State.WARN for finding in findings)
    click.echo(f"\n{len(findings) - len(failed) - warned} ok, {warned} to look at, {len(failed)} failed")
    return 1 if failed else 0
