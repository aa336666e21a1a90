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
// (fhir.Parameter.Notice), and a conditional interaction is refused. Deleting a parameter makes searches by it fail at once;
// its entries go by a job of the same kind, and nobody reads them meanwhile.
//
// # The index of another build
//
// What is compiled is part of what is in force: after `go generate` with another
// package, or an upgrade, a server extracts other entries than those that the
// database has of the build before. Every build has fingerprints of what it leaves
// (search.Registry.Fingerprints, fhir.Extraction), and the database keeps those of
// the build that its index is of: one for each resource type in index_fingerprint,
// one over all of them in search_registry, which is read with the version anyway.
//
//	Open: the same       --> nothing
//	      a new database --> one statement
//	      another build  --> one transaction: version + 1, fingerprints, and a job
//	                         of all keys for each type that was ever stored and
//	                         whose fingerprint is another one; then the lease
//
// From then on everything goes as with a SearchParameter that is written: searches
// by parameters of those types, compartments and wildcards of references included,
// warn until the job is done, and GET /$reindex tells of it.
//
// A server of the other build that still runs finds, within the lease, a
// fingerprint that is not its own. It answers searches, writes and /health/ready
// with 503 from then on, serves reads and history, and leaves the jobs alone. Its
// writes fail by the version at once, and cannot be done again with an index that
// lacks entries. When a server of its own build starts, that one takes the index
// back in the same way, and the first goes on by itself. So an upgrade of several
// servers is started on one of them, and the others are replaced; two builds do not
// serve side by side.
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
