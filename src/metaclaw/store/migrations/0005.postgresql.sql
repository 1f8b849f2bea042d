-- Revision 0005: what was learned before a revert stays out, and forgetting can take a skill's name and text out of other turns.
-- Landed: never edit it, add a new revision (see migration.py).

ALTER TABLE generations ADD COLUMN learned_in INTEGER;
ALTER TABLE generations ADD COLUMN candidate TEXT;
ALTER TABLE generations ADD COLUMN reverted_to INTEGER;
UPDATE generations SET reverted_to = CAST(substr(reason, 24) AS INTEGER) WHERE reason ~ '^reverted to generation [0-9]+$';
CREATE INDEX ix_generations_reverts ON generations (number) WHERE reverted_to IS NOT NULL;

CREATE FUNCTION generations_respect_reverts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.learned_in < (SELECT max(number) FROM generations WHERE reverted_to IS NOT NULL) THEN
    RAISE EXCEPTION 'skills were reverted after this was learned' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER generations_respect_reverts BEFORE INSERT ON generations FOR EACH ROW EXECUTE FUNCTION generations_respect_reverts();

CREATE FUNCTION memberships_respect_removals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT learned_in FROM generations WHERE number = NEW.since) < (
    SELECT max(gone.until) FROM memberships AS gone
    JOIN generations AS removal ON removal.number = gone.until AND removal.learned_in IS NULL
    WHERE gone.name = NEW.name AND gone.until < NEW.since
    AND NOT EXISTS (SELECT 1 FROM memberships AS later WHERE later.name = gone.name AND later.since = gone.until)
  ) THEN
    RAISE EXCEPTION 'the skill was taken out of force after this was learned' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER memberships_respect_removals BEFORE INSERT ON memberships FOR EACH ROW EXECUTE FUNCTION memberships_respect_removals();

DROP TRIGGER turns_are_final ON turns;
CREATE TRIGGER turns_are_final BEFORE UPDATE OF seq, id, session, kind, kind_reason, user_id, workspace_id, generation, policy_version, library_hash, agent, wire, path, stream, model, provider, provider_wire, status, outcome, error, finish, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, received_us, first_byte_s, duration_s, segment, retry_of, parent, key, head, placements ON turns FOR EACH ROW EXECUTE FUNCTION turns_are_final();

DROP TRIGGER payloads_are_final ON payloads;
CREATE TRIGGER payloads_are_final BEFORE UPDATE OF turn, base, link, prefix, suffix, middle, splices ON payloads FOR EACH ROW EXECUTE FUNCTION payloads_are_final();

DROP TRIGGER draws_are_final ON draws;
CREATE TRIGGER draws_are_final BEFORE UPDATE OF turn, place, placed, propensity ON draws FOR EACH ROW EXECUTE FUNCTION draws_are_final();
