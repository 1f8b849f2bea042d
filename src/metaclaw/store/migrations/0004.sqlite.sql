-- The baseline, revision 0004. Landed: never edit it, add a new revision (see migration.py).
-- Every statement leaves alone what exists, so that homes of revisions 0001 to 0003 can be completed by it.

CREATE TABLE IF NOT EXISTS alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE IF NOT EXISTS attempts (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  at_us BIGINT NOT NULL,
  kind TEXT NOT NULL,
  generation INTEGER NOT NULL,
  ended_us BIGINT
);

CREATE TABLE IF NOT EXISTS batch_turns (
  turn INTEGER NOT NULL,
  batch INTEGER NOT NULL,
  CONSTRAINT pk_batch_turns PRIMARY KEY (turn),
  CONSTRAINT fk_batch_turns_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_batch_turns_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);

CREATE TABLE IF NOT EXISTS batches (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
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

CREATE TABLE IF NOT EXISTS candidates (
  id TEXT NOT NULL,
  name TEXT NOT NULL,
  change TEXT NOT NULL,
  proposal TEXT NOT NULL,
  standing TEXT NOT NULL,
  reason TEXT NOT NULL,
  generation INTEGER NOT NULL,
  made_us BIGINT NOT NULL,
  certificate TEXT,
  CONSTRAINT pk_candidates PRIMARY KEY (id),
  CONSTRAINT ck_candidates_standing_is_known CHECK (standing IN ('draft', 'shadow', 'waiting', 'accepted', 'rejected'))
);

CREATE TABLE IF NOT EXISTS cursors (
  name TEXT NOT NULL,
  seq BIGINT NOT NULL,
  CONSTRAINT pk_cursors PRIMARY KEY (name)
);

CREATE TABLE IF NOT EXISTS draws (
  turn INTEGER NOT NULL,
  place SMALLINT NOT NULL,
  skill TEXT NOT NULL,
  placed BOOLEAN NOT NULL,
  propensity DOUBLE NOT NULL,
  CONSTRAINT pk_draws PRIMARY KEY (turn, place),
  CONSTRAINT fk_draws_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS events (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  at_us BIGINT NOT NULL,
  kind TEXT NOT NULL,
  data TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS forgotten (
  turn TEXT NOT NULL,
  session TEXT NOT NULL,
  batch INTEGER,
  at_us BIGINT NOT NULL,
  CONSTRAINT pk_forgotten PRIMARY KEY (turn)
);

CREATE TABLE IF NOT EXISTS generations (
  number INTEGER NOT NULL,
  hash TEXT NOT NULL,
  reason TEXT NOT NULL,
  published_us BIGINT NOT NULL,
  CONSTRAINT pk_generations PRIMARY KEY (number),
  CONSTRAINT ck_generations_numbers_count_from_zero CHECK (number >= 0)
);

CREATE TABLE IF NOT EXISTS lessons (
  candidate TEXT NOT NULL,
  turn TEXT NOT NULL,
  CONSTRAINT pk_lessons PRIMARY KEY (candidate, turn),
  CONSTRAINT fk_lessons_candidate FOREIGN KEY(candidate) REFERENCES candidates (id) ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS memberships (
  name TEXT NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER,
  skill BLOB NOT NULL,
  CONSTRAINT pk_memberships PRIMARY KEY (name, since),
  CONSTRAINT ck_memberships_time_runs_forward CHECK (until IS NULL OR until > since),
  CONSTRAINT fk_memberships_since FOREIGN KEY(since) REFERENCES generations (number),
  CONSTRAINT fk_memberships_skill FOREIGN KEY(skill) REFERENCES skill_texts (hash),
  CONSTRAINT fk_memberships_until FOREIGN KEY(until) REFERENCES generations (number)
);

CREATE TABLE IF NOT EXISTS payloads (
  turn INTEGER NOT NULL,
  base INTEGER,
  link SMALLINT NOT NULL,
  prefix BIGINT NOT NULL,
  suffix BIGINT NOT NULL,
  middle BLOB NOT NULL,
  splices BLOB,
  said BLOB NOT NULL,
  seen BLOB,
  CONSTRAINT pk_payloads PRIMARY KEY (turn),
  CONSTRAINT ck_payloads_a_patch_has_an_earlier_base CHECK ((base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)),
  CONSTRAINT ck_payloads_rebuilding_is_bounded CHECK (link >= 0 AND link < 32),
  CONSTRAINT ck_payloads_a_whole_body_borrows_nothing CHECK (prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)),
  CONSTRAINT fk_payloads_base FOREIGN KEY(base) REFERENCES payloads (turn),
  CONSTRAINT fk_payloads_splices FOREIGN KEY(splices) REFERENCES splices (hash),
  CONSTRAINT fk_payloads_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);

CREATE TABLE IF NOT EXISTS placements (
  hash BLOB NOT NULL,
  previous BLOB,
  anchor BLOB NOT NULL,
  skills TEXT NOT NULL,
  snippet BLOB NOT NULL,
  CONSTRAINT pk_placements PRIMARY KEY (hash),
  CONSTRAINT ck_placements_hash_is_16_bytes CHECK (length(hash) = 16),
  CONSTRAINT fk_placements_previous FOREIGN KEY(previous) REFERENCES placements (hash),
  CONSTRAINT fk_placements_snippet FOREIGN KEY(snippet) REFERENCES snippets (hash)
);

CREATE TABLE IF NOT EXISTS policies (
  number INTEGER NOT NULL,
  parent INTEGER NOT NULL,
  state TEXT NOT NULL,
  backend TEXT NOT NULL,
  adapter TEXT NOT NULL,
  training TEXT,
  base TEXT NOT NULL,
  generation INTEGER NOT NULL,
  batch INTEGER,
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

CREATE TABLE IF NOT EXISTS roles (
  turn INTEGER NOT NULL,
  kind TEXT NOT NULL,
  generation INTEGER NOT NULL,
  attempt INTEGER,
  CONSTRAINT pk_roles PRIMARY KEY (turn),
  CONSTRAINT ck_roles_kind_is_known CHECK (kind IN ('support', 'query')),
  CONSTRAINT ck_roles_generations_count_from_zero CHECK (generation >= 0),
  CONSTRAINT ck_roles_a_query_turn_fed_no_attempt CHECK (attempt IS NULL OR kind = 'support'),
  CONSTRAINT fk_roles_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_roles_attempt FOREIGN KEY(attempt) REFERENCES attempts (seq)
);

CREATE TABLE IF NOT EXISTS sessions (
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

CREATE TABLE IF NOT EXISTS skill_texts (
  hash BLOB NOT NULL,
  name TEXT NOT NULL,
  "trigger" TEXT NOT NULL,
  body TEXT NOT NULL,
  category TEXT,
  scope TEXT,
  extra TEXT NOT NULL,
  state TEXT DEFAULT 'live' NOT NULL,
  author TEXT DEFAULT 'person' NOT NULL,
  pinned BOOLEAN DEFAULT 0 NOT NULL,
  CONSTRAINT pk_skill_texts PRIMARY KEY (hash),
  CONSTRAINT ck_skill_texts_hash_is_16_bytes CHECK (length(hash) = 16)
);

CREATE TABLE IF NOT EXISTS snippets (
  hash BLOB NOT NULL,
  body BLOB NOT NULL,
  CONSTRAINT pk_snippets PRIMARY KEY (hash),
  CONSTRAINT ck_snippets_hash_is_16_bytes CHECK (length(hash) = 16)
);

CREATE TABLE IF NOT EXISTS splices (
  hash BLOB NOT NULL,
  previous BLOB,
  at_byte BIGINT NOT NULL,
  snippet BLOB NOT NULL,
  CONSTRAINT pk_splices PRIMARY KEY (hash),
  CONSTRAINT ck_splices_at_byte_is_inside CHECK (at_byte >= 0),
  CONSTRAINT ck_splices_hash_is_16_bytes CHECK (length(hash) = 16),
  CONSTRAINT fk_splices_previous FOREIGN KEY(previous) REFERENCES splices (hash),
  CONSTRAINT fk_splices_snippet FOREIGN KEY(snippet) REFERENCES snippets (hash)
);

CREATE TABLE IF NOT EXISTS stands (
  turn INTEGER NOT NULL,
  verdict INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  kind TEXT NOT NULL,
  outcome TEXT NOT NULL,
  fault TEXT,
  CONSTRAINT pk_stands PRIMARY KEY (turn),
  CONSTRAINT fk_stands_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_stands_verdict FOREIGN KEY(verdict) REFERENCES verdicts (seq) ON DELETE CASCADE,
  CONSTRAINT uq_stands_verdict UNIQUE (verdict)
);

CREATE TABLE IF NOT EXISTS tokens (
  turn INTEGER NOT NULL,
  prompt_ids BLOB NOT NULL,
  sampled_ids BLOB NOT NULL,
  logprobs BLOB NOT NULL,
  CONSTRAINT pk_tokens PRIMARY KEY (turn),
  CONSTRAINT ck_tokens_each_token_has_a_logprob CHECK (length(logprobs) = 2 * length(sampled_ids)),
  CONSTRAINT ck_tokens_ids_are_int32 CHECK (length(prompt_ids) % 4 = 0 AND length(sampled_ids) % 4 = 0),
  CONSTRAINT fk_tokens_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);

CREATE TABLE IF NOT EXISTS translations (
  turn INTEGER NOT NULL,
  base INTEGER,
  link SMALLINT NOT NULL,
  prefix BIGINT NOT NULL,
  suffix BIGINT NOT NULL,
  middle BLOB NOT NULL,
  CONSTRAINT pk_translations PRIMARY KEY (turn),
  CONSTRAINT ck_translations_a_patch_has_an_earlier_base CHECK ((base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)),
  CONSTRAINT ck_translations_rebuilding_is_bounded CHECK (link >= 0 AND link < 32),
  CONSTRAINT ck_translations_a_whole_body_borrows_nothing CHECK (prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)),
  CONSTRAINT fk_translations_base FOREIGN KEY(base) REFERENCES translations (turn),
  CONSTRAINT fk_translations_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);

CREATE TABLE IF NOT EXISTS turns (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
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
  head BLOB NOT NULL,
  placements BLOB,
  CONSTRAINT ck_turns_kind_is_known CHECK (kind IN ('main', 'side')),
  CONSTRAINT ck_turns_outcome_is_known CHECK (outcome IN ('completed', 'failed', 'cancelled')),
  CONSTRAINT ck_turns_usage_is_whole_or_absent CHECK ((input_tokens IS NULL) = (output_tokens IS NULL) AND (input_tokens IS NULL) = (cached_tokens IS NULL) AND (input_tokens IS NULL) = (cache_write_tokens IS NULL) AND (input_tokens IS NULL) = (reasoning_tokens IS NULL)),
  CONSTRAINT ck_turns_clocks_count_from_zero CHECK (generation >= 0 AND policy_version >= 0 AND segment >= 0),
  CONSTRAINT fk_turns_placements FOREIGN KEY(placements) REFERENCES placements (hash),
  CONSTRAINT fk_turns_session FOREIGN KEY(session) REFERENCES sessions (id),
  CONSTRAINT uq_turns_id UNIQUE (id)
);

CREATE TABLE IF NOT EXISTS unwritten (
  name TEXT NOT NULL,
  generation INTEGER NOT NULL,
  CONSTRAINT pk_unwritten PRIMARY KEY (name),
  CONSTRAINT fk_unwritten_generation FOREIGN KEY(generation) REFERENCES generations (number)
);

CREATE TABLE IF NOT EXISTS uses (
  skill TEXT NOT NULL,
  last_us BIGINT NOT NULL,
  times BIGINT NOT NULL,
  CONSTRAINT pk_uses PRIMARY KEY (skill),
  CONSTRAINT ck_uses_times_are_counted CHECK (times >= 0)
);

CREATE TABLE IF NOT EXISTS verdicts (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  turn INTEGER NOT NULL,
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

CREATE TABLE IF NOT EXISTS backups (
  path TEXT NOT NULL,
  made_us BIGINT NOT NULL,
  CONSTRAINT pk_backups PRIMARY KEY (path)
);

INSERT OR IGNORE INTO generations VALUES (0, 'cae66941d9efbd404e4d88758ea67670', 'nothing learned yet', 0);
CREATE UNIQUE INDEX IF NOT EXISTS uq_memberships_live_name ON memberships (name) WHERE until IS NULL;
CREATE INDEX IF NOT EXISTS ix_turns_session_seq ON turns (session, seq);
CREATE INDEX IF NOT EXISTS ix_sessions_ended ON sessions (ended_us, id) WHERE ended_us IS NOT NULL;
CREATE INDEX IF NOT EXISTS ix_turns_placements ON turns (placements) WHERE placements IS NOT NULL;
CREATE INDEX IF NOT EXISTS ix_payloads_base ON payloads (base) WHERE base IS NOT NULL;
CREATE INDEX IF NOT EXISTS ix_payloads_splices ON payloads (splices) WHERE splices IS NOT NULL;
CREATE INDEX IF NOT EXISTS ix_translations_base ON translations (base) WHERE base IS NOT NULL;
CREATE INDEX IF NOT EXISTS ix_placements_previous ON placements (previous);
CREATE INDEX IF NOT EXISTS ix_placements_snippet ON placements (snippet);
CREATE INDEX IF NOT EXISTS ix_splices_previous ON splices (previous);
CREATE INDEX IF NOT EXISTS ix_splices_snippet ON splices (snippet);
CREATE INDEX IF NOT EXISTS ix_verdicts_turn ON verdicts (turn);
CREATE INDEX IF NOT EXISTS ix_stands_outcome ON stands (outcome);
CREATE INDEX IF NOT EXISTS ix_stands_lessons ON stands (generation, turn) WHERE outcome = 'fail' AND fault = 'agent' AND kind = 'main';
CREATE INDEX IF NOT EXISTS ix_attempts_open ON attempts (seq) WHERE ended_us IS NULL;
CREATE INDEX IF NOT EXISTS ix_roles_kind ON roles (kind);
CREATE INDEX IF NOT EXISTS ix_draws_skill_turn ON draws (skill, turn);
CREATE INDEX IF NOT EXISTS ix_candidates_made_us_id ON candidates (made_us, id);
CREATE INDEX IF NOT EXISTS ix_candidates_standing_made_us_id ON candidates (standing, made_us, id);
CREATE INDEX IF NOT EXISTS ix_candidates_name_made_us ON candidates (name, made_us);
CREATE INDEX IF NOT EXISTS ix_lessons_turn ON lessons (turn);
CREATE INDEX IF NOT EXISTS ix_batch_turns_batch ON batch_turns (batch);
CREATE INDEX IF NOT EXISTS ix_forgotten_session ON forgotten (session);
CREATE INDEX IF NOT EXISTS ix_batches_open ON batches (seq) WHERE ended_us IS NULL;
CREATE UNIQUE INDEX IF NOT EXISTS uq_policies_serving ON policies (state) WHERE state = 'serving';
CREATE UNIQUE INDEX IF NOT EXISTS uq_policies_canary ON policies (state) WHERE state = 'canary';

CREATE TRIGGER IF NOT EXISTS turns_are_final BEFORE UPDATE ON turns
BEGIN
  SELECT RAISE(ABORT, 'a row of turns is never edited');
END;

CREATE TRIGGER IF NOT EXISTS payloads_are_final BEFORE UPDATE ON payloads
BEGIN
  SELECT RAISE(ABORT, 'a row of payloads is never edited');
END;

CREATE TRIGGER IF NOT EXISTS translations_are_final BEFORE UPDATE ON translations
BEGIN
  SELECT RAISE(ABORT, 'a row of translations is never edited');
END;

CREATE TRIGGER IF NOT EXISTS tokens_are_final BEFORE UPDATE ON tokens
BEGIN
  SELECT RAISE(ABORT, 'a row of tokens is never edited');
END;

CREATE TRIGGER IF NOT EXISTS verdicts_are_final BEFORE UPDATE ON verdicts
BEGIN
  SELECT RAISE(ABORT, 'a row of verdicts is never edited');
END;

CREATE TRIGGER IF NOT EXISTS verdicts_go_with_their_turn BEFORE DELETE ON verdicts
BEGIN
  SELECT RAISE(ABORT, 'a row of verdicts is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;

CREATE TRIGGER IF NOT EXISTS roles_are_final BEFORE UPDATE ON roles
BEGIN
  SELECT RAISE(ABORT, 'a row of roles is never edited');
END;

CREATE TRIGGER IF NOT EXISTS roles_go_with_their_turn BEFORE DELETE ON roles
BEGIN
  SELECT RAISE(ABORT, 'a row of roles is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;

CREATE TRIGGER IF NOT EXISTS draws_are_final BEFORE UPDATE ON draws
BEGIN
  SELECT RAISE(ABORT, 'a row of draws is never edited');
END;

CREATE TRIGGER IF NOT EXISTS draws_go_with_their_turn BEFORE DELETE ON draws
BEGIN
  SELECT RAISE(ABORT, 'a row of draws is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;

CREATE TRIGGER IF NOT EXISTS batch_turns_are_final BEFORE UPDATE ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a row of batch_turns is never edited');
END;

CREATE TRIGGER IF NOT EXISTS batch_turns_go_with_their_turn BEFORE DELETE ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a row of batch_turns is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;

CREATE TRIGGER IF NOT EXISTS roles_are_given_once BEFORE INSERT ON roles
BEGIN
  SELECT RAISE(ABORT, 'a turn has one role for ever') WHERE EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
END;

CREATE TRIGGER IF NOT EXISTS verdicts_are_kept BEFORE INSERT ON verdicts
BEGIN
  SELECT RAISE(ABORT, 'a row of verdicts is never edited') WHERE EXISTS (SELECT 1 FROM verdicts WHERE seq = NEW.seq);
END;

-- On DELETE, because a check on INSERT would cost a tenth of recording a turn; with recursive_triggers INSERT OR REPLACE deletes.
CREATE TRIGGER IF NOT EXISTS turns_are_kept BEFORE DELETE ON turns
BEGIN
  SELECT RAISE(ABORT, 'a turn is forgotten with its body, never replaced') WHERE EXISTS (SELECT 1 FROM payloads WHERE turn = OLD.seq);
END;

CREATE TRIGGER IF NOT EXISTS batch_turns_may_train BEFORE INSERT ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a turn teaches once') WHERE EXISTS (SELECT 1 FROM batch_turns WHERE turn = NEW.turn);
  SELECT RAISE(ABORT, 'a turn that fed a skill never trains') WHERE EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn AND kind = 'support');
  SELECT RAISE(ABORT, 'a turn made with other skills than the newest generation does not train') WHERE COALESCE(NOT (SELECT generation FROM turns WHERE seq = NEW.turn) = (SELECT max(number) FROM generations), TRUE);
END;

CREATE TRIGGER IF NOT EXISTS batch_turns_are_query AFTER INSERT ON batch_turns
BEGIN
  INSERT INTO roles (turn, kind, generation) SELECT seq, 'query', generation FROM turns
    WHERE seq = NEW.turn AND NOT EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
END;

CREATE TRIGGER IF NOT EXISTS batch_turns_join_what_is_open BEFORE INSERT ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a batch that has ended takes no more turns') WHERE COALESCE((SELECT state FROM batches WHERE seq = NEW.batch) <> 'open', FALSE);
END;

CREATE TRIGGER IF NOT EXISTS batches_end_once BEFORE UPDATE ON batches
BEGIN
  SELECT RAISE(ABORT, 'a batch ends once') WHERE OLD.state <> 'open';
END;

CREATE TRIGGER IF NOT EXISTS batches_are_final BEFORE UPDATE OF seq, at_us, policy_version, generation, seed, size ON batches
BEGIN
  SELECT RAISE(ABORT, 'a row of batches is never edited, it only ends');
END;

CREATE TRIGGER IF NOT EXISTS batches_are_kept BEFORE DELETE ON batches
BEGIN
  SELECT RAISE(ABORT, 'a batch is kept for ever');
END;

CREATE TRIGGER IF NOT EXISTS policies_come_of_whole_batches BEFORE INSERT ON policies
BEGIN
  SELECT RAISE(ABORT, 'a version comes only of a batch that is done') WHERE NEW.batch IS NOT NULL AND COALESCE((SELECT state FROM batches WHERE seq = NEW.batch) <> 'done', FALSE);
END;

CREATE TRIGGER IF NOT EXISTS policies_are_final BEFORE UPDATE OF number, parent, backend, adapter, training, base, generation, batch, steps, made_us ON policies
BEGIN
  SELECT RAISE(ABORT, 'what a version is made of is never edited');
END;

CREATE TRIGGER IF NOT EXISTS policies_are_kept BEFORE DELETE ON policies
BEGIN
  SELECT RAISE(ABORT, 'a version is kept for ever');
END;
