"""Skills and rules: their files, the active library, retrieval, the text in a prompt, writing
(evolve) and proof (gate).
"""

from typing import TYPE_CHECKING

from metaclaw.checks import (
    TRIVIAL_ANSWERS,
    CheckKind,
    Screen,
    change_words,
    check_of,
    check_trouble,
    constant_parts,
    documents_at,
    examine,
    examine_all,
    examine_many,
    fixed_words,
    form_note,
    kind_of,
    near_answers,
    parse_check,
    run_check,
    sample_answer,
    screen_of,
    texts_at,
    trial_trouble,
    unread_part,
    waits_for_person,
    wall_limit_s,
    with_gaps,
    work_clock,
)
from metaclaw.loading import loaded_on_use
from metaclaw.skills.block import (
    SKILL_TOOL,
    Block,
    already_present,
    estimate_tokens,
    is_listed_in,
    is_placed_in,
    listed_line,
    remove_blocks,
    render_block,
    render_lesson,
    render_reminder,
    rule_line,
    skill_text,
)
from metaclaw.skills.files import (
    MAX_FILE_BYTES,
    parse_skill,
    read_skill,
    remove_script,
    remove_skill,
    render_skill,
    script_path,
    write_script,
    write_skill,
)
from metaclaw.skills.index import SkillIndex
from metaclaw.skills.library import SkillLibrary
from metaclaw.skills.library_view import (
    Budgets,
    Fate,
    LibraryView,
    Selection,
    SkillExplanation,
    explain,
)
from metaclaw.skills.query import query_text
from metaclaw.skills.rulebook import CHECK_ADDED, REWORDED, UNCONFIRMED, Rulebook, Undone
from metaclaw.skills.rules import (
    MAX_RULE_CHARS,
    MAX_WHEN_CHARS,
    RuleFields,
    can_hold,
    find_same,
    free_name,
    is_emphatic,
    plain_words,
    question_of,
    rule_example,
    rule_examples,
    rule_name,
    slug,
    with_free_name,
)
from metaclaw.skills.scopes import (
    OWNER,
    Reach,
    Teams,
    applies,
    applying,
    is_untouchable,
    owned,
    scope_of_lesson,
)

if TYPE_CHECKING:
    from metaclaw.skills.evolver import (
        MOST_EXAMPLES,
        MOST_SHOWN,
        SKILLS_SCHEMA,
        Evolver,
        answer_fault,
        read_skills,
    )
    from metaclaw.skills.failure_groups import (
        CORRECTION_READ,
        Failure,
        FailureGroup,
        group_failures,
    )
    from metaclaw.skills.gate.clashes import IndexLibrary, asks_the_same, contrary, overlap
    from metaclaw.skills.gate.gate import Gate, GateMode, GateResult, lint
    from metaclaw.skills.lessons import LessonCase, LessonWriter, Occurrence
    from metaclaw.skills.transfer import (
        Pack,
        read_pack,
        read_rules,
        render_section,
    )


__getattr__ = loaded_on_use(
    __name__,
    {
        "MOST_EXAMPLES": "evolver",
        "MOST_SHOWN": "evolver",
        "SKILLS_SCHEMA": "evolver",
        "Evolver": "evolver",
        "answer_fault": "evolver",
        "read_skills": "evolver",
        "CORRECTION_READ": "failure_groups",
        "Failure": "failure_groups",
        "FailureGroup": "failure_groups",
        "group_failures": "failure_groups",
        "IndexLibrary": "gate.clashes",
        "asks_the_same": "gate.clashes",
        "contrary": "gate.clashes",
        "overlap": "gate.clashes",
        "Gate": "gate.gate",
        "GateMode": "gate.gate",
        "GateResult": "gate.gate",
        "lint": "gate.gate",
        "LessonCase": "lessons",
        "LessonWriter": "lessons",
        "Occurrence": "lessons",
        "Pack": "transfer",
        "read_pack": "transfer",
        "read_rules": "transfer",
        "render_section": "transfer",
    },
)
