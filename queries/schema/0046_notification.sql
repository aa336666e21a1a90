-- +goose Up

-- What the server knows of a Subscription beside the resource; written in the
-- transaction that writes the resource.
--   status     of the resource: rows that are off stay until the resource is deleted
--   owner      on whose behalf it was written, as JSON; {} without authorization
--   secret     key of the signatures, the one before it, and when it was changed
--   started    it has been active: what happens while it is not is kept
--   failing    since when it is in error
--   attempts   of the handshake so far
--   due        when the next handshake, heartbeat or end comes; null for never
CREATE TABLE notification_subscription (
    id       text        PRIMARY KEY COLLATE "C",
    status   text        NOT NULL,
    owner    jsonb       NOT NULL,
    secret          bytea,
    previous_secret bytea,
    secret_changed  timestamptz,
    started  boolean     NOT NULL DEFAULT false,
    failing  timestamptz,
    error    text        NOT NULL DEFAULT '',
    attempts integer     NOT NULL DEFAULT 0,
    due      timestamptz
);
CREATE INDEX notification_subscription_due ON notification_subscription (due) WHERE due IS NOT NULL;
CREATE INDEX notification_subscription_status ON notification_subscription (status);

-- Who notifications are queued for: a Subscription ("Subscription/<id>") or a
-- subscription of an App. One server at a time sends to a subscriber.
--   events        that matched since its start
--   paused        only what has failed before is tried
--   due           when the first of its deliveries is; null where it has none
--   leased_until  the server that has it is taken for dead from then on
CREATE TABLE notification_subscriber (
    id           text        PRIMARY KEY COLLATE "C",
    events       bigint      NOT NULL DEFAULT 0,
    paused       boolean     NOT NULL DEFAULT false,
    due          timestamptz,
    holder       text        NOT NULL DEFAULT '',
    leased_until timestamptz NOT NULL DEFAULT 'epoch',
    last_sent    timestamptz NOT NULL DEFAULT 'epoch'
);
CREATE INDEX notification_subscriber_due ON notification_subscriber (due) WHERE due IS NOT NULL;

-- The queue of notifications, and its log. The body is made when it is sent.
--   id            of the notification: made of the event and the subscriber
--   number        of the event, counted by subscriber
--   xid, rid      with version the place in the change log
--   event         C, U, D or V
--   created       when the version was made
--   queued        when the delivery came into the queue
--   status        p pending, i processing, d delivered, f failed
--   log           the attempts so far: [{at, status, durationMs, error}]
CREATE TABLE notification_delivery (
    id            uuid        PRIMARY KEY,
    subscriber    text        NOT NULL COLLATE "C",
    number        bigint      NOT NULL,
    xid           bigint      NOT NULL,
    rid           bigint      NOT NULL,
    ref           bigint      NOT NULL,
    version       integer     NOT NULL,
    event         "char"      NOT NULL,
    resource_type text        NOT NULL,
    resource_id   text        NOT NULL COLLATE "C",
    created       timestamptz NOT NULL,
    queued        timestamptz NOT NULL DEFAULT now(),
    status        "char"      NOT NULL DEFAULT 'p',
    attempts      integer     NOT NULL DEFAULT 0,
    next_attempt  timestamptz NOT NULL DEFAULT now(),
    log           jsonb       NOT NULL DEFAULT '[]'
);
-- What is to be sent: what failed before apart from what is new.
CREATE INDEX notification_delivery_due ON notification_delivery (subscriber, (attempts = 0), next_attempt, number)
    WHERE status IN ('p', 'i');
-- The log of a subscriber, and of all; also what is old enough to go.
CREATE INDEX notification_delivery_subscriber ON notification_delivery (subscriber, queued, id);
CREATE INDEX notification_delivery_queued ON notification_delivery (queued, id);
CREATE INDEX notification_delivery_failed ON notification_delivery (subscriber, queued) WHERE status = 'f';

-- Rows change several times within a moment: their pages keep room, and vacuum
-- comes by the number of changes rather than by the size of a log of weeks.
ALTER TABLE notification_subscriber SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE notification_delivery SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02);

-- Messages to users ($notify). Servers read them as they read the change log, for the
-- connections that they have; delivered is null until somebody has got one, for those
-- who are away.
CREATE TABLE notification_message (
    id        uuid        PRIMARY KEY,
    xid       xid8        NOT NULL DEFAULT pg_current_xact_id(),
    recipient text        NOT NULL COLLATE "C",
    created   timestamptz NOT NULL DEFAULT now(),
    body      text        NOT NULL,
    delivered timestamptz
);
CREATE INDEX notification_message_waiting ON notification_message (recipient, xid) WHERE delivered IS NULL;
CREATE INDEX notification_message_xid ON notification_message (xid);

-- +goose Down
DROP TABLE notification_message, notification_delivery, notification_subscriber, notification_subscription;
