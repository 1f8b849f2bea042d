-- Revision 0008: a turn may train while the rules and skills of its speaker are those it was made with, whatever changes for others.
-- Landed: never edit it, add a new revision (see migration.py).

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
CREATE TABLE team_members (
  member TEXT NOT NULL,
  team TEXT NOT NULL,
  CONSTRAINT pk_team_members PRIMARY KEY (member, team)
);

-- What earlier generations held for whom is not known here: turns from before the newest one stay too old to train.
INSERT INTO scope_libraries (scope, workspace, since, hash)
  SELECT '', '', number, 'before revision 0008' FROM generations WHERE number > 0 AND number = (SELECT max(number) FROM generations);

-- A row counts that was in force then and is not now, or is now and was not then, unless the other one has the same hash.
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

-- The locks are explained in revision 0004.
CREATE OR REPLACE FUNCTION batch_turns_may_train() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE has_role boolean;
BEGIN
  PERFORM 1 FROM generations WHERE number = 0 FOR SHARE;
  has_role := EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
  IF EXISTS (SELECT 1 FROM batch_turns WHERE turn = NEW.turn) THEN
    RAISE EXCEPTION 'a turn teaches once' USING ERRCODE = 'restrict_violation';
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
