"""Training: advantages, curriculum, schedule, the gate and its golden set, training services, and servers of trained weights.

SDKs of training services are loaded by `load_tinker` and `load_weaver`, not by importing this package.
"""

from metaclaw.train.absorption import Absorption, SkillPair, absorbed_by, judge_absorption
from metaclaw.train.advantages import (
    MAX_ADVANTAGE,
    ScoredGroup,
    Skipped,
    Tracker,
    TrainingData,
    batch_advantages,
    group_advantages,
    normaliser,
    step_size,
)
from metaclaw.train.backends.blocking_calls import gather_all
from metaclaw.train.backends.sdk import load_tinker, load_weaver
from metaclaw.train.backends.tinker import tinker_backend
from metaclaw.train.backends.weaver import weaver_backend
from metaclaw.train.bets import TrialTurn
from metaclaw.train.checkpoints import Checkpoint, choose_checkpoint, set_aside, split_golden, to_measure
from metaclaw.train.curriculum import TrainingPrompt, choose_prompts, cut_pieces, is_held_out
from metaclaw.train.degeneration import HeldOutAnswer, is_degenerate, one_answer
from metaclaw.train.drift import drift_watch, step_figures, weighted_mean
from metaclaw.train.gate import AnswerPair, Evidence, GateRules, GateRuling, judge_candidate
from metaclaw.train.golden import (
    GoldenComparison,
    GoldenItem,
    GoldenRules,
    GoldenScore,
    GoldenStanding,
    compare_golden,
    golden_items,
    golden_score,
    golden_version,
    read_answer,
    reference_pairs,
)
from metaclaw.train.hosts.lora_servers import sglang_host, sglang_model_of, vllm_host
from metaclaw.train.hosts.sampler_model import SamplerModel
from metaclaw.train.hosts.vllm_model import VllmModel
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
from metaclaw.train.judging import RunSize, fit_to_budget, judged_size, ranking_tokens
from metaclaw.train.live import Baseline, LiveReport, LiveRules, LiveRuling, LiveWatch, judge_live
from metaclaw.train.records import FULL_REWARD, StepRecord, earned_lengths, group_record, mean_reward, moved_prefix
from metaclaw.train.rehearsal import (
    REHEARSAL_TOKENS,
    SURE_ANSWER_COPIES,
    RehearsalQuestion,
    RehearsalSize,
    Rehearsed,
    forgotten_nats,
    ordinary_questions,
    rehearse,
)
from metaclaw.train.schedule import Phase, ScheduleRules, checkpoint_steps, is_validation_due, next_step, token_cap
from metaclaw.train.teacher import EndpointTeacher, Teacher, teacher_advantages
from metaclaw.train.variations import VariationKind, vary

__all__ = [
    "FULL_REWARD",
    "LEAST_GAIN",
    "MAX_ADVANTAGE",
    "REHEARSAL_TOKENS",
    "RETRY_TEMPERATURE",
    "SURE_ANSWER_COPIES",
    "Absorption",
    "AnswerPair",
    "Baseline",
    "Checkpoint",
    "Demonstration",
    "EndpointTeacher",
    "Evidence",
    "GateRules",
    "GateRuling",
    "GoldenComparison",
    "GoldenItem",
    "GoldenRules",
    "GoldenScore",
    "GoldenStanding",
    "HeldOutAnswer",
    "LiveReport",
    "LiveRules",
    "LiveRuling",
    "LiveWatch",
    "Phase",
    "RehearsalQuestion",
    "RehearsalSize",
    "Rehearsed",
    "RunSize",
    "SamplerModel",
    "ScheduleRules",
    "ScoredGroup",
    "SkillPair",
    "Skipped",
    "StepRecord",
    "Teacher",
    "Tracker",
    "TrainingData",
    "TrainingPrompt",
    "TrialTurn",
    "VariationKind",
    "VllmModel",
    "absorbed_by",
    "batch_advantages",
    "best_answers",
    "better_answers",
    "checkpoint_steps",
    "choose_checkpoint",
    "choose_prompts",
    "compare_golden",
    "cut_pieces",
    "demonstrate",
    "demonstration_share",
    "drift_watch",
    "earned_lengths",
    "fit_to_budget",
    "forgotten_nats",
    "gather_all",
    "golden_items",
    "golden_score",
    "golden_version",
    "group_advantages",
    "group_record",
    "imitate_best",
    "imitate_hinted",
    "is_degenerate",
    "is_flat",
    "is_held_out",
    "is_settled",
    "is_validation_due",
    "judge_absorption",
    "judge_candidate",
    "judge_live",
    "judged_size",
    "load_tinker",
    "load_weaver",
    "longest_demonstration",
    "mean_reward",
    "moved_prefix",
    "next_step",
    "normaliser",
    "one_answer",
    "ordinary_questions",
    "ranking_tokens",
    "read_answer",
    "reference_pairs",
    "rehearse",
    "set_aside",
    "sglang_host",
    "sglang_model_of",
    "split_golden",
    "step_figures",
    "step_size",
    "teacher_advantages",
    "tinker_backend",
    "to_measure",
    "token_cap",
    "vary",
    "vllm_host",
    "weaver_backend",
    "weighted_mean",
    "with_hint",
]
