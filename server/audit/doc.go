// Package audit records who did what to which resource, as AuditEvents after the
// patterns of IHE's Basic Audit Log Patterns (BALP).
//
//	write -> store.WithAudit -> audit_of_write, in the same transaction -> store
//	read, search, failure, administration -> Record -> group -> store, off the request path
//	                                      many at a time: group -> audit_pending -> store
//
// Storing an AuditEvent costs as much as another write. The events of writes are therefore
// committed with them in the table audit_of_write, which costs a row, and made AuditEvents
// many at a time, right behind: an event is there exactly when its write is. Nobody can see
// the difference, because whatever could find an AuditEvent settles first: it makes those
// of all writes that were acknowledged before.
//
// Storing an AuditEvent costs several times what a read costs. While many requests come,
// their events are kept in the table audit_pending, which costs a few microseconds each,
// and made AuditEvents at a small part of the time; when fewer come, at once. A group
// leaves the table in the transaction that stores its AuditEvents, on whichever server.
// How many come is read from the database: a server that has nothing else to do waits as
// well, because it shares the database with those that have.
//
// Nothing that was recorded is lost at a clean end: Close writes what waits. While
// the database takes nothing, requests wait for room rather than go unrecorded.
//
// Spec: https://hl7.org/fhir/R4/auditevent.html, https://profiles.ihe.net/ITI/BALP.
package audit
