-- +goose Up

-- Servers compare the counters of settings, policies, Apps, search parameters and definitions with those that they
-- know, and read again what has changed. A promoted standby that lacks the last changes would give their numbers to
-- other changes, and a server that knows the lost ones would read nothing. Each new epoch therefore raises every counter
-- to the number of the epoch, which no other line of the history has.
-- Otherwise this is note_epoch of 0181.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_epoch(forced text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    here record;
    last record;
    new_epoch bigint;
    why text;
    at timestamptz;
BEGIN
    SELECT * INTO STRICT here FROM database_identity();
    FOR attempt IN 1..2 LOOP
        SELECT * INTO STRICT last FROM epoch e ORDER BY e.epoch DESC LIMIT 1;
        IF forced = '' AND (last.system_identifier, last.database_oid, last.timeline) = (here.system_identifier, here.database_oid, here.timeline) THEN
            RETURN last.epoch;
        END IF;
        IF attempt = 1 THEN
            LOCK TABLE change IN SHARE ROW EXCLUSIVE MODE;
        END IF;
    END LOOP;
    -- A copy of a database that nobody has used yet begins its own history.
    IF forced = '' AND last.cause = 'created' AND last.system_identifier <> 0
        AND NOT EXISTS (SELECT FROM change) AND NOT EXISTS (SELECT FROM resource_type) THEN
        UPDATE epoch e
        SET system_identifier = here.system_identifier, database_oid = here.database_oid, timeline = here.timeline
        WHERE e.epoch = last.epoch;
        RETURN last.epoch;
    END IF;
    why := CASE
        WHEN forced <> '' THEN forced
        WHEN (last.system_identifier, last.database_oid) = (here.system_identifier, here.database_oid) THEN 'promotion'
        ELSE 'copy'
    END;
    at := clock_timestamp();
    new_epoch := (((last.epoch >> 32) + 1) << 32)
        | (hashtext(concat_ws(' ', at, here.system_identifier, here.database_oid, here.timeline, pg_current_xact_id()))::bigint & 4294967295);
    INSERT INTO epoch (epoch, cause, since, system_identifier, database_oid, timeline)
    VALUES (new_epoch, why, at, here.system_identifier, here.database_oid, here.timeline);
    UPDATE search_registry g
    SET epoch = new_epoch, version = greatest(g.version + 1, new_epoch), progress = greatest(g.progress + 1, new_epoch),
        definitions = greatest(g.definitions + 1, new_epoch);
    UPDATE server_signal s SET version = greatest(s.version + 1, new_epoch), detail = '';
    UPDATE policy_version v SET version = greatest(v.version + 1, new_epoch);
    UPDATE app_registry a SET version = greatest(a.version + 1, new_epoch);
    RETURN new_epoch;
END $$;
-- +goose StatementEnd

-- +goose Down
-- The function of 0181 would do as well: counters that are too high do no harm.
