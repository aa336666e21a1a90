// Package audit records who did what to which resource, as AuditEvents after the
// patterns of IHE's Basic Audit Log Patterns (BALP).
//
//	write -> store.WithCompanions -> its AuditEvent, in the same transaction
//	read, search, failure, administration -> Record -> group -> store, off the request path
//
// Nothing that was recorded is lost at a clean end: Close writes what waits. While
// the database takes nothing, requests wait for room rather than go unrecorded.
//
// Spec: https://hl7.org/fhir/R4/auditevent.html, https://profiles.ihe.net/ITI/BALP.
package audit
