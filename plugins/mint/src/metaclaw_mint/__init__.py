"""MinT: the entry point `mint` of `metaclaw.training_services`. Its SDK (`mindlab-toolkit`) has the
API of Tinker's, of which it includes an older version.
"""

from metaclaw.training import ServiceSettings, TinkerService, load_tinker

__version__ = "0.1.0"


def connect(settings: ServiceSettings) -> TinkerService:
    """MinT's cloud, or a server with its API at `base_url`."""
    return TinkerService(load_tinker("mint"), settings, name="mint")
