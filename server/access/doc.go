// Package access decides on the rights of a caller. Every interaction asks here, and
// nothing else decides:
//
//	request --Verifier--> Principal (in the context) --Decider--> Rights
//	Rights --May-------> a resource type, at all: go on, or forbidden
//	       --Narrow----> a query, with its chains, _has and includes
//	       --Condition-> what must hold of one resource; Condition.Holds asks it in memory
//
// There is one predicate. For a principal, a letter of a scope (c, r, u, d, s) and a
// resource type it is a Condition: everything, nothing, or clauses in the query tree of
// server/search. It is the union over the scopes that name the letter and the type: the
// compartments of patients (patient/, and user/ of a Patient or RelatedPerson), or
// everything (user/ of others, system/), either narrowed by the search of a granular scope.
// Policies (policy.go) narrow the union. A search ANDs the condition into its SQL, so pages
// and totals are exact, and cached results are keyed by it. A read, a version, a write or
// an event asks the same condition of the one resource.
//
// A resource that a condition hides is absent; a request without a scope is forbidden.
// server/interaction reads through Service.VisibleReader and writes under a store.Guard, which see
// to both. Conditions ask only for content of the resource itself, so chains and _has are
// refused in granular scopes and policies.
//
// Without authorization every request runs as Open, which has no Rights to be asked and
// costs nothing; such a server is not to be reached from other machines, which
// CheckListen sees to.
//
// Contract: docs/contract.md, Authorization.
package access
