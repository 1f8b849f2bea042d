-- Revision 0009: turns of a run that came to nothing may train again, and prompts of earlier runs may be drawn again.
-- Landed: never edit it, add a new revision (see migration.py).

CREATE TABLE batch_turns_before AS SELECT turn, batch FROM batch_turns;
DROP TABLE batch_turns;
CREATE TABLE batch_turns (
  turn INTEGER NOT NULL,
  batch INTEGER NOT NULL,
  CONSTRAINT pk_batch_turns PRIMARY KEY (turn, batch),
  CONSTRAINT fk_batch_turns_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_batch_turns_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);
INSERT INTO batch_turns (turn, batch) SELECT turn, batch FROM batch_turns_before;
DROP TABLE batch_turns_before;
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

CREATE TABLE forgotten_batches (
  turn TEXT NOT NULL,
  batch INTEGER NOT NULL,
  CONSTRAINT pk_forgotten_batches PRIMARY KEY (turn, batch),
  CONSTRAINT fk_forgotten_batches_turn FOREIGN KEY(turn) REFERENCES forgotten (turn),
  CONSTRAINT fk_forgotten_batches_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);
CREATE INDEX ix_forgotten_batches_batch ON forgotten_batches (batch);
INSERT INTO forgotten_batches (turn, batch) SELECT turn, batch FROM forgotten WHERE batch IS NOT NULL;
ALTER TABLE forgotten DROP COLUMN batch;
