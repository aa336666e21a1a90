// Package admin serves the paths for operators. Nothing here is FHIR, save the form of
// an error.
//
//	/health, /health/live, /health/ready  admin.go     no token; 503 while the server cannot serve
//	/metrics                              admin.go     Prometheus, with the admin scope
//	/admin/config, /admin/features        config.go    what is in force, its source, and changes of it
//	/admin/servers, cache, db             state.go     the servers of this database and what they hold
//	/admin/jobs                           jobs.go      work in the background
//	/admin/searches, indexes              searches.go  shapes of searches, and indexes that would help
//	/admin/indexes/sort                   sortindexes.go  orders that the index keeps by an administrator's wish
//	/admin/policies, /admin/access        policy.go    access policies and their decisions
//
// Part is built with what the paths show, each behind a small interface (Settings,
// JobSource, Searches, SortIndexes), and mounts itself on a web.Mux; package web asks for the token.
// Administration of OAuth is oauth's, of notifications notify's, of Apps app's.
//
// Contract: docs/contract.md, Admin endpoints; Operations.
package admin
