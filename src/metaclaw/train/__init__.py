"""Training: advantages, curriculum, the progress of a run, the gate and its golden set, training
services, servers of the weights.

Importing this package loads no SDK of a training service."""

from metaclaw.train.absorption import Absorption, SkillPair, absorbed_by, judge_absorption
from metaclaw.train.advantages import (
    MAX_ADVANTAGE,
    ScoredGroup,
    Skip,
    TrainingData,
    group_advantages,
    normaliser,
    step_size,
)
from metaclaw.train.backends.blocking_calls import (
    ServerReach,
    ServerReply,
    bounded,
    gather_all,
    run_in_thread,
)
from metaclaw.train.backends.remote import RemoteBackend
from metaclaw.train.backends.sdk import (
    EXPIRY_S,
    SdkTypes,
    Waits,
    load_tinker,
    make_adam,
    make_datum,
    make_sampling,
)
from metaclaw.train.backends.service import (
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
from metaclaw.train.backends.tinker import TinkerService
from metaclaw.train.checkpoints import (
    Checkpoint,
    add_varied,
    choose_checkpoint,
    set_aside,
    split_golden,
    to_measure,
)
from metaclaw.train.curriculum import TrainingPrompt, choose_prompts, cut_pieces, is_held_out
from metaclaw.train.degeneration import HeldOutAnswer, is_degenerate, one_answer
from metaclaw.train.extra_prompts import (
    REHEARSAL_TOKENS,
    SURE_ANSWER_COPIES,
    RehearsalQuestion,
    RehearsalSize,
    Rehearsed,
    VariationKind,
    forgotten_nats,
    ordinary_questions,
    rehearse,
    vary,
)
from metaclaw.train.gate import AnswerPair, Evidence, GateRuling, GateThresholds, judge_candidate
from metaclaw.train.golden import (
    GoldenComparison,
    GoldenItem,
    GoldenScore,
    GoldenStanding,
    GoldenThresholds,
    compare_golden,
    golden_items,
    golden_version,
    read_answer,
    reference_pairs,
)
from metaclaw.train.hosts.lora_servers import (
    AdminClient,
    HostSettings,
    LoadingHost,
    ModelHost,
    version_name,
)
from metaclaw.train.hosts.sampler_model import SamplerModel
from metaclaw.train.imitation import (
    LEAST_GAIN,
    RETRY_TEMPERATURE,
    Demonstration,
    best_answers,
    better_answers,
    demonstrate,
    demonstration_share,
    imitate_best,
    imitate_hinted,
    is_flat,
    is_settled,
    longest_demonstration,
    with_hint,
)
from metaclaw.train.live import Baseline, LiveThresholds, shown_worse
from metaclaw.train.progress import (
    Phase,
    RunSize,
    ScheduleThresholds,
    checkpoint_steps,
    fit_to_budget,
    is_validation_due,
    judged_size,
    next_step,
    ranking_tokens,
    token_cap,
)
from metaclaw.train.records import (
    FULL_REWARD,
    StepRecord,
    earned_lengths,
    find_drift,
    group_record,
    mean_reward,
    moved_prefix,
    weighted_mean,
)
