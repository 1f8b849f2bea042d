-- Revision 0010: whether rules and skills with checks were followed, turn by turn, and in sums.
-- Landed: never edit it, add a new revision (see migration.py).

CREATE TABLE rule_counts (
  seq BIGSERIAL NOT NULL,
  rule TEXT NOT NULL,
  hash TEXT NOT NULL,
  agent TEXT NOT NULL,
  model TEXT NOT NULL,
  day TEXT NOT NULL,
  result TEXT NOT NULL,
  reminder TEXT NOT NULL,
  times BIGINT NOT NULL,
  CONSTRAINT pk_rule_counts PRIMARY KEY (seq),
  CONSTRAINT uq_rule_counts_rule_hash_agent_model_day_result_reminder UNIQUE (rule, hash, agent, model, day, result, reminder),
  CONSTRAINT ck_rule_counts_result_is_known CHECK (result IN ('followed', 'broken', 'held', 'unknown')),
  CONSTRAINT ck_rule_counts_reminder_is_known CHECK (reminder IN ('', 'placed', 'withheld')),
  CONSTRAINT ck_rule_counts_times_are_counted CHECK (times >= 0)
);

CREATE TABLE rule_results (
  turn BIGINT NOT NULL,
  count BIGINT NOT NULL,
  reason TEXT,
  CONSTRAINT pk_rule_results PRIMARY KEY (turn, count),
  CONSTRAINT fk_rule_results_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_rule_results_count FOREIGN KEY(count) REFERENCES rule_counts (seq) ON DELETE CASCADE
);
CREATE INDEX ix_rule_results_count_turn ON rule_results (count, turn);

CREATE FUNCTION rule_results_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE rule_counts SET times = times + 1 WHERE seq = NEW.count;
  RETURN NULL;
END $$;
CREATE TRIGGER rule_results_are_counted AFTER INSERT ON rule_results FOR EACH ROW EXECUTE FUNCTION rule_results_counted();

CREATE FUNCTION rule_results_uncounted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE rule_counts SET times = times - 1 WHERE seq = OLD.count;
  DELETE FROM rule_counts WHERE seq = OLD.count AND times = 0;
  RETURN NULL;
END $$;
CREATE TRIGGER rule_results_are_uncounted AFTER DELETE ON rule_results FOR EACH ROW EXECUTE FUNCTION rule_results_uncounted();
