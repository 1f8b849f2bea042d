CREATE TABLE alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE events (
  seq BIGSERIAL NOT NULL,
  at_us BIGINT NOT NULL,
  kind TEXT NOT NULL,
  data TEXT NOT NULL,
  CONSTRAINT pk_events PRIMARY KEY (seq)
);
CREATE TABLE generations (
  number INTEGER NOT NULL,
  hash TEXT NOT NULL,
  reason TEXT NOT NULL,
  published_us BIGINT NOT NULL,
  CONSTRAINT pk_generations PRIMARY KEY (number),
  CONSTRAINT ck_generations_numbers_count_from_zero CHECK (number >= 0)
);
CREATE TABLE sessions (
  id TEXT NOT NULL,
  key TEXT,
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
  hash BYTEA NOT NULL,
  name TEXT NOT NULL,
  trigger TEXT NOT NULL,
  body TEXT NOT NULL,
  category TEXT,
  scope TEXT,
  extra TEXT NOT NULL,
  CONSTRAINT pk_skill_texts PRIMARY KEY (hash),
  CONSTRAINT ck_skill_texts_hash_is_16_bytes CHECK (length(hash) = 16)
);
CREATE TABLE snippets (
  hash BYTEA NOT NULL,
  body BYTEA NOT NULL,
  CONSTRAINT pk_snippets PRIMARY KEY (hash),
  CONSTRAINT ck_snippets_hash_is_16_bytes CHECK (length(hash) = 16)
);
CREATE TABLE memberships (
  name TEXT NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER,
  skill BYTEA NOT NULL,
  CONSTRAINT pk_memberships PRIMARY KEY (name, since),
  CONSTRAINT ck_memberships_time_runs_forward CHECK (until IS NULL OR until > since),
  CONSTRAINT fk_memberships_since FOREIGN KEY(since) REFERENCES generations (number),
  CONSTRAINT fk_memberships_skill FOREIGN KEY(skill) REFERENCES skill_texts (hash),
  CONSTRAINT fk_memberships_until FOREIGN KEY(until) REFERENCES generations (number)
);
CREATE UNIQUE INDEX uq_memberships_live_name ON memberships (name) WHERE until IS NULL;
CREATE TABLE placements (
  hash BYTEA NOT NULL,
  previous BYTEA,
  anchor BYTEA NOT NULL,
  skills TEXT NOT NULL,
  snippet BYTEA NOT NULL,
  CONSTRAINT pk_placements PRIMARY KEY (hash),
  CONSTRAINT ck_placements_hash_is_16_bytes CHECK (length(hash) = 16),
  CONSTRAINT fk_placements_previous FOREIGN KEY(previous) REFERENCES placements (hash),
  CONSTRAINT fk_placements_snippet FOREIGN KEY(snippet) REFERENCES snippets (hash)
);
CREATE TABLE splices (
  hash BYTEA NOT NULL,
  previous BYTEA,
  at_byte BIGINT NOT NULL,
  snippet BYTEA NOT NULL,
  CONSTRAINT pk_splices PRIMARY KEY (hash),
  CONSTRAINT ck_splices_at_byte_is_inside CHECK (at_byte >= 0),
  CONSTRAINT ck_splices_hash_is_16_bytes CHECK (length(hash) = 16),
  CONSTRAINT fk_splices_previous FOREIGN KEY(previous) REFERENCES splices (hash),
  CONSTRAINT fk_splices_snippet FOREIGN KEY(snippet) REFERENCES snippets (hash)
);
CREATE TABLE turns (
  seq BIGSERIAL NOT NULL,
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
  first_byte_s DOUBLE PRECISION,
  duration_s DOUBLE PRECISION NOT NULL,
  segment INTEGER NOT NULL,
  retry_of TEXT,
  parent TEXT,
  key TEXT,
  head BYTEA NOT NULL,
  placements BYTEA,
  CONSTRAINT pk_turns PRIMARY KEY (seq),
  CONSTRAINT ck_turns_kind_is_known CHECK (kind IN ('main', 'side')),
  CONSTRAINT ck_turns_outcome_is_known CHECK (outcome IN ('completed', 'failed', 'cancelled')),
  CONSTRAINT ck_turns_usage_is_whole_or_absent CHECK ((input_tokens IS NULL) = (output_tokens IS NULL) AND (input_tokens IS NULL) = (cached_tokens IS NULL) AND (input_tokens IS NULL) = (cache_write_tokens IS NULL) AND (input_tokens IS NULL) = (reasoning_tokens IS NULL)),
  CONSTRAINT ck_turns_clocks_count_from_zero CHECK (generation >= 0 AND policy_version >= 0 AND segment >= 0),
  CONSTRAINT fk_turns_placements FOREIGN KEY(placements) REFERENCES placements (hash),
  CONSTRAINT fk_turns_session FOREIGN KEY(session) REFERENCES sessions (id),
  CONSTRAINT uq_turns_id UNIQUE (id)
);
CREATE INDEX ix_turns_session_seq ON turns (session, seq);
CREATE TABLE payloads (
  turn BIGINT NOT NULL,
  base BIGINT,
  link SMALLINT NOT NULL,
  prefix BIGINT NOT NULL,
  suffix BIGINT NOT NULL,
  middle BYTEA NOT NULL,
  splices BYTEA,
  said BYTEA NOT NULL,
  seen BYTEA,
  CONSTRAINT pk_payloads PRIMARY KEY (turn),
  CONSTRAINT ck_payloads_a_patch_has_an_earlier_base CHECK ((base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)),
  CONSTRAINT ck_payloads_rebuilding_is_bounded CHECK (link >= 0 AND link < 32),
  CONSTRAINT ck_payloads_a_whole_body_borrows_nothing CHECK (prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)),
  CONSTRAINT fk_payloads_base FOREIGN KEY(base) REFERENCES payloads (turn),
  CONSTRAINT fk_payloads_splices FOREIGN KEY(splices) REFERENCES splices (hash),
  CONSTRAINT fk_payloads_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);
CREATE TABLE tokens (
  turn BIGINT NOT NULL,
  prompt_ids BYTEA NOT NULL,
  sampled_ids BYTEA NOT NULL,
  logprobs BYTEA NOT NULL,
  CONSTRAINT pk_tokens PRIMARY KEY (turn),
  CONSTRAINT ck_tokens_each_token_has_a_logprob CHECK (length(logprobs) = 2 * length(sampled_ids)),
  CONSTRAINT ck_tokens_ids_are_int32 CHECK (length(prompt_ids) % 4 = 0 AND length(sampled_ids) % 4 = 0),
  CONSTRAINT fk_tokens_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);
CREATE TABLE translations (
  turn BIGINT NOT NULL,
  base BIGINT,
  link SMALLINT NOT NULL,
  prefix BIGINT NOT NULL,
  suffix BIGINT NOT NULL,
  middle BYTEA NOT NULL,
  CONSTRAINT pk_translations PRIMARY KEY (turn),
  CONSTRAINT ck_translations_a_patch_has_an_earlier_base CHECK ((base IS NULL) = (link = 0) AND (base IS NULL OR base < turn)),
  CONSTRAINT ck_translations_rebuilding_is_bounded CHECK (link >= 0 AND link < 32),
  CONSTRAINT ck_translations_a_whole_body_borrows_nothing CHECK (prefix >= 0 AND suffix >= 0 AND (base IS NOT NULL OR prefix + suffix = 0)),
  CONSTRAINT fk_translations_base FOREIGN KEY(base) REFERENCES translations (turn),
  CONSTRAINT fk_translations_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);
INSERT INTO generations (number, hash, reason, published_us) VALUES (0, 'cae66941d9efbd404e4d88758ea67670', 'nothing learned yet', 0);
CREATE FUNCTION turns_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a row of turns is never edited' USING ERRCODE = 'restrict_violation'; END $$;
CREATE TRIGGER turns_are_final BEFORE UPDATE ON turns FOR EACH ROW EXECUTE FUNCTION turns_are_final();
CREATE FUNCTION payloads_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a row of payloads is never edited' USING ERRCODE = 'restrict_violation'; END $$;
CREATE TRIGGER payloads_are_final BEFORE UPDATE ON payloads FOR EACH ROW EXECUTE FUNCTION payloads_are_final();
CREATE FUNCTION translations_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a row of translations is never edited' USING ERRCODE = 'restrict_violation'; END $$;
CREATE TRIGGER translations_are_final BEFORE UPDATE ON translations FOR EACH ROW EXECUTE FUNCTION translations_are_final();
CREATE FUNCTION tokens_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a row of tokens is never edited' USING ERRCODE = 'restrict_violation'; END $$;
CREATE TRIGGER tokens_are_final BEFORE UPDATE ON tokens FOR EACH ROW EXECUTE FUNCTION tokens_are_final();
INSERT INTO alembic_version (version_num) VALUES ('0001') RETURNING alembic_version.version_num;
