-- Revision 0011: rules that held calls back, the attempts at such an answer, and what the provider really said.
-- Landed: never edit it, add a new revision (see migration.py).

CREATE TABLE held_rules (
  turn BIGINT NOT NULL,
  place SMALLINT NOT NULL,
  rule TEXT NOT NULL,
  attempts SMALLINT NOT NULL,
  outcome TEXT NOT NULL,
  reason TEXT NOT NULL,
  CONSTRAINT pk_held_rules PRIMARY KEY (turn, place),
  CONSTRAINT ck_held_rules_outcome_is_known CHECK (outcome IN ('complied', 'stopped', 'warned')),
  CONSTRAINT fk_held_rules_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);
CREATE INDEX ix_held_rules_rule ON held_rules (rule);

CREATE TABLE turn_attempts (
  turn BIGINT NOT NULL,
  parent BIGINT NOT NULL,
  place SMALLINT NOT NULL,
  CONSTRAINT pk_turn_attempts PRIMARY KEY (turn),
  CONSTRAINT fk_turn_attempts_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_turn_attempts_parent FOREIGN KEY(parent) REFERENCES turns (seq) ON DELETE CASCADE
);
CREATE INDEX ix_turn_attempts_parent ON turn_attempts (parent);

CREATE TABLE true_answers (
  turn BIGINT NOT NULL,
  wire TEXT NOT NULL,
  calls TEXT NOT NULL,
  mark TEXT NOT NULL,
  answer_id TEXT NOT NULL,
  last_id TEXT NOT NULL,
  messages BYTEA NOT NULL,
  rest BYTEA NOT NULL,
  CONSTRAINT pk_true_answers PRIMARY KEY (turn),
  CONSTRAINT fk_true_answers_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);

CREATE FUNCTION held_rules_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a row of held_rules is never edited' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER held_rules_are_final BEFORE UPDATE ON held_rules FOR EACH ROW EXECUTE FUNCTION held_rules_are_final();

CREATE FUNCTION turn_attempts_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a row of turn_attempts is never edited' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER turn_attempts_are_final BEFORE UPDATE ON turn_attempts FOR EACH ROW EXECUTE FUNCTION turn_attempts_are_final();

CREATE FUNCTION true_answers_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a row of true_answers is never edited' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER true_answers_are_final BEFORE UPDATE ON true_answers FOR EACH ROW EXECUTE FUNCTION true_answers_are_final();
