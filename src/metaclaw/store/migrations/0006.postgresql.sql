-- Revision 0006: session ends are numbered in the order they were recorded, so that a reader need not go by the wall clock.
-- Landed: never edit it, add a new revision (see migration.py).

CREATE TABLE session_ends (
  seq BIGSERIAL NOT NULL,
  session TEXT NOT NULL,
  CONSTRAINT pk_session_ends PRIMARY KEY (seq),
  CONSTRAINT fk_session_ends_session FOREIGN KEY(session) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE INDEX ix_session_ends_session ON session_ends (session);

-- Some of these may never have been judged: whoever judges begins anew and passes over turns that have a verdict.
INSERT INTO session_ends (session) SELECT id FROM sessions WHERE ended_us IS NOT NULL ORDER BY ended_us, id;
DELETE FROM cursors WHERE name = 'sensing ends';
DROP INDEX ix_sessions_ended;
