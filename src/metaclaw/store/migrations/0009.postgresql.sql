-- Revision 0009: turns of a run that came to nothing may train again, and prompts of earlier runs may be drawn again.
-- Landed: never edit it, add a new revision (see migration.py).

ALTER TABLE batch_turns DROP CONSTRAINT pk_batch_turns;
ALTER TABLE batch_turns ADD CONSTRAINT pk_batch_turns PRIMARY KEY (turn, batch);

-- The locks are explained in revision 0004. The turn's row is locked, so that of two batches that want it one waits for the other.
CREATE OR REPLACE FUNCTION batch_turns_may_train() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE has_role boolean;
BEGIN
  PERFORM 1 FROM generations WHERE number = 0 FOR SHARE;
  PERFORM 1 FROM turns WHERE seq = NEW.turn FOR UPDATE;
  has_role := EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
  IF EXISTS (SELECT 1 FROM batch_turns JOIN batches ON seq = batch WHERE turn = NEW.turn AND state = 'open') THEN
    RAISE EXCEPTION 'a turn is in one open batch at a time' USING ERRCODE = 'restrict_violation';
  END IF;
  IF EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn AND kind = 'support') THEN
    RAISE EXCEPTION 'a turn that fed a skill never trains' USING ERRCODE = 'restrict_violation';
  END IF;
  IF NOT EXISTS (SELECT 1 FROM current_turns WHERE turn = NEW.turn) THEN
    RAISE EXCEPTION 'a turn made with other skills or rules than its speaker has now does not train' USING ERRCODE = 'restrict_violation';
  END IF;
  IF NOT has_role THEN
    INSERT INTO roles (turn, kind, generation) SELECT seq, 'query', generation FROM turns WHERE seq = NEW.turn;
  END IF;
  RETURN NEW;
END $$;

CREATE TABLE forgotten_batches (
  turn TEXT NOT NULL,
  batch BIGINT NOT NULL,
  CONSTRAINT pk_forgotten_batches PRIMARY KEY (turn, batch),
  CONSTRAINT fk_forgotten_batches_turn FOREIGN KEY(turn) REFERENCES forgotten (turn),
  CONSTRAINT fk_forgotten_batches_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);
CREATE INDEX ix_forgotten_batches_batch ON forgotten_batches (batch);
INSERT INTO forgotten_batches (turn, batch) SELECT turn, batch FROM forgotten WHERE batch IS NOT NULL;
ALTER TABLE forgotten DROP COLUMN batch;
