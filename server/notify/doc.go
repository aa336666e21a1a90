// Package notify tells others of what was written: Subscriptions by webhook, connections by
// WebSocket and server-sent events, and Apps through SubscriberKind.
//
// Everything follows the change log (store.Feed), on which writes leave a row and nothing
// else:
//
//	change log ──> matcher of all Subscriptions ──> queue ──> webhook ──> AuditEvent
//	 (one server)     (matcher.go, criteria.go)   (queue.go) (webhook.go)  (audit.go)
//	change log ──> matcher of this server's connections ──> WebSocket, server-sent events
//	 (each server)           (hub.go)                   (websocket.go, sse.go)
//
// A named reader of the log matches events with all active Subscriptions and puts deliveries
// into the queue in the transaction that moves the reader: each event is queued once, whatever
// dies. Any server takes deliveries from the queue, by a lease on their subscriber, and sends
// them in order. A delivery whose result could not be written is sent again under its id, which
// is made of the event and the subscriber.
//
// An event finds rules by its resource type and one term that a matching resource must have;
// what the index entries of the resource leave open (chains, _has) is asked of the database.
//
// A Subscription is checked and gets its status in the transaction that writes it (write.go);
// handshakes, heartbeats and what follows from them are the work of life.go. Each change of
// status is a version of the resource.
//
// The package owns the tables notification_*, which it reads and writes through gen/db.
package notify
