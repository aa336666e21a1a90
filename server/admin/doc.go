// Package admin serves the paths for operators. Nothing here is FHIR, save the form of
// an error.
//
//	/health, /health/live, /health/ready  admin.go     no token; 503 while the server cannot serve
//	/metrics                              admin.go     Prometheus, with the admin scope
//	/admin/config, /admin/features        config.go    values in force, their sources, and changes
//	/admin/servers, cache, db             state.go     the servers of this database and their state
//	/admin/jobs                           jobs.go      work in the background
//	/admin/searches, indexes              searches.go  shapes of searches, and indexes that would help
//	/admin/indexes/sort                   sortindexes.go  sort orders that an administrator has indexed
//	/admin/policies, /admin/access        policy.go    access policies and their decisions
//
// Part shows the state behind small interfaces (Settings, JobSource, Searches,
// SortIndexes), and mounts itself on a web.Mux; package web asks for the token. oauth
// administers OAuth, notify notifications, app Apps.
//
// Contract: docs/contract.md, Admin endpoints; Operations.
package admin
