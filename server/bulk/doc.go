// Package bulk serves Bulk Data: asynchronous requests, exports, imports and their files. It owns the
// kick-offs, the status URL, the manifest, the files, and the content of an export. Package jobs runs
// the work; package store knows the state of resources at a moment.
//
//	kick-off ──> spec (parsed, rights checked) ──> jobs.Add ──> 202, Content-Location
//
//	job ──> plan: the moment, spans of surrogates     one part, stage 0
//	        resources of the level                    parts, stage 1    Type.N.ndjson
//	        targets, Provenance                       parts, stage 2
//	        deletions                                 one part, stage 1 deleted.Bundle.N.ndjson
//
//	status URL ──> manifest ──> files
//
// # What an export contains
//
// Each part reads the resources of a type by surrogate, as they were at the moment of the export
// (store.VersionsAt). A resource has to pass, in this order: the level, _since and _until, the rights
// of the owner, and _typeFilter. The level is decided by the terms of the search index:
//
//	system   everything
//	Patient  a term of the patient compartment with a patient that the owner may read
//	Group    the same with the members of the Group
//
// For a version that is no longer current the index is made anew from its body. Rights and filters
// are the conditions of search, held against each resource (match.Hold). A filter that depends on
// other resources (a chain, _has) is asked of the search engine, for the resources of a page.
//
// Targets are the resources outside of all patient compartments that resources of the level refer
// to. The parts of stage 1 collect their references; stage 2 reads them.
//
// # Imports
//
//	job ──> fetch: the lines of an input               parts, stage 0    records in files of 8 MiB
//	        lines: a file of records                   parts, stage 0    resources, errors in job_error
//	        report: files of errors, the manifest      one part, stage 1 error.OperationOutcome.N.ndjson
//
// An upload is stored as records before the 202, and has no part that fetches. A part that stores lines
// works on transactions of some hundred lines. Each transaction also stores the errors of its lines and
// the place behind them, under the lease of the part (jobs.Task.Keep). So a server that takes over
// goes on behind the last committed line, and a server behind its lease commits nothing.
//
// A part that fetches waits for a source and does not count as a worker (jobs.Task.Wait).
//
// # Files
//
// A part writes files under a path that contains the number of its lease. They become part of the
// job when the part ends (jobs.Core), so a reader never sees half of a file. A download needs the
// database to find the file, and only the file afterwards.
package bulk
