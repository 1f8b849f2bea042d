ALTER TABLE batches ADD COLUMN state TEXT DEFAULT 'open' NOT NULL CONSTRAINT ck_batches_state_is_known CHECK (state IN ('open', 'done', 'dropped'));
ALTER TABLE batches ADD COLUMN generation INTEGER DEFAULT 0 NOT NULL;
ALTER TABLE batches ADD COLUMN seed BIGINT DEFAULT 0 NOT NULL;
ALTER TABLE batches ADD COLUMN size INTEGER DEFAULT 0 NOT NULL;
ALTER TABLE batches ADD COLUMN note TEXT DEFAULT '' NOT NULL;
ALTER TABLE batches ADD COLUMN ended_us BIGINT CONSTRAINT ck_batches_what_ended_says_when CHECK ((state = 'open') = (ended_us IS NULL));
CREATE INDEX ix_batches_open ON batches (seq) WHERE ended_us IS NULL;
UPDATE batches SET state = 'dropped', ended_us = at_us, note = 'opened before versions were kept',
        size = (SELECT count(*) FROM batch_turns WHERE batch = batches.seq),
        generation = COALESCE((SELECT max(generation) FROM turns JOIN batch_turns ON turn = seq WHERE batch = batches.seq), 0);
CREATE TABLE policies (
  number INTEGER NOT NULL,
  parent INTEGER NOT NULL,
  state TEXT NOT NULL,
  backend TEXT NOT NULL,
  adapter TEXT NOT NULL,
  training TEXT,
  base TEXT NOT NULL,
  generation INTEGER NOT NULL,
  batch BIGINT,
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
CREATE UNIQUE INDEX uq_policies_serving ON policies (state) WHERE state = 'serving';
CREATE UNIQUE INDEX uq_policies_canary ON policies (state) WHERE state = 'canary';
CREATE FUNCTION batch_turns_join_what_is_open() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF COALESCE((SELECT state FROM batches WHERE seq = NEW.batch) <> 'open', FALSE) THEN RAISE EXCEPTION 'a batch that has ended takes no more turns' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER batch_turns_join_what_is_open BEFORE INSERT ON batch_turns FOR EACH ROW EXECUTE FUNCTION batch_turns_join_what_is_open();
CREATE FUNCTION batches_end_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF OLD.state <> 'open' THEN RAISE EXCEPTION 'a batch ends once' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER batches_end_once BEFORE UPDATE ON batches FOR EACH ROW EXECUTE FUNCTION batches_end_once();
CREATE FUNCTION batches_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TRUE THEN RAISE EXCEPTION 'a row of batches is never edited, it only ends' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER batches_are_final BEFORE UPDATE OF seq, at_us, policy_version, generation, seed, size ON batches FOR EACH ROW EXECUTE FUNCTION batches_are_final();
CREATE FUNCTION batches_are_kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TRUE THEN RAISE EXCEPTION 'a batch is kept for ever' USING ERRCODE = 'restrict_violation'; END IF;  RETURN OLD; END $$;
CREATE TRIGGER batches_are_kept BEFORE DELETE ON batches FOR EACH ROW EXECUTE FUNCTION batches_are_kept();
CREATE FUNCTION policies_come_of_whole_batches() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.batch IS NOT NULL AND COALESCE((SELECT state FROM batches WHERE seq = NEW.batch) <> 'done', FALSE) THEN RAISE EXCEPTION 'a version comes only of a batch that is done' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER policies_come_of_whole_batches BEFORE INSERT ON policies FOR EACH ROW EXECUTE FUNCTION policies_come_of_whole_batches();
CREATE FUNCTION policies_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TRUE THEN RAISE EXCEPTION 'what a version is made of is never edited' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER policies_are_final BEFORE UPDATE OF number, parent, backend, adapter, training, base, generation, batch, steps, made_us ON policies FOR EACH ROW EXECUTE FUNCTION policies_are_final();
CREATE FUNCTION policies_are_kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TRUE THEN RAISE EXCEPTION 'a version is kept for ever' USING ERRCODE = 'restrict_violation'; END IF;  RETURN OLD; END $$;
CREATE TRIGGER policies_are_kept BEFORE DELETE ON policies FOR EACH ROW EXECUTE FUNCTION policies_are_kept();
UPDATE alembic_version SET version_num='0003' WHERE alembic_version.version_num = '0002';
