// Package registry keeps the search parameters in force: those that the server was
// compiled with, and the SearchParameter resources that are stored. It makes a
// change of them take effect at once, on every server that shares the database,
// and sees that the index of stored resources follows.
//
//	SearchParameter written --Check--> expression parsed and type-checked (400)
//	   in its transaction  --InTx--->  uniqueness, version + 1, jobs for the index
//	   after its commit    --Committed-> this server reads anew, waits out the lease
//	search, write          --Current-> *search.Registry, no older than the lease
//	background             --Run---->  steps of the jobs, beside other servers
//
// # At once, everywhere
//
// The stored resources are the registry; a row in the database, search_registry,
// has its version. No request after an acknowledged change may be answered by an
// older registry, and no request may pay a round trip for that. Two mechanisms,
// one for each direction:
//
// Searches use a lease. A server may use what it has read for Lease (300 ms) from
// the moment it asked, by its own clock; requests renew it on the way, in the
// background from half of it on, and one that finds it run out asks first. Whoever
// changes a SearchParameter waits that long after the commit before the client is
// answered: whatever another server read before the commit is no longer valid
// then. Only durations are compared, never the clocks of two machines. A server
// that cannot ask refuses searches rather than answer by what may be old. LISTEN
// and NOTIFY would shorten the wait, but are a hint only, and a version column in
// the statements of a search would cost each of them what concerns one request in
// millions, and say nothing of the searches that fail before a statement.
//
// Writes are fenced. An index carries the version it was made by, and the last
// statement of a transaction that writes index entries compares it with the row:
// a microsecond or two in a pipeline that is sent anyway. Where they differ the
// transaction fails and is done again with a new index (store.Indexer). A lease
// would not do here: a bundle may take longer from extraction to commit.
//
// # The index of what is stored
//
// A change leaves a job for each resource type whose keys are no longer the same,
// in its own transaction. Work on a job begins when every transaction has ended
// that may have passed the fence by the older version: those with a number below
// the one that was next when the job was first seen. From then on whatever is
// missing is visible, and whatever comes is right. A chunk of work compares the
// index of some hundred resources with what the parameters say, and writes the
// differences; it is fenced like every write, changes no version and no
// lastUpdated, and repeating it does nothing. Servers take chunks with SKIP
// LOCKED; what a server that died had taken is free again with its connection.
//
// Until its job is done, a search by a parameter has a warning in its answer
// (fhir.Parameter.Notice). Deleting a parameter makes searches by it fail at once;
// its entries go by a job of the same kind, and nobody reads them meanwhile.
//
// # Profiles and value sets
//
// What validation keeps of stored profiles, value sets and code systems is dropped
// when one is written: at once on the server that wrote it, within the lease on the
// others, which read a counter with the version.
//
// # What is compiled stays compiled
//
// A stored SearchParameter with URL, code, type and expression of a compiled one
// is that one, and changes nothing: all of R4's definitions may be loaded. A
// branch with the path of a compiled one shares its entries and needs no job. One
// that says something else replaces the compiled parameter of the same code.
package registry
