"""Training: turns become batches, batches become steps, the gate proves the weights, and they
serve.

`loop` is the algorithm. Importing this package loads no SDK of a training service; the names in
`_LOADED_ON_USE` bring most of the program along, so they are imported when they are first used."""

from typing import TYPE_CHECKING

from metaclaw.loading import loaded_on_use
from metaclaw.training.advantages import ScoredGroup, group_advantages
from metaclaw.training.backends.calls import ServiceCalls, gather_all, run_in_thread
from metaclaw.training.backends.remote import RemoteBackend
from metaclaw.training.backends.sdk import (
    EXPIRY_S,
    SdkTypes,
    Waits,
    make_adam,
    make_datum,
    make_sampling,
)
from metaclaw.training.backends.service import (
    DrawnSequence,
    Objective,
    Reduction,
    Row,
    SampleRequest,
    Service,
    ServiceSampler,
    ServiceSettings,
    Trainee,
)
from metaclaw.training.degeneration import HeldOutAnswer, is_degenerate
from metaclaw.training.gate import (
    AnswerPair,
    Evidence,
    GateRuling,
    GateThresholds,
    judge_candidate,
)
from metaclaw.training.golden import (
    GoldenItem,
    GoldenScore,
    compare_golden,
    golden_items,
    read_answer,
)
from metaclaw.training.hosts.adapter_server import (
    AdapterHost,
    AdapterServer,
    HostSettings,
    ModelHost,
    ServerReply,
    token_host,
    version_name,
)
from metaclaw.training.hosts.run_sampler import PausedServer
from metaclaw.training.hosts.service_host import ServiceHost
from metaclaw.training.hosts.token_model import TokenModel, TokenPiece
from metaclaw.training.rollback import Baseline, shown_worse

if TYPE_CHECKING:
    from metaclaw.training.assembly import SlowLearning
    from metaclaw.training.journal import newest_curve

_LOADED_ON_USE = {"SlowLearning": "assembly", "newest_curve": "journal"}
__getattr__ = loaded_on_use(__name__, _LOADED_ON_USE)
