// Package audit records interactions, sign-ins and settings as AuditEvents after the
// patterns of IHE's Basic Audit Log Patterns (BALP).
//
//	write -> store.WithAudit -> audit_of_write, in the same transaction -> store
//	read, search, failure, administration -> Record -> group -> store, off the request path
//	                                      many at a time: group -> audit_pending -> store
//
// Storing an AuditEvent costs as much as another write. The events of writes are therefore
// committed with them as one row of the table audit_of_write, and become AuditEvents
// soon after, many at a time: an event exists exactly when its write does. Clients cannot see
// the delay, because each request that could find an AuditEvent first makes those
// of all acknowledged writes.
//
// Storing an AuditEvent costs several times as much as a read. While requests are frequent,
// their events wait in the table audit_pending, which costs a few microseconds each,
// and a small part of the time is spent on making AuditEvents of them. Otherwise they become
// AuditEvents at once. A group leaves the table in the transaction that stores its AuditEvents, on
// any server. The frequency is read from the database: an idle server waits too,
// because it shares the database with busy ones.
//
// A clean end loses no recorded event: Close writes the waiting ones. While
// the database accepts nothing, requests wait for room and are not left unrecorded.
//
// Spec: https://hl7.org/fhir/R4/auditevent.html, https://profiles.ihe.net/ITI/BALP.
package audit
