// Package matching finds the subscribers of an event. It knows the change log, searches and rights, but neither queues nor
// connections.
//
//	event.go      Event, its kinds, and the ids and cursors of notifications
//	matcher.go    Rule, Subscriber, and Matcher: the rules that an event may meet
//	evaluator.go  Evaluator: tests these rules, in memory if possible, else in the database
//	criteria.go   Criteria: a search that is tested on single resources
//	related.go    the other resources that chains and _has need
//	sights.go     who may see the resource of an event
//
// An event passes three steps:
//
//  1. candidates  by resource type and one term that a matching resource must have
//  2. holds       by the index entries of the versions: yes, no or unknown
//  3. unknown     by related resources, read once for all events; then one search for each rule, bounded in time
package matching
