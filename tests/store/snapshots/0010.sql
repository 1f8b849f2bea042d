BEGIN TRANSACTION;
CREATE TABLE alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0010');
CREATE TABLE attempts (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  at_us BIGINT NOT NULL,
  kind TEXT NOT NULL,
  generation INTEGER NOT NULL,
  ended_us BIGINT
);
INSERT INTO "attempts" VALUES(1,1793521800000000,'exit',2,NULL);
CREATE TABLE backups (
  path TEXT NOT NULL,
  made_us BIGINT NOT NULL,
  CONSTRAINT pk_backups PRIMARY KEY (path)
);
CREATE TABLE batch_turns (
  turn INTEGER NOT NULL,
  batch INTEGER NOT NULL,
  CONSTRAINT pk_batch_turns PRIMARY KEY (turn, batch),
  CONSTRAINT fk_batch_turns_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_batch_turns_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);
INSERT INTO "batch_turns" VALUES(4,1);
CREATE TABLE batches (
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
INSERT INTO "batches" VALUES(1,1793521800000000,0,'done',2,7,1,'',1793521800000000);
CREATE TABLE candidates (
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
INSERT INTO "candidates" VALUES('c_1','ask-first','new','{"skill":{"name":"ask-first","trigger":"before it fails","body":"Ask.","category":null,"scope":null,"extra":{},"state":"canary","author":"evolver","pinned":false},"change":"new","replaces":[],"support":["t_0000"],"kind":"exit","written_by":"evolver","is_instruction":false}','accepted','proven',2,1793521800000000,'{"stage":"shadow","probes":4,"wins":3,"losses":0,"ties":1,"undecided":0,"regressions":0,"tokens":900,"model":"model","notes":["note"],"expected_loss":null,"replays":[]}');
CREATE TABLE cursors (
  name TEXT NOT NULL,
  seq BIGINT NOT NULL,
  CONSTRAINT pk_cursors PRIMARY KEY (name)
);
INSERT INTO "cursors" VALUES('sensing',16);
INSERT INTO "cursors" VALUES('compliance',16);
CREATE TABLE draws (
  turn INTEGER NOT NULL,
  place SMALLINT NOT NULL,
  skill TEXT NOT NULL,
  placed BOOLEAN NOT NULL,
  propensity DOUBLE NOT NULL,
  CONSTRAINT pk_draws PRIMARY KEY (turn, place),
  CONSTRAINT fk_draws_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);
INSERT INTO "draws" VALUES(2,0,'tell-time',1,0.75);
CREATE TABLE events (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  at_us BIGINT NOT NULL,
  kind TEXT NOT NULL,
  data TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1793521800000000,'generation','{"generation":1,"hash":"d04d26435998559b0a0ee6a8512ebee7","reason":"story","put":["tell-time"],"gone":[]}');
INSERT INTO "events" VALUES(2,1793521800000000,'generation','{"generation":2,"hash":"cae66941d9efbd404e4d88758ea67670","reason":"story goes on","put":[],"gone":["tell-time"]}');
INSERT INTO "events" VALUES(3,1793521800000000,'story.told','{"turns":16}');
INSERT INTO "events" VALUES(4,1793521800000000,'generation','{"generation":3,"hash":"624331ec7f968fc6c8f5c3ed6dbbf378","reason":"learned","put":["ask-first"],"gone":[]}');
INSERT INTO "events" VALUES(5,1793521800000000,'policy','{"action":"published","version":1,"serving":0,"canary":null,"moves":{"1":"candidate"},"reason":"first"}');
INSERT INTO "events" VALUES(6,1793521800000000,'policy','{"action":"tried","version":1,"serving":0,"canary":1,"moves":{"1":"canary"},"reason":""}');
INSERT INTO "events" VALUES(7,1793521800000000,'policy','{"action":"promoted","version":1,"serving":1,"canary":null,"moves":{"1":"serving"},"reason":"proven"}');
CREATE TABLE forgotten (
  turn TEXT NOT NULL,
  session TEXT NOT NULL,
  at_us BIGINT NOT NULL,
  CONSTRAINT pk_forgotten PRIMARY KEY (turn)
);
CREATE TABLE forgotten_batches (
  turn TEXT NOT NULL,
  batch INTEGER NOT NULL,
  CONSTRAINT pk_forgotten_batches PRIMARY KEY (turn, batch),
  CONSTRAINT fk_forgotten_batches_turn FOREIGN KEY(turn) REFERENCES forgotten (turn),
  CONSTRAINT fk_forgotten_batches_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);
CREATE TABLE generations (
  number INTEGER NOT NULL,
  hash TEXT NOT NULL,
  reason TEXT NOT NULL,
  published_us BIGINT NOT NULL, learned_in INTEGER, candidate TEXT, reverted_to INTEGER,
  CONSTRAINT pk_generations PRIMARY KEY (number),
  CONSTRAINT ck_generations_numbers_count_from_zero CHECK (number >= 0)
);
INSERT INTO "generations" VALUES(0,'cae66941d9efbd404e4d88758ea67670','nothing learned yet',0,NULL,NULL,NULL);
INSERT INTO "generations" VALUES(1,'d04d26435998559b0a0ee6a8512ebee7','story',1793521800000000,NULL,NULL,NULL);
INSERT INTO "generations" VALUES(2,'cae66941d9efbd404e4d88758ea67670','story goes on',1793521800000000,NULL,NULL,NULL);
INSERT INTO "generations" VALUES(3,'624331ec7f968fc6c8f5c3ed6dbbf378','learned',1793521800000000,NULL,NULL,NULL);
CREATE TABLE lessons (
  candidate TEXT NOT NULL,
  turn TEXT NOT NULL,
  CONSTRAINT pk_lessons PRIMARY KEY (candidate, turn),
  CONSTRAINT fk_lessons_candidate FOREIGN KEY(candidate) REFERENCES candidates (id) ON DELETE CASCADE
);
INSERT INTO "lessons" VALUES('c_1','t_0000');
CREATE TABLE memberships (
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
INSERT INTO "memberships" VALUES('tell-time',1,2,X'E97FFB08E23802A0DDA601EBEEA6109C');
INSERT INTO "memberships" VALUES('ask-first',3,NULL,X'6EC75DBA86C2FB243717C57BAD19F88A');
CREATE TABLE payloads (
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
INSERT INTO "payloads" VALUES(1,NULL,0,0,0,X'7B226D65737361676573223A5B226D65737361676520302C20616E6420776861742069742073617973225D7D',X'01A1E6D5B6E2870EA115F518AAD15134',X'73616964',NULL);
INSERT INTO "payloads" VALUES(2,NULL,0,0,0,X'7B226D65737361676573223A5B226D65737361676520302C20616E6420776861742069742073617973222C226D65737361676520312C20616E6420776861742069742073617973225D7D',X'01A1E6D5B6E2870EA115F518AAD15134',X'73616964',NULL);
INSERT INTO "payloads" VALUES(3,NULL,0,0,0,X'7B226D65737361676573223A5B226D65737361676520302C20616E6420776861742069742073617973222C226D65737361676520312C20616E6420776861742069742073617973222C226D65737361676520322C20616E6420776861742069742073617973225D7D',X'01A1E6D5B6E2870EA115F518AAD15134',X'73616964',NULL);
INSERT INTO "payloads" VALUES(4,2,1,72,2,X'2C226D65737361676520322C20616E6420776861742069742073617973222C226D65737361676520332C20616E642077686174206974207361797322',X'01A1E6D5B6E2870EA115F518AAD15134',X'73616964',NULL);
INSERT INTO "payloads" VALUES(5,4,2,132,2,X'2C226D65737361676520342C20616E642077686174206974207361797322',X'01A1E6D5B6E2870EA115F518AAD15134',X'73616964',NULL);
INSERT INTO "payloads" VALUES(6,3,1,102,2,X'2C226D65737361676520332C20616E6420776861742069742073617973222C226D65737361676520342C20616E6420776861742069742073617973222C226D65737361676520352C20616E642077686174206974207361797322',X'01A1E6D5B6E2870EA115F518AAD15134',X'73616964',NULL);
INSERT INTO "payloads" VALUES(7,5,3,162,2,X'2C226D65737361676520352C20616E6420776861742069742073617973222C226D65737361676520362C20616E642077686174206974207361797322',X'01A1E6D5B6E2870EA115F518AAD15134',X'73616964',NULL);
INSERT INTO "payloads" VALUES(8,7,4,222,2,X'2C226D65737361676520372C20616E642077686174206974207361797322',X'01A1E6D5B6E2870EA115F518AAD15134',X'73616964',NULL);
INSERT INTO "payloads" VALUES(9,NULL,0,0,0,X'7B226D65737361676573223A5B226D65737361676520302C20616E642077686174206974207361797322',NULL,X'73616964',X'7365656E');
INSERT INTO "payloads" VALUES(10,NULL,0,0,0,X'7B226D65737361676573223A5B226D65737361676520302C20616E6420776861742069742073617973222C226D65737361676520312C20616E642077686174206974207361797322',NULL,X'73616964',X'7365656E');
INSERT INTO "payloads" VALUES(11,NULL,0,0,0,X'7B226D65737361676573223A5B226D65737361676520302C20616E6420776861742069742073617973222C226D65737361676520312C20616E6420776861742069742073617973222C226D65737361676520322C20616E642077686174206974207361797322',NULL,X'73616964',X'7365656E');
INSERT INTO "payloads" VALUES(12,11,1,102,0,X'2C226D65737361676520332C20616E642077686174206974207361797322',NULL,X'73616964',X'7365656E');
INSERT INTO "payloads" VALUES(13,10,1,72,0,X'2C226D65737361676520322C20616E6420776861742069742073617973222C226D65737361676520332C20616E6420776861742069742073617973222C226D65737361676520342C20616E642077686174206974207361797322',NULL,X'73616964',X'7365656E');
INSERT INTO "payloads" VALUES(14,12,2,132,0,X'2C226D65737361676520342C20616E6420776861742069742073617973222C226D65737361676520352C20616E642077686174206974207361797322',NULL,X'73616964',X'7365656E');
INSERT INTO "payloads" VALUES(15,14,3,192,0,X'2C226D65737361676520362C20616E642077686174206974207361797322',NULL,X'73616964',X'7365656E');
INSERT INTO "payloads" VALUES(16,13,2,162,0,X'2C226D65737361676520352C20616E6420776861742069742073617973222C226D65737361676520362C20616E6420776861742069742073617973222C226D65737361676520372C20616E642077686174206974207361797322',NULL,X'73616964',X'7365656E');
CREATE TABLE placements (
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
INSERT INTO "placements" VALUES(X'01A1E6D5B6E2A9D7192F64EBD38264ED',NULL,X'','["tell-time"]',X'E16BB8955FFC79C52AD5AD00EDDC300A');
INSERT INTO "placements" VALUES(X'01A1E6D5B6E280F4040F4095EEB7C3D6',X'01A1E6D5B6E2A9D7192F64EBD38264ED',X'01','[]',X'9AF109A6DCAC6F7A184998E67C64EBCA');
CREATE TABLE policies (
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
INSERT INTO "policies" VALUES(1,0,'serving','embedded','{home}/policies/1','{home}/policies/1/training','model',2,1,4,'{"is_passed":true,"reasons":["not worse"],"held_out":{"pairs":40,"better":12,"worse":3,"mean_gain":0.2,"e_value":25.0},"golden_serving":0.9,"golden_candidate":0.95,"kl":0.01,"judge":"judge"}','proven','["ask-first"]',1793521800000000,1793521800000000,16,1793521800000000,NULL);
CREATE TABLE roles (
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
INSERT INTO "roles" VALUES(1,'support',2,1);
INSERT INTO "roles" VALUES(4,'query',2,NULL);
CREATE TABLE rule_counts (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
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
INSERT INTO "rule_counts" VALUES(1,'tell-time','0b','claude-code','model','2026-11-01','broken','placed',1);
CREATE TABLE rule_results (
  turn INTEGER NOT NULL,
  count INTEGER NOT NULL,
  reason TEXT,
  CONSTRAINT pk_rule_results PRIMARY KEY (turn, count),
  CONSTRAINT fk_rule_results_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_rule_results_count FOREIGN KEY(count) REFERENCES rule_counts (seq) ON DELETE CASCADE
);
INSERT INTO "rule_results" VALUES(1,1,'found');
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
INSERT INTO "scope_libraries" VALUES('','',3,NULL,'9046f4de0dd1e3034419598c7602b632');
CREATE TABLE session_ends (
  seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  session TEXT NOT NULL,
  CONSTRAINT fk_session_ends_session FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE
);
INSERT INTO "session_ends" VALUES(1,'s_translated');
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
INSERT INTO "sessions" VALUES('s_growing','key','claude-code','ada',NULL,NULL,1793521800000007,1793522220000007,NULL,NULL,8,6);
INSERT INTO "sessions" VALUES('s_translated','key','claude-code','ada',NULL,NULL,1793522400000007,1793522820000007,1793522820000007,'story ended',8,5);
CREATE TABLE skill_texts (
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
INSERT INTO "skill_texts" VALUES(X'E97FFB08E23802A0DDA601EBEEA6109C','tell-time','asked for the time','Look at the clock.',NULL,'','{"k":[1]}','live','person',0);
INSERT INTO "skill_texts" VALUES(X'6EC75DBA86C2FB243717C57BAD19F88A','ask-first','before it fails','Ask.',NULL,NULL,'{}','canary','evolver',0);
CREATE TABLE snippets (
  hash BLOB NOT NULL,
  body BLOB NOT NULL,
  CONSTRAINT pk_snippets PRIMARY KEY (hash),
  CONSTRAINT ck_snippets_hash_is_16_bytes CHECK (length(hash) = 16)
);
INSERT INTO "snippets" VALUES(X'E16BB8955FFC79C52AD5AD00EDDC300A',X'4C6F6F6B2061742074686520636C6F636B2E20E28FB0');
INSERT INTO "snippets" VALUES(X'9AF109A6DCAC6F7A184998E67C64EBCA',X'');
INSERT INTO "snippets" VALUES(X'68FF6DFFC9A505AE1F328E496C12F565',X'73706C69636564');
INSERT INTO "snippets" VALUES(X'FB8A3B07F6D03B157A7A1DEBC6311A69',X'7477696365');
CREATE TABLE spending (
  day TEXT NOT NULL,
  purpose TEXT NOT NULL,
  model TEXT NOT NULL,
  item TEXT NOT NULL,
  turns BIGINT NOT NULL,
  calls BIGINT NOT NULL,
  failures BIGINT NOT NULL,
  estimated BIGINT NOT NULL,
  input_tokens BIGINT NOT NULL,
  output_tokens BIGINT NOT NULL,
  cached_tokens BIGINT NOT NULL,
  unpriced_tokens BIGINT NOT NULL,
  cost DOUBLE NOT NULL,
  CONSTRAINT pk_spending PRIMARY KEY (day, purpose, model, item)
);
CREATE TABLE splices (
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
INSERT INTO "splices" VALUES(X'01A1E6D5B6E247FBC9D46AEE2A205451',NULL,1,X'68FF6DFFC9A505AE1F328E496C12F565');
INSERT INTO "splices" VALUES(X'01A1E6D5B6E2870EA115F518AAD15134',X'01A1E6D5B6E247FBC9D46AEE2A205451',9,X'FB8A3B07F6D03B157A7A1DEBC6311A69');
CREATE TABLE stands (
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
INSERT INTO "stands" VALUES(1,1,1,'main','fail','agent');
INSERT INTO "stands" VALUES(2,2,1,'main','pass',NULL);
CREATE TABLE team_members (
  member TEXT NOT NULL,
  team TEXT NOT NULL,
  CONSTRAINT pk_team_members PRIMARY KEY (member, team)
);
CREATE TABLE tokens (
  turn INTEGER NOT NULL,
  prompt_ids BLOB NOT NULL,
  sampled_ids BLOB NOT NULL,
  logprobs BLOB NOT NULL,
  CONSTRAINT pk_tokens PRIMARY KEY (turn),
  CONSTRAINT ck_tokens_each_token_has_a_logprob CHECK (length(logprobs) = 2 * length(sampled_ids)),
  CONSTRAINT ck_tokens_ids_are_int32 CHECK (length(prompt_ids) % 4 = 0 AND length(sampled_ids) % 4 = 0),
  CONSTRAINT fk_tokens_turn FOREIGN KEY(turn) REFERENCES turns (seq)
);
INSERT INTO "tokens" VALUES(2,X'01000000FFFFFF7F',X'050000000600000007000000',X'9A9999999999B9BF59F3F8C21F6EA5810000000000000080');
CREATE TABLE translations (
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
INSERT INTO "translations" VALUES(9,NULL,0,0,0,X'7472616E736C61746564207B226D65737361676573223A5B226D65737361676520302C20616E642077686174206974207361797322');
INSERT INTO "translations" VALUES(10,NULL,0,0,0,X'7472616E736C61746564207B226D65737361676573223A5B226D65737361676520302C20616E6420776861742069742073617973222C226D65737361676520312C20616E642077686174206974207361797322');
INSERT INTO "translations" VALUES(11,NULL,0,0,0,X'7472616E736C61746564207B226D65737361676573223A5B226D65737361676520302C20616E6420776861742069742073617973222C226D65737361676520312C20616E6420776861742069742073617973222C226D65737361676520322C20616E642077686174206974207361797322');
INSERT INTO "translations" VALUES(12,11,1,113,0,X'2C226D65737361676520332C20616E642077686174206974207361797322');
INSERT INTO "translations" VALUES(13,10,1,83,0,X'2C226D65737361676520322C20616E6420776861742069742073617973222C226D65737361676520332C20616E6420776861742069742073617973222C226D65737361676520342C20616E642077686174206974207361797322');
INSERT INTO "translations" VALUES(14,12,2,143,0,X'2C226D65737361676520342C20616E6420776861742069742073617973222C226D65737361676520352C20616E642077686174206974207361797322');
INSERT INTO "translations" VALUES(15,14,3,203,0,X'2C226D65737361676520362C20616E642077686174206974207361797322');
INSERT INTO "translations" VALUES(16,13,2,173,0,X'2C226D65737361676520352C20616E6420776861742069742073617973222C226D65737361676520362C20616E6420776861742069742073617973222C226D65737361676520372C20616E642077686174206974207361797322');
CREATE TABLE turns (
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
INSERT INTO "turns" VALUES(1,'t_0000','s_growing','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',100,7,50,0,0,1793521800000007,0.123,4.5,0,NULL,NULL,'key',X'00000000000000000000000000000000',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(2,'t_0001','s_growing','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',101,7,50,0,0,1793521860000007,0.123,4.5,0,NULL,NULL,'key',X'01010101010101010101010101010101',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(3,'t_0002','s_growing','side','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',102,7,50,0,0,1793521920000007,0.123,4.5,1,NULL,NULL,'key',X'02020202020202020202020202020202',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(4,'t_0003','s_growing','main','story','ada',NULL,2,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',103,7,50,0,0,1793521980000007,0.123,4.5,1,NULL,NULL,'key',X'03030303030303030303030303030303',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(5,'t_0004','s_growing','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',104,7,50,0,0,1793522040000007,0.123,4.5,2,NULL,NULL,'key',X'04040404040404040404040404040404',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(6,'t_0005','s_growing','side','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',105,7,50,0,0,1793522100000007,0.123,4.5,2,NULL,NULL,'key',X'05050505050505050505050505050505',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(7,'t_0006','s_growing','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',106,7,50,0,0,1793522160000007,0.123,4.5,3,NULL,NULL,'key',X'06060606060606060606060606060606',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(8,'t_0007','s_growing','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',107,7,50,0,0,1793522220000007,0.123,4.5,3,NULL,NULL,'key',X'07070707070707070707070707070707',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(9,'t_0010','s_translated','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',110,7,50,0,0,1793522400000007,0.123,4.5,5,NULL,NULL,'key',X'0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A0A',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(10,'t_0011','s_translated','side','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',111,7,50,0,0,1793522460000007,0.123,4.5,5,NULL,NULL,'key',X'0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B0B',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(11,'t_0012','s_translated','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',112,7,50,0,0,1793522520000007,0.123,4.5,6,NULL,NULL,'key',X'0C0C0C0C0C0C0C0C0C0C0C0C0C0C0C0C',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(12,'t_0013','s_translated','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',113,7,50,0,0,1793522580000007,0.123,4.5,6,NULL,NULL,'key',X'0D0D0D0D0D0D0D0D0D0D0D0D0D0D0D0D',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(13,'t_0014','s_translated','side','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',114,7,50,0,0,1793522640000007,0.123,4.5,7,NULL,NULL,'key',X'0E0E0E0E0E0E0E0E0E0E0E0E0E0E0E0E',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(14,'t_0015','s_translated','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',115,7,50,0,0,1793522700000007,0.123,4.5,7,NULL,NULL,'key',X'0F0F0F0F0F0F0F0F0F0F0F0F0F0F0F0F',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(15,'t_0016','s_translated','main','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',116,7,50,0,0,1793522760000007,0.123,4.5,8,NULL,NULL,'key',X'10101010101010101010101010101010',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
INSERT INTO "turns" VALUES(16,'t_0017','s_translated','side','story','ada',NULL,1,0,'0b','["tell-time"]','claude-code','messages','/v1/messages',1,'model0000with a NUL','main','messages',200,'completed',NULL,'tool_calls',117,7,50,0,0,1793522820000007,0.123,4.5,8,NULL,NULL,'key',X'11111111111111111111111111111111',X'01A1E6D5B6E280F4040F4095EEB7C3D6');
CREATE TABLE unwritten (
  name TEXT NOT NULL,
  generation INTEGER NOT NULL,
  CONSTRAINT pk_unwritten PRIMARY KEY (name),
  CONSTRAINT fk_unwritten_generation FOREIGN KEY(generation) REFERENCES generations (number)
);
INSERT INTO "unwritten" VALUES('ask-first',3);
CREATE TABLE uses (
  skill TEXT NOT NULL,
  last_us BIGINT NOT NULL,
  times BIGINT NOT NULL,
  CONSTRAINT pk_uses PRIMARY KEY (skill),
  CONSTRAINT ck_uses_times_are_counted CHECK (times >= 0)
);
INSERT INTO "uses" VALUES('ask-first',1793521800000000,0);
CREATE TABLE verdicts (
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
INSERT INTO "verdicts" VALUES(1,1,1793521800000000,'fail','detector',0.9,'[{"detector":"exit","evidence":2.5,"quote":"exit code 1","fault":"agent"}]',NULL,'agent','');
INSERT INTO "verdicts" VALUES(2,2,1793521800000000,'pass','judge',0.1,'[]','{"passed":3,"failed":0,"unknown":0,"model":"judge","reasons":[]}',NULL,'');
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
CREATE INDEX ix_draws_skill_turn ON draws (skill, turn);
CREATE INDEX ix_candidates_made_us_id ON candidates (made_us, id);
CREATE INDEX ix_candidates_standing_made_us_id ON candidates (standing, made_us, id);
CREATE INDEX ix_candidates_name_made_us ON candidates (name, made_us);
CREATE INDEX ix_lessons_turn ON lessons (turn);
CREATE INDEX ix_forgotten_session ON forgotten (session);
CREATE INDEX ix_batches_open ON batches (seq) WHERE ended_us IS NULL;
CREATE UNIQUE INDEX uq_policies_serving ON policies (state) WHERE state = 'serving';
CREATE UNIQUE INDEX uq_policies_canary ON policies (state) WHERE state = 'canary';
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
CREATE TRIGGER draws_go_with_their_turn BEFORE DELETE ON draws
BEGIN
  SELECT RAISE(ABORT, 'a row of draws is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;
CREATE TRIGGER roles_are_given_once BEFORE INSERT ON roles
BEGIN
  SELECT RAISE(ABORT, 'a turn has one role for ever') WHERE EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
END;
CREATE TRIGGER verdicts_are_kept BEFORE INSERT ON verdicts
BEGIN
  SELECT RAISE(ABORT, 'a row of verdicts is never edited') WHERE EXISTS (SELECT 1 FROM verdicts WHERE seq = NEW.seq);
END;
CREATE TRIGGER turns_are_kept BEFORE DELETE ON turns
BEGIN
  SELECT RAISE(ABORT, 'a turn is forgotten with its body, never replaced') WHERE EXISTS (SELECT 1 FROM payloads WHERE turn = OLD.seq);
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
CREATE INDEX ix_generations_reverts ON generations (number) WHERE reverted_to IS NOT NULL;
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
CREATE TRIGGER turns_are_final BEFORE UPDATE OF seq, id, session, kind, kind_reason, user_id, workspace_id, generation, policy_version, library_hash, agent, wire, path, stream, model, provider, provider_wire, status, outcome, error, finish, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, received_us, first_byte_s, duration_s, segment, retry_of, parent, key, head, placements ON turns
BEGIN
  SELECT RAISE(ABORT, 'a row of turns is never edited');
END;
CREATE TRIGGER payloads_are_final BEFORE UPDATE OF turn, base, link, prefix, suffix, middle, splices ON payloads
BEGIN
  SELECT RAISE(ABORT, 'a row of payloads is never edited');
END;
CREATE TRIGGER draws_are_final BEFORE UPDATE OF turn, place, placed, propensity ON draws
BEGIN
  SELECT RAISE(ABORT, 'a row of draws is never edited');
END;
CREATE INDEX ix_session_ends_session ON session_ends (session);
CREATE INDEX ix_spending_item ON spending (item) WHERE item != '';
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
CREATE INDEX ix_batch_turns_batch ON batch_turns (batch);
CREATE TRIGGER batch_turns_are_final BEFORE UPDATE ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a row of batch_turns is never edited');
END;
CREATE TRIGGER batch_turns_go_with_their_turn BEFORE DELETE ON batch_turns
BEGIN
  SELECT RAISE(ABORT, 'a row of batch_turns is forgotten only with its turn') WHERE EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn);
END;
CREATE TRIGGER batch_turns_may_train BEFORE INSERT ON batch_turns
BEGIN
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
CREATE INDEX ix_forgotten_batches_batch ON forgotten_batches (batch);
CREATE INDEX ix_rule_results_count_turn ON rule_results (count, turn);
CREATE TRIGGER rule_results_are_counted AFTER INSERT ON rule_results
BEGIN
  UPDATE rule_counts SET times = times + 1 WHERE seq = NEW.count;
END;
CREATE TRIGGER rule_results_are_uncounted AFTER DELETE ON rule_results
BEGIN
  UPDATE rule_counts SET times = times - 1 WHERE seq = OLD.count;
  DELETE FROM rule_counts WHERE seq = OLD.count AND times = 0;
END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('session_ends',1);
INSERT INTO "sqlite_sequence" VALUES('events',7);
INSERT INTO "sqlite_sequence" VALUES('turns',16);
INSERT INTO "sqlite_sequence" VALUES('verdicts',2);
INSERT INTO "sqlite_sequence" VALUES('attempts',1);
INSERT INTO "sqlite_sequence" VALUES('batches',1);
INSERT INTO "sqlite_sequence" VALUES('rule_counts',1);
COMMIT;
