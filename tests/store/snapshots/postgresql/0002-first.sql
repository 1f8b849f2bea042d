ALTER TABLE skill_texts ADD COLUMN state TEXT DEFAULT 'live' NOT NULL;
ALTER TABLE skill_texts ADD COLUMN author TEXT DEFAULT 'person' NOT NULL;
ALTER TABLE skill_texts ADD COLUMN pinned BOOLEAN DEFAULT false NOT NULL;
CREATE INDEX ix_sessions_ended ON sessions (ended_us, id) WHERE ended_us IS NOT NULL;
CREATE INDEX ix_turns_placements ON turns (placements) WHERE placements IS NOT NULL;
CREATE INDEX ix_payloads_base ON payloads (base) WHERE base IS NOT NULL;
CREATE INDEX ix_payloads_splices ON payloads (splices) WHERE splices IS NOT NULL;
CREATE INDEX ix_translations_base ON translations (base) WHERE base IS NOT NULL;
CREATE INDEX ix_placements_previous ON placements (previous);
CREATE INDEX ix_placements_snippet ON placements (snippet);
CREATE INDEX ix_splices_previous ON splices (previous);
CREATE INDEX ix_splices_snippet ON splices (snippet);
CREATE TABLE verdicts (
  seq BIGSERIAL NOT NULL,
  turn BIGINT NOT NULL,
  at_us BIGINT NOT NULL,
  outcome TEXT NOT NULL,
  source TEXT NOT NULL,
  p_fail DOUBLE PRECISION,
  signals TEXT NOT NULL,
  votes TEXT,
  fault TEXT,
  comment TEXT NOT NULL,
  CONSTRAINT pk_verdicts PRIMARY KEY (seq),
  CONSTRAINT ck_verdicts_outcome_is_known CHECK (outcome IN ('pass', 'fail', 'unknown')),
  CONSTRAINT ck_verdicts_p_fail_is_a_probability CHECK (p_fail >= 0 AND p_fail <= 1),
  CONSTRAINT ck_verdicts_a_failure_has_somebody_at_fault CHECK ((outcome = 'fail') = (fault IS NOT NULL)),
  CONSTRAINT fk_verdicts_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);
CREATE INDEX ix_verdicts_turn ON verdicts (turn);
CREATE TABLE stands (
  turn BIGINT NOT NULL,
  verdict BIGINT NOT NULL,
  generation INTEGER NOT NULL,
  kind TEXT NOT NULL,
  outcome TEXT NOT NULL,
  fault TEXT,
  CONSTRAINT pk_stands PRIMARY KEY (turn),
  CONSTRAINT fk_stands_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_stands_verdict FOREIGN KEY(verdict) REFERENCES verdicts (seq) ON DELETE CASCADE,
  CONSTRAINT uq_stands_verdict UNIQUE (verdict)
);
CREATE INDEX ix_stands_outcome ON stands (outcome);
CREATE INDEX ix_stands_lessons ON stands (generation, turn) WHERE outcome = 'fail' AND fault = 'agent' AND kind = 'main';
CREATE TABLE attempts (
  seq BIGSERIAL NOT NULL,
  at_us BIGINT NOT NULL,
  kind TEXT NOT NULL,
  generation INTEGER NOT NULL,
  CONSTRAINT pk_attempts PRIMARY KEY (seq)
);
CREATE TABLE roles (
  turn BIGINT NOT NULL,
  kind TEXT NOT NULL,
  generation INTEGER NOT NULL,
  attempt BIGINT,
  CONSTRAINT pk_roles PRIMARY KEY (turn),
  CONSTRAINT ck_roles_kind_is_known CHECK (kind IN ('support', 'query')),
  CONSTRAINT ck_roles_generations_count_from_zero CHECK (generation >= 0),
  CONSTRAINT ck_roles_a_query_turn_fed_no_attempt CHECK (attempt IS NULL OR kind = 'support'),
  CONSTRAINT fk_roles_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_roles_attempt FOREIGN KEY(attempt) REFERENCES attempts (seq)
);
CREATE INDEX ix_roles_kind ON roles (kind);
CREATE TABLE draws (
  turn BIGINT NOT NULL,
  place SMALLINT NOT NULL,
  skill TEXT NOT NULL,
  placed BOOLEAN NOT NULL,
  propensity DOUBLE PRECISION NOT NULL,
  CONSTRAINT pk_draws PRIMARY KEY (turn, place),
  CONSTRAINT fk_draws_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE
);
CREATE INDEX ix_draws_skill_turn ON draws (skill, turn);
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
CREATE INDEX ix_candidates_made_us_id ON candidates (made_us, id);
CREATE INDEX ix_candidates_standing_made_us_id ON candidates (standing, made_us, id);
CREATE TABLE lessons (
  candidate TEXT NOT NULL,
  turn TEXT NOT NULL,
  CONSTRAINT pk_lessons PRIMARY KEY (candidate, turn),
  CONSTRAINT fk_lessons_candidate FOREIGN KEY(candidate) REFERENCES candidates (id) ON DELETE CASCADE
);
CREATE INDEX ix_lessons_turn ON lessons (turn);
CREATE TABLE unwritten (
  name TEXT NOT NULL,
  generation INTEGER NOT NULL,
  CONSTRAINT pk_unwritten PRIMARY KEY (name),
  CONSTRAINT fk_unwritten_generation FOREIGN KEY(generation) REFERENCES generations (number)
);
CREATE TABLE batches (
  seq BIGSERIAL NOT NULL,
  at_us BIGINT NOT NULL,
  policy_version INTEGER NOT NULL,
  CONSTRAINT pk_batches PRIMARY KEY (seq),
  CONSTRAINT ck_batches_versions_count_from_zero CHECK (policy_version >= 0)
);
CREATE TABLE batch_turns (
  turn BIGINT NOT NULL,
  batch BIGINT NOT NULL,
  CONSTRAINT pk_batch_turns PRIMARY KEY (turn),
  CONSTRAINT fk_batch_turns_turn FOREIGN KEY(turn) REFERENCES turns (seq) ON DELETE CASCADE,
  CONSTRAINT fk_batch_turns_batch FOREIGN KEY(batch) REFERENCES batches (seq)
);
CREATE INDEX ix_batch_turns_batch ON batch_turns (batch);
CREATE TABLE cursors (
  name TEXT NOT NULL,
  seq BIGINT NOT NULL,
  CONSTRAINT pk_cursors PRIMARY KEY (name)
);
CREATE TABLE forgotten (
  turn TEXT NOT NULL,
  session TEXT NOT NULL,
  batch BIGINT,
  at_us BIGINT NOT NULL,
  CONSTRAINT pk_forgotten PRIMARY KEY (turn)
);
CREATE INDEX ix_forgotten_session ON forgotten (session);
CREATE FUNCTION verdicts_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TRUE THEN RAISE EXCEPTION 'a row of verdicts is never edited' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER verdicts_are_final BEFORE UPDATE ON verdicts FOR EACH ROW EXECUTE FUNCTION verdicts_are_final();
CREATE FUNCTION verdicts_go_with_their_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn) THEN RAISE EXCEPTION 'a row of verdicts is forgotten only with its turn' USING ERRCODE = 'restrict_violation'; END IF;  RETURN OLD; END $$;
CREATE TRIGGER verdicts_go_with_their_turn BEFORE DELETE ON verdicts FOR EACH ROW EXECUTE FUNCTION verdicts_go_with_their_turn();
CREATE FUNCTION roles_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TRUE THEN RAISE EXCEPTION 'a row of roles is never edited' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER roles_are_final BEFORE UPDATE ON roles FOR EACH ROW EXECUTE FUNCTION roles_are_final();
CREATE FUNCTION roles_go_with_their_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn) THEN RAISE EXCEPTION 'a row of roles is forgotten only with its turn' USING ERRCODE = 'restrict_violation'; END IF;  RETURN OLD; END $$;
CREATE TRIGGER roles_go_with_their_turn BEFORE DELETE ON roles FOR EACH ROW EXECUTE FUNCTION roles_go_with_their_turn();
CREATE FUNCTION draws_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TRUE THEN RAISE EXCEPTION 'a row of draws is never edited' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER draws_are_final BEFORE UPDATE ON draws FOR EACH ROW EXECUTE FUNCTION draws_are_final();
CREATE FUNCTION draws_go_with_their_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn) THEN RAISE EXCEPTION 'a row of draws is forgotten only with its turn' USING ERRCODE = 'restrict_violation'; END IF;  RETURN OLD; END $$;
CREATE TRIGGER draws_go_with_their_turn BEFORE DELETE ON draws FOR EACH ROW EXECUTE FUNCTION draws_go_with_their_turn();
CREATE FUNCTION batch_turns_are_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF TRUE THEN RAISE EXCEPTION 'a row of batch_turns is never edited' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER batch_turns_are_final BEFORE UPDATE ON batch_turns FOR EACH ROW EXECUTE FUNCTION batch_turns_are_final();
CREATE FUNCTION batch_turns_go_with_their_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT 1 FROM turns WHERE seq = OLD.turn) THEN RAISE EXCEPTION 'a row of batch_turns is forgotten only with its turn' USING ERRCODE = 'restrict_violation'; END IF;  RETURN OLD; END $$;
CREATE TRIGGER batch_turns_go_with_their_turn BEFORE DELETE ON batch_turns FOR EACH ROW EXECUTE FUNCTION batch_turns_go_with_their_turn();
CREATE FUNCTION roles_are_given_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn) THEN RAISE EXCEPTION 'a turn has one role for ever' USING ERRCODE = 'restrict_violation'; END IF;  RETURN NEW; END $$;
CREATE TRIGGER roles_are_given_once BEFORE INSERT ON roles FOR EACH ROW EXECUTE FUNCTION roles_are_given_once();
CREATE FUNCTION batch_turns_may_train() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE has_role boolean;
        BEGIN
            PERFORM 1 FROM generations WHERE number = 0 FOR SHARE;
            has_role := EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn);
            IF EXISTS (SELECT 1 FROM batch_turns WHERE turn = NEW.turn) THEN RAISE EXCEPTION 'a turn teaches once' USING ERRCODE = 'restrict_violation'; END IF; IF EXISTS (SELECT 1 FROM roles WHERE turn = NEW.turn AND kind = 'support') THEN RAISE EXCEPTION 'a turn that fed a skill never trains' USING ERRCODE = 'restrict_violation'; END IF; IF COALESCE(NOT (SELECT generation FROM turns WHERE seq = NEW.turn) = (SELECT max(number) FROM generations), TRUE) THEN RAISE EXCEPTION 'a turn made with other skills than the newest generation does not train' USING ERRCODE = 'restrict_violation'; END IF;
            IF NOT has_role THEN
                INSERT INTO roles (turn, kind, generation) SELECT seq, 'query', generation FROM turns WHERE seq = NEW.turn;
            END IF;
            RETURN NEW;
        END $$;
CREATE TRIGGER batch_turns_may_train BEFORE INSERT ON batch_turns FOR EACH ROW EXECUTE FUNCTION batch_turns_may_train();
UPDATE alembic_version SET version_num='0002' WHERE alembic_version.version_num = '0001';
