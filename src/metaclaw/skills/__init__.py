"""Skills and rules: their files, the active library, retrieval, the text in a prompt, writing
(evolve) and proof (gate).
"""

from metaclaw.checks import (
    TRIVIAL_ANSWERS,
    CheckKind,
    Screen,
    Script,
    ShellSyntaxError,
    Word,
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
    read_script,
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
from metaclaw.skills.block import (
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
from metaclaw.skills.gate.clashes import IndexLibrary, asks_the_same, contrary, overlap
from metaclaw.skills.gate.gate import Gate, GateMode, GateResult, Objection, lint
from metaclaw.skills.index import SkillIndex
from metaclaw.skills.lessons import LessonCase, LessonWriter, Occurrence
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
from metaclaw.skills.rulebook import CHECK_ADDED, UNCONFIRMED, Rulebook, Undone
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
    Teams,
    applies,
    applying,
    is_untouchable,
    owned,
    scope_of_lesson,
)
from metaclaw.skills.transfer import (
    Pack,
    read_pack,
    read_rules,
    render_section,
)
