// Package notify sends notifications of writes: to Subscriptions by webhook, to connections
// by WebSocket and server-sent events, and to Apps through SubscriberKind.
//
// Everything follows the change log (store.Feed), on which writes leave a row and nothing
// else:
//
//	change log ──> matchers of all Subscriptions ──> queue ──> webhook ──> AuditEvent
//	 (enqueue.go)            (matching)              (queue)  (webhook)     (queue)
//	change log ──> matchers of this server's connections ──> WebSocket, server-sent events
//	 (each server)                                (live)
//
// The packages below it lean one way:
//
//	notify ──> live ──> message ──> queue ──> webhook ──> config
//	                       └──> subscription ──> owner ──> matching
//
//	matching      finds the subscribers of an event; HandleChanges is the loop of readers and lanes
//	owner         the owner of a Subscription and its rights
//	subscription  reads Subscriptions and topics
//	webhook       signs and sends a message, and says when one that failed is tried again
//	queue         adds deliveries, leases them and sends them by Receivers
//	message       makes the bodies
//	live          WebSockets and server-sent events
//
// Two named readers of the log match events with the active Subscriptions, one with those that
// index entries decide about and one with those that need the database, and put deliveries into
// the queue in the transaction that moves the reader: each event is queued once, whatever dies.
// Connections have two lanes in the same way (package live). Any server takes deliveries from the
// queue, by a lease on their subscriber, and sends them in order. A delivery whose result could
// not be written is sent again under its id, which is made of the event and the subscriber;
// webhook.Policy says when one that failed is tried again.
//
// An event finds rules by its resource type and one term that a matching resource must
// have. Chains and _has need more than the index entries of the resource: they are decided
// by the resources that it refers to and that refer to it, read once for all events and
// rules of a moment (package matching). The rest is one search for each rule, bounded in time.
// Criteria that take longer end their Subscription; its status gives the reason.
//
// A Subscription is checked and gets its status in the transaction that writes it
// (write.go). life.go sends handshakes and heartbeats and changes the status by their
// results. Each change of status is a version of the resource.
//
// The packages own the tables notification_*, which they read and write through gen/db.
package notify
