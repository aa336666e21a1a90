-- +goose Up

-- The server's own data on a Subscription; written in the transaction that writes the resource.
--   status     of the resource: rows that are off stay until the resource is deleted
--   owner      on whose behalf it was written, as JSON; {} without authorization
--   secret     key of the signatures, the one before it, and when it was changed
--   owned_from the version from which on its present owner wrote it: channel.header of older versions is not the
--              present owner's to read
--   started    it has been active: events are kept while it is in error
--   started_at when it became active; it keeps that instant while it is in error. Earlier events are not delivered
--              to it, so it misses the events of the time that it was off.
--   failing    since when it is in error
--   attempts   of the handshake so far
--   due        when the next handshake, heartbeat or end comes; null for never
CREATE TABLE notification_subscription (
    id       text        PRIMARY KEY COLLATE "C",
    status   text        NOT NULL,
    owner    jsonb       NOT NULL,
    owned_from integer   NOT NULL DEFAULT 0,
    secret          bytea,
    previous_secret bytea,
    secret_changed  timestamptz,
    started  boolean     NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT 'epoch',
    failing  timestamptz,
    error    text        NOT NULL DEFAULT '',
    attempts integer     NOT NULL DEFAULT 0,
    due      timestamptz
);
CREATE INDEX notification_subscription_due ON notification_subscription (due) WHERE due IS NOT NULL;
CREATE INDEX notification_subscription_status ON notification_subscription (status);
-- Handshakes do not stand in line behind heartbeats.
CREATE INDEX notification_subscription_requested ON notification_subscription (due) WHERE status = 'requested';

-- Subscribers that notifications are queued for: a Subscription ("Subscription/<id>") or a subscription of an App. One
-- server at a time sends to a subscriber.
--   events        that matched since its start
--   paused        only deliveries that have failed before are tried
--   due           when the first of its deliveries is; null where it has none
--   leased_until  the server that has it is taken for dead from then on
--   answers       how fast the last request was answered: unknown (no request yet), prompt or late (or never). Requests
--                 to late and to unknown subscribers leave places for those that answer promptly.
CREATE TABLE notification_subscriber (
    id           text        PRIMARY KEY COLLATE "C",
    events       bigint      NOT NULL DEFAULT 0,
    paused       boolean     NOT NULL DEFAULT false,
    due          timestamptz,
    holder       text        NOT NULL DEFAULT '',
    leased_until timestamptz NOT NULL DEFAULT 'epoch',
    last_sent    timestamptz NOT NULL DEFAULT 'epoch',
    answers      text        NOT NULL DEFAULT 'unknown' CHECK (answers IN ('unknown', 'prompt', 'late'))
);
CREATE INDEX notification_subscriber_due ON notification_subscriber (answers, due) WHERE due IS NOT NULL;

-- The queue of notifications, and its log. The body is made when it is sent.
--   id            of the notification: made of the event and the subscriber
--   number        of the event, counted by subscriber
--   epoch, xid, rid  with version the position in the change log
--   event         C, U, D or V
--   created       when the version was made
--   queued        when the delivery came into the queue
--   status        p pending, i processing, d delivered, f failed
--   not_before    the earliest time of the next attempt that the endpoint asked for (Retry-After). When a
--                 Subscription is active again, waiting deliveries go out in order at once except these.
--   trace         that the write was part of (change.traces)
--   log           the attempts so far: [{at, status, durationMs, error}]
CREATE TABLE notification_delivery (
    id            uuid        PRIMARY KEY,
    subscriber    text        NOT NULL COLLATE "C",
    number        bigint      NOT NULL,
    epoch         bigint      NOT NULL DEFAULT 4294967296,
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
    not_before    timestamptz,
    trace         text        NOT NULL DEFAULT '',
    log           jsonb       NOT NULL DEFAULT '[]'
);
-- Deliveries of a subscriber go out in the order of its events. A delivery that failed before, or that an
-- administrator sends again, is found apart from those behind it.
CREATE INDEX notification_delivery_order ON notification_delivery (subscriber, number) WHERE status IN ('p', 'i');
CREATE INDEX notification_delivery_tried ON notification_delivery (subscriber, number) WHERE status IN ('p', 'i') AND attempts <> 0;
-- The log of a subscriber, and of all; also the deliveries that are old enough to be deleted.
CREATE INDEX notification_delivery_subscriber ON notification_delivery (subscriber, queued, id);
CREATE INDEX notification_delivery_queued ON notification_delivery (queued, id);
CREATE INDEX notification_delivery_failed ON notification_delivery (subscriber, queued) WHERE status = 'f';

-- Rows change several times within a moment: their pages keep room, and vacuum
-- comes by the number of changes rather than by the size of a log of weeks.
ALTER TABLE notification_subscriber SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE notification_delivery SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02);

-- Messages to users ($notify). Servers read them as they read the change log, for the connections that they have;
-- delivered is null until a connection of the user has got one: users who are away get it later.
CREATE TABLE notification_message (
    id        uuid        PRIMARY KEY,
    epoch     bigint      NOT NULL DEFAULT current_epoch(),
    xid       xid8        NOT NULL DEFAULT pg_current_xact_id(),
    recipient text        NOT NULL COLLATE "C",
    created   timestamptz NOT NULL DEFAULT now(),
    body      text        NOT NULL,
    delivered timestamptz
);
CREATE INDEX notification_message_waiting ON notification_message (recipient, xid) WHERE delivered IS NULL;
CREATE INDEX notification_message_epoch ON notification_message (epoch, xid);

-- When the next heartbeats may be sent, by any server: together they keep to one rate. The row is locked by the
-- server that takes some.
CREATE TABLE notification_pace (
    id      integer     PRIMARY KEY CHECK (id = 1),
    free_at timestamptz NOT NULL
);
INSERT INTO notification_pace (id, free_at) VALUES (1, 'epoch');

-- Tokens of $get-ws-binding-token: a WebSocket that sends one is told of some Subscriptions.
--   token          SHA-256 of the token
--   subscriptions  ids of the Subscriptions
--   owner          who asked for the token (notify.Owner)
CREATE TABLE notification_binding (
    token         bytea       PRIMARY KEY,
    subscriptions text[]      NOT NULL,
    owner         jsonb       NOT NULL,
    expires       timestamptz NOT NULL
);
CREATE INDEX notification_binding_expires ON notification_binding (expires);

-- Events of a Subscription by their numbers: $events, and messages over a WebSocket.
CREATE INDEX notification_delivery_number ON notification_delivery (subscriber, number);
