-- +goose Up

-- Views that are kept as tables of the schema view: view.<name>.
--   view     id of the ViewDefinition
--   base     FHIR base of the server, for getReferenceKey(); '' for none
--   indexes  lists of columns, JSON
CREATE TABLE view_table (
    name    text        PRIMARY KEY COLLATE "C",
    view    text        NOT NULL COLLATE "C",
    base    text        NOT NULL,
    indexes jsonb       NOT NULL,
    created timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX view_table_view ON view_table (view);

-- Each version of a view that is or becomes a table. A table of state building or built is view._build_<id>, one
-- that is shown is view.<name>.
--   version     of the ViewDefinition
--   definition  its JSON
--   state       building: a job fills the table; built: it follows and waits for the swap; shown; failed: has no table
--   job         the job that builds it
--   epoch, seen the table shows the transactions that this snapshot sees, and no other one
--   rows        of the table
--   problems    resources without rows, because of an error
--   filled      the transaction that ended the build: older snapshots see an empty table
CREATE TABLE view_generation (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL COLLATE "C" REFERENCES view_table ON DELETE CASCADE,
    version    integer     NOT NULL,
    definition text        NOT NULL,
    state      text        NOT NULL DEFAULT 'building',
    job        text        NOT NULL DEFAULT '',
    reason     text        NOT NULL DEFAULT '',
    epoch      bigint      NOT NULL DEFAULT current_epoch(),
    seen       pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    rows       bigint      NOT NULL DEFAULT 0,
    problems   bigint      NOT NULL DEFAULT 0,
    filled     xid8,
    created    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX view_generation_name ON view_generation (name, id);
-- Updated with every batch of changes: the page keeps room for its next versions.
ALTER TABLE view_generation SET (fillfactor = 10);

-- Resources that would fail a run of the view.
CREATE TABLE view_problem (
    generation  bigint NOT NULL REFERENCES view_generation ON DELETE CASCADE,
    id          text   NOT NULL COLLATE "C",
    column_name text   NOT NULL,
    reason      text   NOT NULL,
    PRIMARY KEY (generation, id)
);

CREATE SCHEMA IF NOT EXISTS view;
REVOKE ALL ON SCHEMA view FROM PUBLIC;

-- The freshness of the tables, for their readers. Every transaction that committed before current_to is in the table:
-- the changes that the table does not show were all written, and so committed, at current_to or later.
CREATE VIEW view._table AS
SELECT t.name,
    CASE
        WHEN s.id IS NULL THEN CASE WHEN n.state = 'failed' THEN 'failed' ELSE 'building' END
        WHEN n.id IS NULL THEN 'current'
        WHEN n.state = 'failed' THEN 'failed'
        ELSE 'rebuilding'
    END AS state,
    CASE WHEN s.id IS NOT NULL THEN least(now(),
        (SELECT min(c.written) FROM change c WHERE c.epoch = s.epoch AND c.xid >= pg_snapshot_xmin(s.seen) AND NOT pg_visible_in_snapshot(c.xid, s.seen)),
        (SELECT min(c.written) FROM change c WHERE c.epoch > s.epoch)) END AS current_to,
    coalesce(s.rows, n.rows, 0) AS rows
FROM view_table t
LEFT JOIN view_generation s ON s.name = t.name AND s.state = 'shown'
LEFT JOIN LATERAL (
    SELECT g.id, g.state, g.rows
    FROM view_generation g
    WHERE g.name = t.name AND g.state <> 'shown'
    ORDER BY g.id DESC
    LIMIT 1
) n ON true;
