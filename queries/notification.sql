-- The queue of notifications. Times are those of PostgreSQL's clock.

-- AddSubscribers makes rows for those that have none, and locks all in one order.
-- name: AddSubscribers :exec
INSERT INTO notification_subscriber (id)
SELECT u.id
FROM (SELECT unnest(@ids::text[]) AS id ORDER BY 1) u
ON CONFLICT DO NOTHING;

-- CountEvents adds events to subscribers, which are locked, and returns how many each has
-- had before.
-- name: CountEvents :many
UPDATE notification_subscriber s
SET events = s.events + u.events,
    due = CASE WHEN u.queued AND NOT s.paused THEN least(s.due, now()) ELSE s.due END
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@events::bigint[]) AS events, unnest(@queued::boolean[]) AS queued) u
WHERE s.id = u.id
RETURNING s.id, (s.events - u.events)::bigint AS before;

-- AddDeliveries stores deliveries that are pending, and those to WebSockets as delivered: the queue has
-- nothing to send there.
-- name: AddDeliveries :exec
INSERT INTO notification_delivery (status, id, subscriber, number, epoch, xid, rid, ref, version, event, resource_type, resource_id, created, trace)
SELECT unnest(@statuses::text[])::"char", unnest(@ids::uuid[]), unnest(@subscribers::text[]), unnest(@numbers::bigint[]), unnest(@epochs::bigint[]), unnest(@xids::bigint[]), unnest(@rids::bigint[]),
    unnest(@refs::bigint[]), unnest(@versions::integer[]), unnest(@events::text[])::"char", unnest(@resource_types::text[]),
    unnest(@resource_ids::text[]), unnest(@createds::timestamptz[]), unnest(@traces::text[])
ON CONFLICT DO NOTHING;

-- ClaimSubscribers gives a server subscribers that have something due and that no living server
-- has. Without webhooks these are the subscribers that are no Subscriptions. Subscribers that did
-- not answer promptly get at most @unproven places, those that answered late at most @late.
-- name: ClaimSubscribers :many
WITH prompt AS MATERIALIZED (
    SELECT s.id, s.due
    FROM notification_subscriber s
    WHERE s.answers = 'prompt' AND s.due <= now() AND s.leased_until < now() AND (@webhooks::boolean OR s.id NOT LIKE 'Subscription/%')
    ORDER BY s.due
    LIMIT sqlc.arg(count)::bigint
    FOR UPDATE SKIP LOCKED
),
unknown AS MATERIALIZED (
    SELECT s.id, s.due
    FROM notification_subscriber s
    WHERE s.answers = 'unknown' AND s.due <= now() AND s.leased_until < now() AND (@webhooks::boolean OR s.id NOT LIKE 'Subscription/%')
    ORDER BY s.due
    LIMIT sqlc.arg(unproven)::bigint
    FOR UPDATE SKIP LOCKED
),
late AS MATERIALIZED (
    SELECT s.id, s.due
    FROM notification_subscriber s
    WHERE s.answers = 'late' AND s.due <= now() AND s.leased_until < now() AND (@webhooks::boolean OR s.id NOT LIKE 'Subscription/%')
    ORDER BY s.due
    LIMIT least(sqlc.arg(late)::bigint, sqlc.arg(unproven)::bigint - (SELECT count(*) FROM unknown))
    FOR UPDATE SKIP LOCKED
),
chosen AS (
    SELECT c.id
    FROM (SELECT id, due FROM prompt UNION ALL SELECT id, due FROM unknown UNION ALL SELECT id, due FROM late) c
    ORDER BY c.due
    LIMIT sqlc.arg(count)::bigint
)
UPDATE notification_subscriber s
SET holder = @holder, leased_until = now() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond'
FROM chosen d
WHERE s.id = d.id
RETURNING s.id, s.answers;

-- ClaimDeliveries takes due deliveries of the subscribers of a server, a limited number of each:
-- deliveries that an administrator sends again, and the oldest others up to the first that is not
-- due. Behind one that failed before it takes nothing. While a subscriber is paused it takes only
-- deliveries that were tried before.
-- name: ClaimDeliveries :many
UPDATE notification_delivery d
SET status = 'i'
FROM (
    SELECT c.id
    FROM notification_subscriber s
    CROSS JOIN LATERAL (
        (
            SELECT r.id
            FROM notification_delivery r
            WHERE r.subscriber = s.id AND r.status IN ('p', 'i') AND r.attempts <> 0 AND r.attempts < 0
            ORDER BY r.number
            LIMIT @count
        )
        UNION ALL
        SELECT q.id
        FROM (
            SELECT o.id, bool_and(o.next_attempt <= now()) OVER (ORDER BY o.number) AS due,
                o.number = first_value(o.number) OVER (ORDER BY o.number) OR first_value(o.attempts) OVER (ORDER BY o.number) = 0 AS allowed
            FROM (
                (
                    SELECT f.id, f.number, f.attempts, f.next_attempt
                    FROM notification_delivery f
                    WHERE f.subscriber = s.id AND f.status IN ('p', 'i') AND f.attempts >= 0 AND NOT s.paused
                    ORDER BY f.number
                    LIMIT @count
                )
                UNION ALL
                (
                    SELECT t.id, t.number, t.attempts, t.next_attempt
                    FROM notification_delivery t
                    WHERE t.subscriber = s.id AND t.status IN ('p', 'i') AND t.attempts <> 0 AND t.attempts > 0 AND s.paused
                    ORDER BY t.number
                    LIMIT @count
                )
            ) o
        ) q
        WHERE q.due AND q.allowed
    ) c
    WHERE s.id = ANY (@subscribers::text[]) AND s.holder = @holder
) c
WHERE d.id = c.id
RETURNING d.id, d.subscriber, d.number, d.rid, d.ref, d.version, d.event, d.resource_type, d.resource_id, d.created, d.queued, d.attempts,
    d.next_attempt, d.trace;

-- FinishDeliveries writes the results of attempts. A delivery that was not tried, and has a
-- retry_ms above 0, waits for that long.
-- name: FinishDeliveries :exec
UPDATE notification_delivery d
SET status = u.status::"char", attempts = CASE WHEN u.tried > 0 THEN greatest(d.attempts, 0) + u.tried ELSE d.attempts END, log = d.log || u.log::jsonb,
    next_attempt = CASE WHEN u.tried > 0 OR u.retry_ms > 0 THEN now() + u.retry_ms * interval '1 millisecond' ELSE d.next_attempt END,
    not_before = CASE WHEN u.asked_ms > 0 THEN now() + u.asked_ms * interval '1 millisecond' ELSE d.not_before END
FROM (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@statuses::text[]) AS status, unnest(@tried::integer[]) AS tried,
        unnest(@retry_ms::bigint[]) AS retry_ms, unnest(@asked_ms::bigint[]) AS asked_ms, unnest(@logs::text[]) AS log
) u
WHERE d.id = u.id;

-- LockSubscribers comes before ReleaseSubscribers, as a statement of its own: only then does
-- the other one see the deliveries of whoever held the lock.
-- name: LockSubscribers :exec
SELECT s.id
FROM notification_subscriber s
WHERE s.id = ANY (@ids::text[])
ORDER BY s.id
FOR UPDATE;

-- ReleaseSubscribers gives subscribers back, due again when their next delivery is. sent tells that
-- something arrived. answers is how the last request was answered, '' where there was none.
-- name: ReleaseSubscribers :exec
UPDATE notification_subscriber s
SET holder = '', leased_until = 'epoch', last_sent = CASE WHEN u.sent THEN now() ELSE s.last_sent END,
    answers = CASE WHEN u.answers <> '' THEN u.answers ELSE s.answers END,
    due = least(
        (SELECT r.next_attempt FROM notification_delivery r
         WHERE r.subscriber = s.id AND r.status IN ('p', 'i') AND r.attempts <> 0 AND (r.attempts < 0 OR s.paused)
         ORDER BY r.attempts >= 0, r.number LIMIT 1),
        (SELECT f.next_attempt FROM notification_delivery f
         WHERE f.subscriber = s.id AND f.status IN ('p', 'i') AND f.attempts >= 0 AND NOT s.paused
         ORDER BY f.number LIMIT 1)
    )
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@sents::boolean[]) AS sent, unnest(@answers::text[]) AS answers) u
WHERE s.id = u.id AND s.holder = @holder;

-- PauseSubscriber holds new deliveries back, or lets them go: then those that wait for a
-- retry take their place among them again, unless the endpoint put them off. What is locked
-- is about to be finished: its server waits for the subscriber's row that is locked here.
-- name: PauseSubscriber :exec
WITH changed AS (
    UPDATE notification_subscriber s
    SET paused = @paused, due = CASE WHEN @paused::boolean THEN s.due ELSE now() END
    WHERE s.id = @id AND s.paused <> @paused::boolean
    RETURNING s.id
),
waiting AS (
    SELECT r.id
    FROM notification_delivery r
    JOIN changed c ON c.id = r.subscriber
    WHERE NOT @paused::boolean AND r.status IN ('p', 'i') AND r.attempts <> 0
        AND coalesce(r.not_before, '-infinity') <= now()
    FOR UPDATE OF r SKIP LOCKED
)
UPDATE notification_delivery d
SET next_attempt = d.queued
FROM waiting w
WHERE d.id = w.id;

-- name: DropPending :exec
DELETE FROM notification_delivery d
WHERE d.subscriber = @subscriber AND d.status IN ('p', 'i');

-- StopSubscriber is of one that is off; what it had counted stays to be seen.
-- name: StopSubscriber :exec
UPDATE notification_subscriber s
SET due = NULL, paused = false
WHERE s.id = @id;

-- RestartSubscriber counts anew for a Subscription that is to start.
-- name: RestartSubscriber :exec
UPDATE notification_subscriber s
SET events = 0
WHERE s.id = 'Subscription/' || @subscription::text AND s.events <> 0
    AND EXISTS (SELECT FROM notification_subscription n WHERE n.id = @subscription::text AND NOT n.started);

-- name: DeleteSubscriber :exec
DELETE FROM notification_subscriber s
WHERE s.id = @id;

-- NextDue is how long nothing is due, in milliseconds, of subscribers that answer in some ways;
-- none where nothing ever is.
-- name: NextDue :many
SELECT (extract(epoch FROM greatest(s.due, s.leased_until) - now()) * 1000)::bigint AS wait_ms
FROM unnest(@answers::text[]) AS a
CROSS JOIN LATERAL (
    SELECT o.due, o.leased_until
    FROM notification_subscriber o
    WHERE o.answers = a AND o.due IS NOT NULL AND (@webhooks::boolean OR o.id NOT LIKE 'Subscription/%')
    ORDER BY greatest(o.due, o.leased_until)
    LIMIT 1
) s
ORDER BY 1
LIMIT 1;

-- name: Deliveries :many
SELECT d.id, d.subscriber, d.event, d.resource_type, d.resource_id, d.version, d.status, d.attempts, d.log, d.next_attempt, d.queued
FROM notification_delivery d
WHERE (@subscriber::text = '' OR d.subscriber = @subscriber::text)
    AND (@status::text = '' OR d.status::text = @status::text)
    AND d.queued >= @since::timestamptz
    AND (d.queued, d.id) < (@before::timestamptz, @before_id::uuid)
ORDER BY d.queued DESC, d.id DESC
LIMIT @count;

-- name: Delivery :one
SELECT d.id, d.subscriber, d.event, d.resource_type, d.resource_id, d.version, d.status, d.attempts, d.log, d.next_attempt, d.queued
FROM notification_delivery d
WHERE d.id = @id;

-- Redeliver puts a delivery back into the queue with its attempts forgotten: below zero, as
-- it is tried while its subscriber is paused too. One whose subscriber is gone stays.
-- name: Redeliver :many
UPDATE notification_delivery d
SET status = 'p', attempts = -1, next_attempt = now()
WHERE d.id = @id AND d.status IN ('d', 'f', 'p')
    AND EXISTS (SELECT FROM notification_subscriber s WHERE s.id = d.subscriber)
RETURNING d.subscriber;

-- name: RedeliverFailed :execrows
UPDATE notification_delivery d
SET status = 'p', attempts = -1, next_attempt = now()
WHERE d.status = 'f' AND d.subscriber = @subscriber
    AND EXISTS (SELECT FROM notification_subscriber s WHERE s.id = d.subscriber);

-- name: FailedSubscribers :many
SELECT DISTINCT d.subscriber
FROM notification_delivery d
WHERE d.status = 'f';

-- name: MakeDue :exec
UPDATE notification_subscriber s
SET due = least(s.due, now())
WHERE s.id = @id;

-- QueueDepth tells by status how many deliveries there are and how old the oldest
-- that waits is, in seconds.
-- name: QueueDepth :many
SELECT d.status, count(*) AS depth, extract(epoch FROM now() - min(d.queued))::float8 AS age
FROM notification_delivery d
WHERE d.status IN ('p', 'i')
GROUP BY d.status;

-- SubscriptionStatuses counts the Subscriptions by status.
-- name: SubscriptionStatuses :many
SELECT s.status, count(*) AS number
FROM notification_subscription s
GROUP BY s.status;

-- name: CountFailed :one
SELECT count(*)
FROM notification_delivery d
WHERE d.status = 'f';

-- name: TrimDeliveries :execrows
DELETE FROM notification_delivery d
WHERE d.id = ANY (ARRAY(
    SELECT o.id
    FROM notification_delivery o
    WHERE o.queued < @before AND o.status IN ('d', 'f')
    ORDER BY o.queued
    LIMIT @count
));

-- name: TrimMessages :execrows
DELETE FROM notification_message m
WHERE m.created < @before;

-- What is known of Subscriptions.

-- name: PutSubscription :exec
INSERT INTO notification_subscription (id, status, owner, owned_from, started, started_at, failing, error, attempts, due)
VALUES (@id, @status, @owner, @version, @started, now(), sqlc.narg(failing), @error, 0, sqlc.narg(due))
ON CONFLICT (id) DO UPDATE
SET status = excluded.status,
    owner = CASE WHEN @keep_owner::boolean THEN notification_subscription.owner ELSE excluded.owner END,
    owned_from = CASE WHEN @keep_owner::boolean
            OR notification_subscription.owner ->> 'subject' IS NOT DISTINCT FROM excluded.owner ->> 'subject'
                AND notification_subscription.owner ->> 'client' IS NOT DISTINCT FROM excluded.owner ->> 'client'
        THEN notification_subscription.owned_from ELSE excluded.owned_from END,
    started = CASE WHEN excluded.status = 'off' THEN false ELSE notification_subscription.started OR excluded.started END,
    started_at = CASE WHEN notification_subscription.started THEN notification_subscription.started_at ELSE now() END,
    failing = CASE WHEN excluded.status = 'error' THEN coalesce(notification_subscription.failing, excluded.failing)
                   WHEN excluded.status = 'requested' THEN notification_subscription.failing END,
    error = excluded.error,
    attempts = CASE WHEN excluded.status = 'requested' THEN 0 ELSE notification_subscription.attempts END,
    due = excluded.due;

-- name: Subscription :one
SELECT s.id, s.status, s.owner, s.secret, s.previous_secret, s.secret_changed, s.started, s.started_at, s.failing, s.error, s.attempts, s.due,
    coalesce(n.events, 0)::bigint AS events
FROM notification_subscription s
LEFT JOIN notification_subscriber n ON n.id = 'Subscription/' || s.id
WHERE s.id = @id;

-- name: Subscriptions :many
SELECT s.id, s.status, s.owner, s.secret, s.previous_secret, s.secret_changed, s.started, s.started_at, s.failing, s.error
FROM notification_subscription s
WHERE s.id > @after AND s.status <> 'off'
ORDER BY s.id
LIMIT @count;

-- name: SubscriptionOwners :many
SELECT s.id, s.owner, s.owned_from
FROM notification_subscription s
WHERE s.id = ANY (@ids::text[]);

-- name: DistinctOwners :many
SELECT DISTINCT s.owner
FROM notification_subscription s
WHERE s.status <> 'off';

-- name: SubscriptionsOf :many
SELECT s.id
FROM notification_subscription s
WHERE s.status <> 'off' AND s.owner = @owner
LIMIT @count;

-- name: CountSubscriptions :one
SELECT count(*)
FROM notification_subscription s
WHERE s.status IN ('active', 'requested', 'error') AND s.id <> @but;

-- name: DeleteSubscription :exec
DELETE FROM notification_subscription s
WHERE s.id = @id;

-- name: SetSecret :execrows
UPDATE notification_subscription s
SET previous_secret = s.secret, secret = @secret, secret_changed = now()
WHERE s.id = @id;

-- TakeRequestedSubscriptions returns subscriptions that need a handshake, and puts them off
-- so that no other server takes them at the same time.
-- name: TakeRequestedSubscriptions :many
UPDATE notification_subscription s
SET due = now() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond'
FROM (
    SELECT o.id
    FROM notification_subscription o
    WHERE o.due <= now() AND o.status = 'requested'
    ORDER BY o.due
    LIMIT @count
    FOR UPDATE SKIP LOCKED
) t
WHERE s.id = t.id
RETURNING s.id, s.owner, s.secret, s.previous_secret, s.secret_changed, s.failing, s.attempts,
    coalesce((SELECT n.last_sent FROM notification_subscriber n WHERE n.id = 'Subscription/' || s.id), 'epoch')::timestamptz AS last_sent,
    coalesce((SELECT n.events FROM notification_subscriber n WHERE n.id = 'Subscription/' || s.id), 0)::bigint AS events;

-- TakeDueSubscriptions is TakeRequestedSubscriptions for heartbeats and ends. All servers
-- together take each_ms milliseconds for each: while the row of the pace is locked, or its
-- time has not come, there are none.
-- name: TakeDueSubscriptions :many
WITH pace AS MATERIALIZED (
    SELECT p.id
    FROM notification_pace p
    WHERE p.free_at <= now()
    FOR UPDATE SKIP LOCKED
),
taken AS MATERIALIZED (
    SELECT o.id
    FROM notification_subscription o
    WHERE o.due <= now() AND o.status <> 'requested' AND EXISTS (SELECT FROM pace)
    ORDER BY o.due
    LIMIT @count
    FOR UPDATE SKIP LOCKED
),
paced AS (
    UPDATE notification_pace p
    SET free_at = now() + (SELECT count(*) FROM taken) * sqlc.arg(each_ms)::bigint * interval '1 millisecond'
    WHERE p.id IN (SELECT pace.id FROM pace) AND EXISTS (SELECT FROM taken)
)
UPDATE notification_subscription s
SET due = now() + sqlc.arg(lease_ms)::bigint * interval '1 millisecond'
FROM taken t
WHERE s.id = t.id
RETURNING s.id, s.owner, s.secret, s.previous_secret, s.secret_changed, s.failing, s.attempts,
    coalesce((SELECT n.last_sent FROM notification_subscriber n WHERE n.id = 'Subscription/' || s.id), 'epoch')::timestamptz AS last_sent,
    coalesce((SELECT n.events FROM notification_subscriber n WHERE n.id = 'Subscription/' || s.id), 0)::bigint AS events;

-- name: SetSubscriptionDue :exec
UPDATE notification_subscription s
SET due = now() + sqlc.arg(wait_ms)::bigint * interval '1 millisecond', attempts = s.attempts + sqlc.arg(tried)::integer
WHERE s.id = @id;

-- NextSubscriptionDue is how long no subscription needs attention, in milliseconds; none
-- where none ever does.
-- name: NextSubscriptionDue :many
SELECT (extract(epoch FROM n.at - now()) * 1000)::bigint AS wait_ms
FROM (
    (SELECT r.due AS at FROM notification_subscription r WHERE r.due IS NOT NULL AND r.status = 'requested' ORDER BY r.due LIMIT 1)
    UNION ALL
    (SELECT greatest(o.due, p.free_at) FROM notification_subscription o, notification_pace p
     WHERE o.due IS NOT NULL AND o.status <> 'requested' ORDER BY o.due LIMIT 1)
) n
ORDER BY n.at
LIMIT 1;

-- WakeSubscriptions makes those due that wait for their endpoint, when webhooks are on again.
-- name: WakeSubscriptions :exec
UPDATE notification_subscription s
SET due = now()
WHERE s.status IN ('requested', 'error') AND s.due > now();

-- HastenHeartbeats spreads those that are further off than a heartbeat is now.
-- name: HastenHeartbeats :exec
UPDATE notification_subscription s
SET due = now() + random() * sqlc.arg(every_ms)::bigint * interval '1 millisecond'
WHERE s.status = 'active' AND s.due > now() + sqlc.arg(every_ms)::bigint * interval '1 millisecond';

-- Messages to users.

-- name: AddMessages :exec
INSERT INTO notification_message (id, recipient, body)
SELECT unnest(@ids::uuid[]), unnest(@recipients::text[]), unnest(@bodies::text[]);

-- NewMessages are those that came behind a transaction, of transactions that are no
-- longer running.
-- name: NewMessages :many
SELECT m.epoch, m.xid::text::bigint AS xid, m.id, m.recipient, m.body
FROM notification_message m
WHERE (m.epoch, m.xid) >= (@from_epoch::bigint, sqlc.arg(from_xid)::text::xid8) AND (m.epoch, m.xid) < (@to_epoch::bigint, sqlc.arg(to_xid)::text::xid8)
    AND m.recipient = ANY (@recipients::text[])
ORDER BY m.epoch, m.xid, m.id;

-- WaitingMessages are those of a recipient that nobody has got, up to a transaction.
-- name: WaitingMessages :many
SELECT m.id, m.body
FROM notification_message m
WHERE m.recipient = @recipient AND m.delivered IS NULL AND (m.epoch, m.xid) < (@to_epoch::bigint, sqlc.arg(to_xid)::text::xid8)
ORDER BY m.epoch, m.xid, m.id
LIMIT 1000;

-- name: MessagesDelivered :exec
UPDATE notification_message m
SET delivered = now()
WHERE m.id = ANY (@ids::uuid[]) AND m.delivered IS NULL;

-- HearingSubscriptions returns the Subscriptions that are told of events now, and since when. Their
-- subscribers are locked.
-- name: HearingSubscriptions :many
SELECT s.id, s.started_at
FROM notification_subscription s
WHERE s.id = ANY (@ids::text[]) AND (s.status = 'active' OR s.started AND s.status <> 'off');

-- EventsOfSubscription returns the events of a Subscription since it started, by number.
-- name: EventsOfSubscription :many
SELECT d.id, d.subscriber, d.number, d.rid, d.ref, d.version, d.event, d.resource_type, d.resource_id, d.created, d.queued, d.attempts,
    d.next_attempt, d.trace
FROM notification_subscription s
JOIN notification_delivery d ON d.subscriber = 'Subscription/' || s.id AND d.queued >= s.started_at
WHERE s.id = @subscription AND d.number BETWEEN sqlc.arg(first)::bigint AND sqlc.arg(last)::bigint
ORDER BY d.number
LIMIT @count;

-- Tokens that bind a WebSocket to Subscriptions.

-- name: AddBinding :exec
INSERT INTO notification_binding (token, subscriptions, owner, expires)
VALUES (@token, @subscriptions::text[], @owner, @expires);

-- name: Binding :one
SELECT b.subscriptions, b.owner
FROM notification_binding b
WHERE b.token = @token AND b.expires > now();

-- name: TrimBindings :exec
DELETE FROM notification_binding b
WHERE b.expires < now();

-- UnknownSubscriptions returns ids of Subscriptions that were stored by a release that did not carry
-- them out.
-- name: UnknownSubscriptions :many
SELECT r.id
FROM resource r
JOIN resource_type t ON t.typ = r.typ
WHERE t.name = 'Subscription' AND NOT EXISTS (SELECT FROM notification_subscription s WHERE s.id = r.id)
LIMIT @count;

-- EndedSubscriptions returns ids of Subscriptions that are off for a reason.
-- name: EndedSubscriptions :many
SELECT s.id
FROM notification_subscription s
WHERE s.status = 'off' AND s.error = @reason
ORDER BY s.id
LIMIT @count;

-- EventCounts returns how many events Subscriptions have had, and their states.
-- name: EventCounts :many
SELECT s.id, s.status, s.started_at, coalesce(n.events, 0)::bigint AS events
FROM notification_subscription s
LEFT JOIN notification_subscriber n ON n.id = 'Subscription/' || s.id
WHERE s.id = ANY (@ids::text[]);

-- SubscriptionsByID is Subscriptions for some ids, whatever their states.
-- name: SubscriptionsByID :many
SELECT s.id, s.status, s.owner, s.secret, s.previous_secret, s.secret_changed, s.started, s.started_at, s.failing, s.error
FROM notification_subscription s
WHERE s.id = ANY (@ids::text[])
ORDER BY s.id;

-- AddSubscriptionsThatAreOff makes rows for Subscriptions that have none: nothing is to be done for them.
-- name: AddSubscriptionsThatAreOff :exec
INSERT INTO notification_subscription (id, status, owner)
SELECT unnest(@ids::text[]), 'off', '{}'
ON CONFLICT DO NOTHING;

-- ReferredVersions returns the versions that resources had at an instant, by the surrogate of their references.
-- name: ReferredVersions :many
SELECT DISTINCT ON (v.ref) v.ref, v.version, t.name
FROM (
    SELECT r.ref, r.version, r.typ
    FROM resource r
    WHERE r.ref = ANY (@refs::bigint[]) AND r.last_updated <= @at::timestamptz
    UNION ALL
    SELECT h.ref, h.version, h.typ
    FROM resource_history h
    WHERE h.ref = ANY (@refs::bigint[]) AND h.last_updated <= @at::timestamptz
) v
JOIN resource_type t ON t.typ = v.typ
ORDER BY v.ref, v.version DESC;
