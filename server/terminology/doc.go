// Package terminology answers questions about codes: the codes of a value set,
// membership in it, the meaning of a code, its place in a hierarchy,
// and its translation to another system.
//
//	         Service: Expand, ValidateCode, Lookup, SubsumesOutcome, Translate,
//	                  SearchCodes (:in, :below, …), Contains, MemberOf
//	             |
//	         snapshot      resolved and compiled definitions, valid while the
//	        /     |    \     stored resources do not change
//	packages  Resources   server ── Answers
//	            (REST)  (external) (PostgreSQL)
//
// # Sources of answers
//
// A canonical URL is looked up among the resources stored through REST first, then
// in the packages that the server was built with, then on the server of
// terminology.server_url, if set. A version after "|" must match; without one the
// newest counts. The external server is never asked for local definitions: a local value set with
// codes of a system that only that server has (SNOMED CT, LOINC) is combined
// from both, with one request for each include that is not local.
//
// A supplement (CodeSystem.content "supplement") adds designations and properties to
// the code system that it names; it is never used as a code system itself.
//
// terminology.enabled is true by default. Without terminology.server_url only local
// terminology is used: a value set that is not local is not-found, 404.
// With terminology.enabled=false every operation and search modifier of
// terminology is not-supported, 501; bindings are still checked against the local
// definitions, which are a part of FHIR itself. If the external server does not answer, the
// error is exception, 503, unless an earlier answer is cached: that one is returned, with a
// warning.
//
// # Memory
//
// The packages are opened at first use, and each CodeSystem, ValueSet or
// ConceptMap is read when it is first needed. Parsed resources, expansions and
// code sets are in caches of limited size: after every value set of R4 has been
// expanded they take 16 MB. Stored resources of more than 1 MB have a cache of their
// own, of at most 96 MB, which is emptied after ten minutes without use.
//
// No answer depends on earlier requests of the process. Resources has a stamp
// that changes with every write of a terminology resource, on any server.
// Operations and searches read it each time; a new stamp begins a new
// snapshot without derived data. Contains, which every
// write calls, reads it every two seconds.
//
// # The external server
//
// Answers are cached in memory, whole expansions in PostgreSQL too (expansioncache.go),
// under a hash of server and question, shared by all instances and fresh for
// terminology.cache_ttl_secs.
// Later the server is asked again, and an expired answer is used only if that fails. $validate-code then
// uses the cached expansion, with a warning. Five failures in a row open the
// circuit breaker: for some seconds no request is sent, and a question without
// cached answer fails at once.
//
// Large expansions are fetched in pages until the total is reached or, without a
// total, until a page has nothing new. An expansion that ends earlier, or is marked as cut, is an
// error. So is one larger than 64 MiB or 250,000 codes (too-costly). Kiln caches
// neither. An expansion with the extension valueset-unclosed has further codes that it does
// not list: $expand passes the extension on, a search by it is rejected (incomplete,
// 422). A 404 that is no FHIR, or says not-supported, means a wrong terminology.server_url,
// 503, and not an unknown value set.
//
// # Search
//
// A modifier becomes the hashed values (fhir.ValueCoding) of the index. From
// 500 codes on they are a set of rows in PostgreSQL, named by a hash of its contents,
// which the statement joins. A set that was not used for an hour is dropped.
package terminology
