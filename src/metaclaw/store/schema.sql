-- The schema of both databases. `schema.py` reads the tables from here, `dialects.py` makes each
-- database's own statements of it. SERIAL is a key that the database numbers, NUMBER refers to one,
-- BYTES are bytes. A trigger is written as in SQLite; a line that begins with `--postgresql:` is
-- only for PostgreSQL, whose writers run at the same time.
--
-- To change the schema: change this file, the version in `schema.py`, and the statements there that
-- bring a database of the version before over.

-- The name is of the first programs, so that they, too, refuse a database of a newer one.
CREATE TABLE alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE events (
  seq SERIAL NOT NULL CONSTRAINT pk_events PRIMARY KEY AUTOINCREMENT,
  at_us BIGINT NOT NULL,
  kind TEXT NOT NULL,
  data TEXT NOT NULL
);

-- `learned_in` and `candidate` are set where the program published by itself: the newest generation of
-- its evidence, and what it put in force. `reverted_to` is set where a person reverted to an earlier
-- generation.
CREATE TABLE generations (
  number INTEGER NOT NULL,
  hash TEXT NOT NULL,
  reason TEXT NOT NULL,
  published_us BIGINT NOT NULL,
  learned_in INTEGER,
  candidate TEXT,
  reverted_to INTEGER,
  CONSTRAINT pk_generations PRIMARY KEY (number),
  CONSTRAINT ck_generations_numbers_count_from_zero CHECK (number >= 0)
);

-- `parent` may name a session that is not there yet: a sub-agent's first turn may end before its
-- parent's does.
CREATE TABLE sessions (
  id TEXT NOT NULL,
  "key" TEXT,
  agent TEXT NOT NULL,
  user_id TEXT,
  workspace_id TEXT,
  parent TEXT,
  began_us BIGINT NOT NULL,
  last_us BIGINT NOT NULL,
  ended_us BIGINT,
  end_reason TEXT,
  turns INTEGER NOT NULL,
  main_turns INTEGER NOT NULL,
  CONSTRAINT pk_sessions PRIMARY KEY (id),
  CONSTRAINT ck_sessions_an_end_has_a_reason CHECK ((ended_us IS NULL) = (end_reason IS NULL)),
  CONSTRAINT ck_sessions_time_runs_forward CHECK (last_us >= began_us),
  CONSTRAINT ck_sessions_turns_are_counted CHECK (turns >= 1 AND main_turns >= 0 AND main_turns <= turns)
);

CREATE TABLE skill_texts (
  hash BYTES NOT NULL,
  name TEXT NOT NULL,
  "trigger" TEXT NOT NULL,
  body TEXT NOT NULL,
  category TEXT,
  scope TEXT,
  extra TEXT NOT NULL,
  state TEXT DEFAULT 'live' NOT NULL,
  author TEXT DEFAULT 'person' NOT NULL,
  pinned BOOLEAN DEFAULT FALSE NOT NULL,
  CONSTRAINT pk_skill_texts PRIMARY KEY (hash),
  CONSTRAINT ck_skill_texts_hash_is_16_bytes CHECK (length(hash) = 16)
);

-- A tuple of placements is the row of its last one: each row names the row before it, and tuples that
-- begin alike share rows. What is called `hash` begins with the time in `placements` and `splices` (see
-- `deduplication`).
CREATE TABLE snippets (
  hash BYTES NOT NULL,
  body BYTES NOT NULL,
  CONSTRAINT pk_snippets PRIMARY KEY (hash),
  CONSTRAINT ck_snippets_hash_is_16_bytes CHECK (length(hash) = 16)
);

-- A skill is live in generations `since` <= n < `until`, so that a publication writes only what changed.
CREATE TABLE memberships (
  name TEXT NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER,
  skill BYTES NOT NULL,
  CONSTRAINT pk_memberships PRIMARY KEY (name, since),
  CONSTRAINT ck_memberships_time_runs_forward CHECK (until IS NULL OR until > since),
  CONSTRAINT fk_memberships_since FOREIGN KEY(since) REFERENCES generations (number),
  CONSTRAINT fk_memberships_skill FOREIGN KEY(skill) REFERENCES skill_texts (hash),
  CONSTRAINT fk_memberships_until FOREIGN KEY(until) REFERENCES generations (number)
);

CREATE TABLE placements (
  hash BYTES NOT NULL,
  previous BYTES,
  anchor BYTES NOT NULL,
  skills TEXT NOT NULL,
  snippet BYTES NOT NULL,
  CONSTRAINT pk_placements PRIMARY KEY (hash),
  CONSTRAINT ck_placements_hash_is_16_bytes CHECK (length(hash) = 16),
  CONSTRAINT fk_placements_previous FOREIGN KEY(previous) REFERENCES placements (hash),
  CONSTRAINT fk_placements_snippet FOREIGN KEY(snippet) REFERENCES snippets (hash)
);

CREATE TABLE splices (
  hash BYTES NOT NULL,
  previous BYTES,
  at_byte BIGINT NOT NULL,
  snippet BYTES NOT NULL,
  CONSTRAINT pk_splices PRIMARY KEY (hash),
  CONSTRAINT ck_splices_at_byte_is_inside CHECK (at_byte >= 0),
  CONSTRAINT ck_splices_hash_is_16_bytes CHECK (length(hash) = 16),
  CONSTRAINT fk_splices_previous FOREIGN KEY(previous) REFERENCES splices (hash),
  CONSTRAINT fk_splices_snippet FOREIGN KEY(snippet) REFERENCES snippets (hash)
);

-- `generation` may be one that is not there: a turn served while a publication failed must still be
-- kept. `truncated`: only a part of the answer is recorded, because it was too long.
CREATE TABLE turns (
  seq SERIAL NOT NULL CONSTRAINT pk_turns PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  session TEXT NOT NULL,
  kind TEXT NOT NULL,
  kind_reason TEXT NOT NULL,
  user_id TEXT,
  workspace_id TEXT,
  generation INTEGER NOT NULL,
  policy_version INTEGER NOT NULL,
  library_hash TEXT NOT NULL,
  skills TEXT NOT NULL,
  agent TEXT NOT NULL,
  wire TEXT NOT NULL,
  path TEXT NOT NULL,
  stream BOOLEAN NOT NULL,
  model TEXT NOT NULL,
  provider TEXT NOT NULL,
  provider_wire TEXT NOT NULL,
  status INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  error TEXT,
  finish TEXT,
  input_tokens BIGINT,
  output_tokens BIGINT,
  cached_tokens BIGINT,
  cache_write_tokens BIGINT,
  reasoning_tokens BIGINT,
  received_us BIGINT NOT NULL,
  first_byte_s DOUBLE,
  duration_s DOUBLE NOT NULL,
  segment INTEGER NOT NULL,
  retry_of TEXT,
  parent TEXT,
  "key" TEXT,
  head BYTES NOT NULL,
  placements BYTES,
  truncated BOOLEAN DEFAULT FALSE NOT NULL,
  channel TEXT,
  CONSTRAINT ck_turns_kind_is_known CHECK (kind IN ('main', 'side')),
  CONSTRAINT ck_turns_outcome_is_known CHECK (outcome IN ('completed', 'failed', 'cancelled')),
  CONSTRAINT ck_turns_usage_is_whole_or_absent CHECK ((input_tokens IS NULL) = (output_tokens IS NULL) AND (input_tokens IS NULL) = (cached_tokens IS NULL) AND (input_tokens IS NULL) = (cache_write_tokens IS NULL) AND (input_tokens IS NULL) = (reasoning_tokens IS NULL)),
  CONSTRAINT ck_turns_clocks_count_from_zero CHECK (generation >= 0 AND policy_version >= 0 AND segment >= 0),
  CONSTRAINT fk_turns_placements FOREIGN KEY(placements) REFERENCES placements (hash),
  CONSTRAINT fk_turns_session FOREIGN KEY(session) REFERENCES sessions (id),
  CONSTRAINT uq_turns_id UNIQUE (id)
);

-- A body, whole (`base` is absent) or as what differs from the body of an earlier turn, `link` steps from
-- a whole one.
CREATE TABLE payloads (
  turn NUMBER NOT NULL,
  base NUMBER,
  link SMALLINT NOT NULL,
  prefix BIGINT NOT NULL,
  suffix BIGINT NOT NULL,
  middle BYTES NOT NULL,
  splices BYTES,
  said BYTES NOT NULL,
  seen BYTES,
  CONSTRAINT pk_payloads PRIMARY KEY (turn),
  CONSTRAINT ck_payloads_a_patch_has_an_earlier_base CHECK ((base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)),
  CONSTRAINT ck_payloads_rebuilding_is_bounded CHECK (link >= 0 AND link < 32),
  CONSTRAINT ck_payloads_a_whole_body_borrows_nothing CHECK (prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)),
  CONSTRAINT fk_payloads_base FOREIGN KEY(base) REFERENCES payloads (turn),
  CONSTRAINT fk_payloads_splices FOREIGN KEY(splices) REFERENCES splices (hash),
  CONSTRAINT fk_payloads_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);

CREATE TABLE tokens (
  turn NUMBER NOT NULL,
  prompt_ids BYTES NOT NULL,
  sampled_ids BYTES NOT NULL,
  logprobs BYTES NOT NULL,
  CONSTRAINT pk_tokens PRIMARY KEY (turn),
  CONSTRAINT ck_tokens_each_token_has_a_logprob CHECK (length(logprobs) = 2 * length(sampled_ids)),
  CONSTRAINT ck_tokens_ids_are_int32 CHECK (length(prompt_ids) % 4 = 0 AND length(sampled_ids) % 4 = 0),
  CONSTRAINT fk_tokens_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);

CREATE TABLE translations (
  turn NUMBER NOT NULL,
  base NUMBER,
  link SMALLINT NOT NULL,
  prefix BIGINT NOT NULL,
  suffix BIGINT NOT NULL,
  middle BYTES NOT NULL,
  CONSTRAINT pk_translations PRIMARY KEY (turn),
  CONSTRAINT ck_translations_a_patch_has_an_earlier_base CHECK ((base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)),
  CONSTRAINT ck_translations_rebuilding_is_bounded CHECK (link >= 0 AND link < 32),
  CONSTRAINT ck_translations_a_whole_body_borrows_nothing CHECK (prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)),
  CONSTRAINT fk_translations_base FOREIGN KEY(base) REFERENCES translations (turn),
  CONSTRAINT fk_translations_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);

CREATE TABLE verdicts (
  seq SERIAL NOT NULL CONSTRAINT pk_verdicts PRIMARY KEY AUTOINCREMENT,
  turn NUMBER NOT NULL,
  at_us BIGINT NOT NULL,
  outcome TEXT NOT NULL,
  source TEXT NOT NULL,
  p_fail DOUBLE,
  signals TEXT NOT NULL,
  votes TEXT,
  fault TEXT,
  comment TEXT NOT NULL,
  CONSTRAINT ck_verdicts_outcome_is_known CHECK (outcome IN ('pass', 'fail', 'unknown')),
  CONSTRAINT ck_verdicts_p_fail_is_a_probability CHECK (p_fail >= 0 AND p_fail <= 1),
  CONSTRAINT ck_verdicts_a_failure_has_somebody_at_fault CHECK ((outcome = 'fail') = (fault IS NOT NULL)),
  CONSTRAINT fk_verdicts_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);

-- Which of a turn's verdicts stands, with what is asked of many turns at once.
CREATE TABLE stands (
  turn NUMBER NOT NULL,
  verdict NUMBER NOT NULL,
  generation INTEGER NOT NULL,
  kind TEXT NOT NULL,
  outcome TEXT NOT NULL,
  fault TEXT,
  CONSTRAINT pk_stands PRIMARY KEY (turn),
  CONSTRAINT fk_stands_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_stands_verdict FOREIGN KEY(verdict) REFERENCES verdicts (seq) ON DELETE CASCADE,
  CONSTRAINT uq_stands_verdict UNIQUE (verdict)
);

-- `ended_us` is when nothing more will come of it; an attempt without this was interrupted.
CREATE TABLE attempts (
  seq SERIAL NOT NULL CONSTRAINT pk_attempts PRIMARY KEY AUTOINCREMENT,
  at_us BIGINT NOT NULL,
  kind TEXT NOT NULL,
  generation INTEGER NOT NULL,
  ended_us BIGINT
);

CREATE TABLE roles (
  turn NUMBER NOT NULL,
  kind TEXT NOT NULL,
  generation INTEGER NOT NULL,
  attempt NUMBER,
  CONSTRAINT pk_roles PRIMARY KEY (turn),
  CONSTRAINT ck_roles_kind_is_known CHECK (kind IN ('support', 'query')),
  CONSTRAINT ck_roles_generations_count_from_zero CHECK (generation >= 0),
  CONSTRAINT ck_roles_a_query_turn_fed_no_attempt CHECK (attempt IS NULL OR kind = 'support'),
  CONSTRAINT fk_roles_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_roles_attempt FOREIGN KEY(attempt) REFERENCES attempts (seq)
);

CREATE TABLE candidates (
  id TEXT NOT NULL,
  name TEXT NOT NULL,
  change TEXT NOT NULL,
  proposal TEXT NOT NULL,
  standing TEXT NOT NULL,
  reason TEXT NOT NULL,
  generation INTEGER NOT NULL,
  made_us BIGINT NOT NULL,
  CONSTRAINT pk_candidates PRIMARY KEY (id),
  CONSTRAINT ck_candidates_standing_is_known CHECK (standing IN ('draft', 'shadow', 'waiting', 'accepted', 'rejected'))
);

-- By the turn's id, not its number: what a candidate was taught by is known after the turn itself is
-- forgotten.
CREATE TABLE lessons (
  candidate TEXT NOT NULL,
  turn TEXT NOT NULL,
  CONSTRAINT pk_lessons PRIMARY KEY (candidate, turn),
  CONSTRAINT fk_lessons_candidate FOREIGN KEY(candidate) REFERENCES candidates (id) ON DELETE CASCADE
);

-- `size` is how many turns it had when it was opened: some may be forgotten since.
CREATE TABLE batches (
  seq SERIAL NOT NULL CONSTRAINT pk_batches PRIMARY KEY AUTOINCREMENT,
  at_us BIGINT NOT NULL,
  policy_version INTEGER NOT NULL,
  state TEXT DEFAULT 'open' NOT NULL CONSTRAINT ck_batches_state_is_known CHECK (state IN ('open', 'done', 'dropped')),
  generation INTEGER DEFAULT 0 NOT NULL,
  seed BIGINT DEFAULT 0 NOT NULL,
  size INTEGER DEFAULT 0 NOT NULL,
  note TEXT DEFAULT '' NOT NULL,
  ended_us BIGINT CONSTRAINT ck_batches_what_ended_says_when CHECK ((state = 'open') = (ended_us IS NULL)),
  CONSTRAINT ck_batches_versions_count_from_zero CHECK (policy_version >= 0)
);

CREATE TABLE batch_turns (
  turn NUMBER NOT NULL,
  batch NUMBER NOT NULL,
  CONSTRAINT pk_batch_turns PRIMARY KEY (turn, batch),
  CONSTRAINT fk_batch_turns_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_batch_turns_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);

CREATE TABLE cursors (
  name TEXT NOT NULL,
  seq BIGINT NOT NULL,
  CONSTRAINT pk_cursors PRIMARY KEY (name)
);

-- When a skill last matched a task (placed, or withheld by chance), and in how many turns; to notice
-- unused ones.
CREATE TABLE uses (
  skill TEXT NOT NULL,
  last_us BIGINT NOT NULL,
  times BIGINT NOT NULL,
  CONSTRAINT pk_uses PRIMARY KEY (skill),
  CONSTRAINT ck_uses_times_are_counted CHECK (times >= 0)
);

-- Turns a person wanted forgotten: their names only, so that nothing is learned from them afterwards;
-- and the batches they were in (`forgotten_batches`).
CREATE TABLE forgotten (
  turn TEXT NOT NULL,
  session TEXT NOT NULL,
  at_us BIGINT NOT NULL,
  CONSTRAINT pk_forgotten PRIMARY KEY (turn)
);

-- Version 0 is the untrained model, which has no row. No version is a 'canary' any more. `state_us` and `state_turn` are when its state last
-- changed and after which turn: what it did since is read from there on. `served_us` is when it first
-- served (a version without this is never rolled back to), `gone_us` when its weights were thrown away.
CREATE TABLE policies (
  number INTEGER NOT NULL,
  parent INTEGER NOT NULL,
  state TEXT NOT NULL,
  backend TEXT NOT NULL,
  adapter TEXT NOT NULL,
  training TEXT,
  base TEXT NOT NULL,
  generation INTEGER NOT NULL,
  batch NUMBER,
  steps INTEGER NOT NULL,
  report TEXT,
  note TEXT NOT NULL,
  absorbed TEXT NOT NULL,
  made_us BIGINT NOT NULL,
  state_us BIGINT NOT NULL,
  state_turn BIGINT NOT NULL,
  served_us BIGINT,
  gone_us BIGINT,
  CONSTRAINT pk_policies PRIMARY KEY (number),
  CONSTRAINT ck_policies_a_version_has_an_earlier_parent CHECK (number > 0 AND parent >= 0 AND parent < number),
  CONSTRAINT ck_policies_clocks_count_from_zero CHECK (generation >= 0 AND steps >= 0),
  CONSTRAINT ck_policies_state_is_known CHECK (state IN ('candidate', 'rejected', 'canary', 'serving', 'retired', 'rolled back')),
  CONSTRAINT ck_policies_what_serves_has_served CHECK (state <> 'serving' OR served_us IS NOT NULL),
  CONSTRAINT ck_policies_what_is_needed_is_kept CHECK (gone_us IS NULL OR state NOT IN ('candidate', 'canary', 'serving')),
  CONSTRAINT fk_policies_batch FOREIGN KEY(batch) REFERENCES batches (seq),
  CONSTRAINT uq_policies_batch UNIQUE (batch)
);

-- The files of versions that have served, for proxies that cannot read the folder of the one that trained them.
CREATE TABLE policy_files (
  policy INTEGER NOT NULL,
  name TEXT NOT NULL,
  part INTEGER NOT NULL,
  hash TEXT NOT NULL,  -- of the whole file
  data BYTEA NOT NULL,
  CONSTRAINT pk_policy_files PRIMARY KEY (policy, name, part),
  CONSTRAINT fk_policy_files_policy FOREIGN KEY(policy) REFERENCES policies (number)
);

-- Backups that were made of this database, so that forgetting can name those that may still hold what
-- was forgotten.
CREATE TABLE backups (
  path TEXT NOT NULL,
  made_us BIGINT NOT NULL,
  CONSTRAINT pk_backups PRIMARY KEY (path)
);

-- One row each time a session ends; one that is opened again may end again.
CREATE TABLE session_ends (
  seq SERIAL NOT NULL CONSTRAINT pk_session_ends PRIMARY KEY AUTOINCREMENT,
  session TEXT NOT NULL,
  CONSTRAINT fk_session_ends_session FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE
);

-- How often a tool call failed in one way (`signature`, see `domain.episode`), by session: `failed` where it did.
-- What became of a lesson (its name is the `signature`) that was in a session's first prompt: `avoided` where it was
-- followed, `repeated` where the call failed. `is_shown` once an evolver has seen the failure.
CREATE TABLE episodes (
  seq SERIAL NOT NULL CONSTRAINT pk_episodes PRIMARY KEY AUTOINCREMENT,
  session TEXT NOT NULL,
  user_id TEXT,
  workspace_id TEXT,
  signature TEXT NOT NULL,
  outcome TEXT NOT NULL,
  at_us BIGINT NOT NULL,
  is_shown BOOLEAN NOT NULL,
  CONSTRAINT fk_episodes_session FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE
);

-- What calls to models cost, in sums. `item` is the name of a skill or rule, empty where the calls were
-- made for none.
CREATE TABLE spending (
  day TEXT NOT NULL,
  purpose TEXT NOT NULL,
  model TEXT NOT NULL,
  turns BIGINT NOT NULL,
  calls BIGINT NOT NULL,
  failures BIGINT NOT NULL,
  estimated BIGINT NOT NULL,
  input_tokens BIGINT NOT NULL,
  output_tokens BIGINT NOT NULL,
  cached_tokens BIGINT NOT NULL,
  unpriced_tokens BIGINT NOT NULL,
  cost DOUBLE NOT NULL,
  CONSTRAINT pk_spending PRIMARY KEY (day, purpose, model)
);

-- The rules and skills for one audience (see `domain.skill.Audience`) as a hash, in generations
-- `since` <= n < `until`. The view `current_turns` compares the hashes of a turn's generation with the
-- newest: those of its speaker are equal for a current turn.
CREATE TABLE scope_libraries (
  scope TEXT NOT NULL,
  workspace TEXT NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER,
  hash TEXT NOT NULL,
  CONSTRAINT pk_scope_libraries PRIMARY KEY (scope, workspace, since),
  CONSTRAINT ck_scope_libraries_time_runs_forward CHECK (until IS NULL OR until > since),
  CONSTRAINT fk_scope_libraries_since FOREIGN KEY(since) REFERENCES generations (number),
  CONSTRAINT fk_scope_libraries_until FOREIGN KEY(until) REFERENCES generations (number)
);

-- The configured teams, for `current_turns`.
CREATE TABLE team_members (
  member TEXT NOT NULL,
  team TEXT NOT NULL,
  CONSTRAINT pk_team_members PRIMARY KEY (member, team)
);

CREATE TABLE forgotten_batches (
  turn TEXT NOT NULL,
  batch NUMBER NOT NULL,
  CONSTRAINT pk_forgotten_batches PRIMARY KEY (turn, batch),
  CONSTRAINT fk_forgotten_batches_turn FOREIGN KEY(turn) REFERENCES forgotten (turn),
  CONSTRAINT fk_forgotten_batches_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);

-- How often a rule, or a skill with a check, was followed: `times` counts the rows of `rule_results`,
-- which triggers see to. `hash` is that of its text and check; `reminder` says whether the prompt ended
-- with a reminder of it, or would have.
CREATE TABLE rule_counts (
  seq SERIAL NOT NULL CONSTRAINT pk_rule_counts PRIMARY KEY AUTOINCREMENT,
  rule TEXT NOT NULL,
  hash TEXT NOT NULL,
  agent TEXT NOT NULL,
  model TEXT NOT NULL,
  day TEXT NOT NULL,
  result TEXT NOT NULL,
  reminder TEXT NOT NULL,
  times BIGINT NOT NULL,
  CONSTRAINT uq_rule_counts_rule_hash_agent_model_day_result_reminder UNIQUE (rule, hash, agent, model, day, result, reminder),
  CONSTRAINT ck_rule_counts_result_is_known CHECK (result IN ('followed', 'broken', 'held', 'unknown')),
  CONSTRAINT ck_rule_counts_reminder_is_known CHECK (reminder IN ('', 'placed', 'withheld')),
  CONSTRAINT ck_rule_counts_times_are_counted CHECK (times >= 0)
);

-- The result of each turn for each rule that applied to it. `reason` says why a rule was broken, or why
-- its check failed.
CREATE TABLE rule_results (
  turn NUMBER NOT NULL,
  count NUMBER NOT NULL,
  reason TEXT,
  CONSTRAINT pk_rule_results PRIMARY KEY (turn, count),
  CONSTRAINT fk_rule_results_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_rule_results_count FOREIGN KEY(count) REFERENCES rule_counts (seq) ON DELETE CASCADE
);

-- The rules that held calls of a turn's answer back, the turns that are attempts at it, and what the
-- provider really said.
CREATE TABLE held_rules (
  turn NUMBER NOT NULL,
  place SMALLINT NOT NULL,
  rule TEXT NOT NULL,
  attempts SMALLINT NOT NULL,
  outcome TEXT NOT NULL,
  reason TEXT NOT NULL,
  CONSTRAINT pk_held_rules PRIMARY KEY (turn, place),
  CONSTRAINT ck_held_rules_outcome_is_known CHECK (outcome IN ('complied', 'stopped', 'warned')),
  CONSTRAINT fk_held_rules_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);

CREATE TABLE turn_attempts (
  turn NUMBER NOT NULL,
  parent NUMBER NOT NULL,
  place SMALLINT NOT NULL,
  CONSTRAINT pk_turn_attempts PRIMARY KEY (turn),
  CONSTRAINT fk_turn_attempts_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_turn_attempts_parent FOREIGN KEY(parent) REFERENCES turns (seq) ON DELETE CASCADE
);

CREATE TABLE true_answers (
  turn NUMBER NOT NULL,
  wire TEXT NOT NULL,
  calls TEXT NOT NULL,
  mark TEXT NOT NULL,
  answer_id TEXT NOT NULL,
  last_id TEXT NOT NULL,
  messages BYTES NOT NULL,
  rest BYTES NOT NULL,
  CONSTRAINT pk_true_answers PRIMARY KEY (turn),
  CONSTRAINT fk_true_answers_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);

-- The keys of people. Only the SHA-256 of a key is kept: it is random and shown once. `limits` are written as on
-- the command line.
CREATE TABLE keys (
  name TEXT NOT NULL,
  hash BYTES NOT NULL,
  role TEXT NOT NULL,
  team TEXT,
  for_others BOOLEAN NOT NULL,
  limits TEXT NOT NULL,
  made_us BIGINT NOT NULL,
  CONSTRAINT pk_keys PRIMARY KEY (name),
  CONSTRAINT ck_keys_hash_is_32_bytes CHECK (length(hash) = 32),
  CONSTRAINT ck_keys_role_is_known CHECK (role IN ('owner', 'member', 'reader')),
  CONSTRAINT uq_keys_hash UNIQUE (hash)
);

-- Who changed what: the name of a key, the route of the API, and the name of the thing. Neither secrets nor words.
CREATE TABLE audit (
  seq SERIAL NOT NULL CONSTRAINT pk_audit PRIMARY KEY AUTOINCREMENT,
  at_us BIGINT NOT NULL,
  who TEXT NOT NULL,
  action TEXT NOT NULL,
  target TEXT NOT NULL
);

INSERT INTO generations (number, hash, reason, published_us) VALUES (0, 'cae66941d9efbd404e4d88758ea67670', 'nothing learned yet', 0);

CREATE UNIQUE INDEX uq_memberships_live_name ON memberships (name) WHERE until IS NULL;
CREATE INDEX ix_turns_session_seq ON turns (session, seq);
CREATE INDEX ix_turns_placements ON turns (placements) WHERE placements IS NOT NULL;
CREATE INDEX ix_payloads_base ON payloads (base) WHERE base IS NOT NULL;
CREATE INDEX ix_payloads_splices ON payloads (splices) WHERE splices IS NOT NULL;
CREATE INDEX ix_translations_base ON translations (base) WHERE base IS NOT NULL;
CREATE INDEX ix_placements_previous ON placements (previous);
CREATE INDEX ix_placements_snippet ON placements (snippet);
CREATE INDEX ix_splices_previous ON splices (previous);
CREATE INDEX ix_splices_snippet ON splices (snippet);
CREATE INDEX ix_verdicts_turn ON verdicts (turn);
CREATE INDEX ix_stands_outcome ON stands (outcome);
CREATE INDEX ix_stands_lessons ON stands (generation, turn) WHERE outcome = 'fail' AND fault = 'agent' AND kind = 'main';
CREATE INDEX ix_attempts_open ON attempts (seq) WHERE ended_us IS NULL;
CREATE INDEX ix_roles_kind ON roles (kind);
CREATE INDEX ix_candidates_made_us_id ON candidates (made_us, id);
CREATE INDEX ix_candidates_standing_made_us_id ON candidates (standing, made_us, id);
CREATE INDEX ix_candidates_name_made_us ON candidates (name, made_us);
CREATE INDEX ix_lessons_turn ON lessons (turn);
CREATE INDEX ix_batch_turns_batch ON batch_turns (batch);
CREATE INDEX ix_forgotten_session ON forgotten (session);
CREATE INDEX ix_batches_open ON batches (seq) WHERE ended_us IS NULL;
CREATE UNIQUE INDEX uq_policies_serving ON policies (state) WHERE state = 'serving';
CREATE INDEX ix_generations_reverts ON generations (number) WHERE reverted_to IS NOT NULL;
CREATE INDEX ix_episodes_signature ON episodes (signature);
CREATE INDEX ix_episodes_session ON episodes (session);
CREATE INDEX ix_session_ends_session ON session_ends (session);
CREATE INDEX ix_forgotten_batches_batch ON forgotten_batches (batch);
CREATE INDEX ix_rule_results_count_turn ON rule_results (count, turn);
CREATE INDEX ix_held_rules_rule ON held_rules (rule);
CREATE INDEX ix_turn_attempts_parent ON turn_attempts (parent);

-- A row counts that was in force then and is not now, or is now and was not then, unless the other one has the same hash.
-- The turns whose speaker has today the rules and skills they had when the turn was made.
CREATE VIEW current_turns AS SELECT turns.seq AS turn FROM turns
  WHERE turns.generation <= (SELECT max(number) FROM generations) AND NOT EXISTS (
    SELECT 1 FROM scope_libraries AS one
    WHERE one.scope IN (
        SELECT '' UNION ALL SELECT CASE WHEN COALESCE(turns.user_id, '') = '' THEN 'owner' ELSE 'user:' || turns.user_id END
        UNION ALL SELECT 'id:' || turns.user_id UNION ALL SELECT 'workspace:' || turns.workspace_id
        UNION ALL SELECT 'id:' || turns.workspace_id
        UNION ALL SELECT 'team:' || team FROM team_members WHERE member = turns.user_id
      )
      AND (
        one.workspace IN ('', turns.workspace_id)
        OR substr(turns.workspace_id, 1, length(one.workspace) + 1) IN (one.workspace || '/', one.workspace || '\')
      )
      AND (one.since <= turns.generation AND one.until > turns.generation OR one.since > turns.generation AND one.until IS NULL)
      AND NOT EXISTS (
        SELECT 1 FROM scope_libraries AS other
        WHERE other.scope = one.scope AND other.workspace = one.workspace AND other.since <> one.since AND other.hash = one.hash
          AND (other.since <= turns.generation AND other.until > turns.generation OR other.since > turns.generation AND other.until IS NULL)
      )
  );

CREATE TRIGGER turns_are_final BEFORE UPDATE OF seq, id, session, kind, kind_reason, user_id, workspace_id, generation, policy_version, library_hash, agent, wire, path, stream, model, provider, provider_wire, status, outcome, error, finish, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, received_us, first_byte_s, duration_s, segment, retry_of, parent, "key", head, placements, truncated, channel ON turns
BEGIN
  SELECT RAISE(ABORT, 'a row of turns is never edited');
END;

CREATE TRIGGER payloads_are_final BEFORE UPDATE OF turn, base, link, prefix, suffix, middle, splices ON payloads
BEGIN
  SELECT RAISE(ABORT, 'a row of payloads is never edited');
END;

CREATE TRIGGER translations_are_final BEFORE UPDATE ON translations
BEGIN
  SELECT RAISE(ABORT, 'a row of translations is never edited');
END;

CREATE TRIGGER tokens_are_final BEFORE UPDATE ON tokens
BEGIN
  SELECT RAISE(ABORT, 'a row of tokens is never edited');
END;

CREATE TRIGGER verdicts_are_final BEFORE UPDATE ON verdicts
BEGIN
  SELECT RAISE(ABORT, 'a row of verdicts is never edited');
END;

CREATE TRIGGER verdicts_go_with_their_turn BEFORE DELETE ON verdicts
BEGIN
  SELECT RAISE(ABORT, 'a row of verdicts is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;

CREATE TRIGGER roles_are_final BEFORE UPDATE ON roles
BEGIN
  SELECT RAISE(ABORT, 'a row of roles is never edited');
END;

CREATE TRIGGER roles_go_with_their_turn BEFORE DELETE ON roles
BEGIN
  SELECT RAISE(ABORT, 'a row of roles is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;

CREATE TRIGGER batch_turns_are_final BEFORE UPDATE ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a row of batch_turns is never edited');
END;

CREATE TRIGGER batch_turns_go_with_their_turn BEFORE DELETE ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a row of batch_turns is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;

CREATE TRIGGER roles_are_given_once BEFORE INSERT ON roles
BEGIN
  SELECT RAISE(ABORT, 'a turn has one role for ever') WHERE EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
END;

CREATE TRIGGER verdicts_are_kept BEFORE INSERT ON verdicts
BEGIN
  SELECT RAISE(ABORT, 'a row of verdicts is never edited') WHERE EXISTS (SELECT 1 FROM verdicts WHERE seq = NEW.seq);
END;

-- On DELETE, because a check on INSERT would cost a tenth of recording a turn; with recursive_triggers INSERT OR REPLACE deletes.
CREATE TRIGGER turns_are_kept BEFORE DELETE ON turns
BEGIN
  SELECT RAISE(ABORT, 'a turn is forgotten with its body, never replaced') WHERE EXISTS (SELECT 1 FROM payloads WHERE turn = OLD.seq);
END;

-- The first lock makes a publication wait for this transaction, or this one for it; by the second one
-- of two transactions that give a turn a role or a batch waits for the other.
CREATE TRIGGER batch_turns_may_train BEFORE INSERT ON batch_turns
BEGIN
  --postgresql: PERFORM 1 FROM generations WHERE number = 0 FOR SHARE;
  --postgresql: PERFORM 1 FROM turns WHERE seq = NEW.turn FOR UPDATE;
  SELECT RAISE(ABORT, 'a turn is in one open batch at a time') WHERE EXISTS (SELECT 1 FROM batch_turns JOIN batches ON seq = batch WHERE turn = NEW.turn AND state = 'open');
  SELECT RAISE(ABORT, 'a turn that fed a skill never trains') WHERE EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn AND kind = 'support');
  SELECT RAISE(ABORT, 'a turn made with other skills or rules than its speaker has now does not train') WHERE NOT EXISTS (SELECT 1 FROM current_turns WHERE turn = NEW.turn);
END;

CREATE TRIGGER batch_turns_are_query AFTER INSERT ON batch_turns
BEGIN
  INSERT INTO roles (turn, kind, generation) SELECT seq, 'query', generation FROM turns
    WHERE seq = NEW.turn AND NOT EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
END;

CREATE TRIGGER batch_turns_join_what_is_open BEFORE INSERT ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a batch that has ended takes no more turns') WHERE COALESCE((SELECT state FROM batches WHERE seq = NEW.batch) <> 'open', FALSE);
END;

CREATE TRIGGER batches_end_once BEFORE UPDATE ON batches
BEGIN
  SELECT RAISE(ABORT, 'a batch ends once') WHERE OLD.state <> 'open';
END;

CREATE TRIGGER batches_are_final BEFORE UPDATE OF seq, at_us, policy_version, generation, seed, size ON batches
BEGIN
  SELECT RAISE(ABORT, 'a row of batches is never edited, it only ends');
END;

CREATE TRIGGER batches_are_kept BEFORE DELETE ON batches
BEGIN
  SELECT RAISE(ABORT, 'a batch is kept for ever');
END;

CREATE TRIGGER policies_come_of_whole_batches BEFORE INSERT ON policies
BEGIN
  SELECT RAISE(ABORT, 'a version comes only of a batch that is done') WHERE NEW.batch IS NOT NULL AND COALESCE((SELECT state FROM batches WHERE seq = NEW.batch) <> 'done', FALSE);
END;

CREATE TRIGGER policies_are_final BEFORE UPDATE OF number, parent, backend, adapter, training, base, generation, batch, steps, made_us ON policies
BEGIN
  SELECT RAISE(ABORT, 'what a version is made of is never edited');
END;

CREATE TRIGGER policies_are_kept BEFORE DELETE ON policies
BEGIN
  SELECT RAISE(ABORT, 'a version is kept for ever');
END;

CREATE TRIGGER generations_respect_reverts BEFORE INSERT ON generations
BEGIN
  SELECT RAISE(ABORT, 'skills were reverted after this was learned')
  WHERE NEW.learned_in < (SELECT max(number) FROM generations WHERE reverted_to IS NOT NULL);
END;

CREATE TRIGGER memberships_respect_removals BEFORE INSERT ON memberships
BEGIN
  SELECT RAISE(ABORT, 'the skill was taken out of force after this was learned')
  WHERE (SELECT learned_in FROM generations WHERE number = NEW.since) < (
    SELECT max(gone.until) FROM memberships AS gone
    JOIN generations AS removal ON removal.number = gone.until AND removal.learned_in IS NULL
    WHERE gone.name = NEW.name AND gone.until < NEW.since
    AND NOT EXISTS (SELECT 1 FROM memberships AS later WHERE later.name = gone.name AND later.since = gone.until)
  );
END;

CREATE TRIGGER rule_results_are_counted AFTER INSERT ON rule_results
BEGIN
  UPDATE rule_counts SET times = times + 1 WHERE seq = NEW.count;
END;

CREATE TRIGGER rule_results_are_uncounted AFTER DELETE ON rule_results
BEGIN
  UPDATE rule_counts SET times = times - 1 WHERE seq = OLD.count;
  DELETE FROM rule_counts WHERE seq = OLD.count AND times = 0;
END;

CREATE TRIGGER held_rules_are_final BEFORE UPDATE ON held_rules
BEGIN
  SELECT RAISE(ABORT, 'a row of held_rules is never edited');
END;

CREATE TRIGGER turn_attempts_are_final BEFORE UPDATE ON turn_attempts
BEGIN
  SELECT RAISE(ABORT, 'a row of turn_attempts is never edited');
END;

CREATE TRIGGER true_answers_are_final BEFORE UPDATE ON true_answers
BEGIN
  SELECT RAISE(ABORT, 'a row of true_answers is never edited');
END;
