"""The program: its composition (`Application`), its start and its end."""

from metaclaw.app.providers import build_endpoint
from metaclaw.app.serving import ReadyProxy, run
