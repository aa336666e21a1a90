// Package terminology answers questions about codes: what a value set holds,
// whether a code is in it, what a code means, which code is the more general one,
// and what it is in another system.
//
//	         Service: Expand, ValidateCode, Lookup, SubsumesOutcome, Translate,
//	                  SearchCodes (:in, :below, …), Contains, MemberOf
//	             |
//	         snapshot      what is resolved and compiled, valid while the
//	        /     |    \     stored resources do not change
//	packages  Resources   server ── Answers
//	            (REST)  (external) (PostgreSQL)
//
// # Where answers come from
//
// A canonical URL is looked up among the resources stored through REST first, then
// in the packages the server was built with, then, where terminology.server_url is
// set, on that server. A version after "|" must be that version; without one the
// newest counts. What is local is never asked of the server: a local value set that
// takes codes from a system which only the server has (SNOMED CT, LOINC) is put
// together from both, one question for each include that is not local.
//
// A supplement (CodeSystem.content "supplement") adds designations and properties to
// the code system that it names; it is never used as a code system itself.
//
// terminology.enabled is true by default. With terminology.server_url unset that
// means local terminology only: a value set that is not local is not-found, 404.
// With terminology.enabled=false every operation and search modifier of
// terminology is not-supported, 501; bindings are still checked against the local
// definitions, which are a part of FHIR itself. A server that does not answer is
// exception, 503, unless there is an answer from before: then that is given, with a
// warning.
//
// # Nothing at start, little at rest
//
// The packages are opened at first use, and of them a CodeSystem, ValueSet or
// ConceptMap is read when somebody asks for it. Parsed resources, expansions and
// code sets are in caches of bounded size: after every value set of R4 has been
// expanded they hold 16 MB. Stored resources of more than 1 MB have a cache of their
// own, 96 MB at most, which is empty when none of them has been used for ten minutes.
//
// No answer depends on what this process has done before. Resources has a stamp
// that changes with every write of a terminology resource, by whichever server.
// Operations and searches ask for it each time; a new stamp begins a new
// snapshot, in which everything derived is made again. Contains, on the path of
// every write, asks every two seconds.
//
// # The external server
//
// Answers are kept in memory, whole expansions in PostgreSQL too (expansioncache.go),
// under a hash of server and question, shared by all instances and fresh for
// terminology.cache_ttl_secs.
// Later they are asked for again, and kept for when that fails; $validate-code is then
// answered by the kept expansion, with a warning. Five failures in a row open the
// circuit breaker: then the server is left alone for some seconds, and what has no
// kept answer fails at once.
//
// Large expansions are fetched in pages, until the total is reached, or without a
// total until a page has nothing new. What ends before, or is said to be cut, is an
// error; so is what is larger than 64 MiB or 250,000 codes (too-costly). Nothing of
// it is kept. An expansion with the extension valueset-unclosed has codes that it does
// not list: $expand passes the extension on, a search by it is refused (incomplete,
// 422). A 404 that is no FHIR, or says not-supported, is a wrong terminology.server_url,
// 503, and no unknown value set.
//
// # Search
//
// A modifier becomes the hashed values (fhir.ValueCoding) that the index knows. From
// 500 codes on they are a set of rows in PostgreSQL, named by a hash of its content,
// that the statement joins; a set that has not been used for an hour is dropped.
package terminology
