-- Revision 0005: what was learned before a revert stays out, and forgetting can take a skill's name and text out of other turns.
-- Landed: never edit it, add a new revision (see migration.py).

ALTER TABLE generations ADD COLUMN learned_in INTEGER;
ALTER TABLE generations ADD COLUMN candidate TEXT;
ALTER TABLE generations ADD COLUMN reverted_to INTEGER;
UPDATE generations SET reverted_to = CAST(substr(reason, 24) AS INTEGER) WHERE reason GLOB 'reverted to generation [0-9]*';
CREATE INDEX ix_generations_reverts ON generations (number) WHERE reverted_to IS NOT NULL;

CREATE TRIGGER generations_respect_reverts BEFORE INSERT ON generations
BEGIN
  SELECT RAISE(ABORT, 'skills were reverted after this was learned')
  WHERE NEW.learned_in < (SELECT max(number) FROM generations WHERE reverted_to IS NOT NULL);
END;

CREATE TRIGGER memberships_respect_removals BEFORE INSERT ON memberships
BEGIN
  SELECT RAISE(ABORT, 'the skill was taken out of force after this was learned')
  WHERE (SELECT learned_in FROM generations WHERE number = NEW.since) < (
    SELECT max(gone.until) FROM memberships AS gone
    JOIN generations AS removal ON removal.number = gone.until AND removal.learned_in IS NULL
    WHERE gone.name = NEW.name AND gone.until < NEW.since
    AND NOT EXISTS (SELECT 1 FROM memberships AS later WHERE later.name = gone.name AND later.since = gone.until)
  );
END;

DROP TRIGGER turns_are_final;
CREATE TRIGGER turns_are_final BEFORE UPDATE OF seq, id, session, kind, kind_reason, user_id, workspace_id, generation, policy_version, library_hash, agent, wire, path, stream, model, provider, provider_wire, status, outcome, error, finish, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, received_us, first_byte_s, duration_s, segment, retry_of, parent, key, head, placements ON turns
BEGIN
  SELECT RAISE(ABORT, 'a row of turns is never edited');
END;

DROP TRIGGER payloads_are_final;
CREATE TRIGGER payloads_are_final BEFORE UPDATE OF turn, base, link, prefix, suffix, middle, splices ON payloads
BEGIN
  SELECT RAISE(ABORT, 'a row of payloads is never edited');
END;

DROP TRIGGER draws_are_final;
CREATE TRIGGER draws_are_final BEFORE UPDATE OF turn, place, placed, propensity ON draws
BEGIN
  SELECT RAISE(ABORT, 'a row of draws is never edited');
END;
