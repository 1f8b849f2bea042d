-- Revision 0007: what calls to models cost, in sums by local day, purpose, model and learned item.
-- Landed: never edit it, add a new revision (see migration.py).

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
CREATE INDEX ix_spending_item ON spending (item) WHERE item != '';

-- Turns of agents are counted from here on; in a new database from the first.
INSERT INTO cursors (name, seq) SELECT 'spending of turns', max(seq) FROM turns HAVING max(seq) IS NOT NULL;
