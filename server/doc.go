// Package server is the running service: its configuration, the parts it is made
// of, and their life from start to shutdown. New builds every part and so is the
// table of contents; each part is described in its own package.
//
//	Config     config_*.go, a file for each section: keys, defaults and their check
//	New        store, settings, terminology, validator, search parameters, policies,
//	           interactions, audit, authorization, operations, notifications, Apps;
//	           then each mounts its paths, FHIR last
//	Run        listen.go: addresses, TLS, the order of a shutdown
//	Close      what New started, last things first
//
// A file that is named like a part (notifications.go, apps.go, terminology.go) builds it
// from the configuration and passes it the other parts that it needs. No request is decided
// here.
package server
