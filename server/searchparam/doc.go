// Package searchparam keeps the search parameters in force: the compiled ones, and
// the SearchParameter resources that are stored. A change takes effect at once, on
// every server that shares the database, and the index of the stored resources
// follows.
//
//	SearchParameter written --Check------> expression parsed and type-checked (400)
//	   in its transaction  --InTx-------> uniqueness, version + 1, jobs for the index
//	   after its commit    --Committed--> this server reads anew, waits MaxAge
//	search, write          --Current----> *search.Registry, read at most MaxAge ago
//	background             --Run--------> steps of the jobs, beside other servers
//
// Files: stored.go reads the stored resources, write.go follows their writes, notice.go
// makes the warnings of searches, reindex.go does the jobs, takeover.go takes over the
// index of another build, sortindex.go indexes sort orders.
//
// # At once, everywhere
//
// The stored resources are the truth; one row in the database, search_registry, has
// the version of them. No request after an acknowledged change may be answered by
// older search parameters, and no request may pay a round trip to learn that. Reads
// and writes have a mechanism each:
//
// Searches use parameters that were read at most MaxAge (300 ms) ago, counted from the
// moment of asking, by this server's own clock. From half of that age on, a request has the
// version read again in the background; a request that finds it older waits for it. A
// server that changes a SearchParameter waits MaxAge after the commit before it answers its
// client: by then no server may use the parameters of before. Only durations are compared,
// never the clocks of two machines. A server that cannot ask refuses searches rather than
// answer by old parameters. LISTEN and NOTIFY would shorten the wait, but are a hint only.
// A version column in the statements of a search would cost every search for the sake of
// one request in millions, and would not help a search that fails before its statement.
//
// Writes are fenced. An index carries the version it was made by, and the last
// statement of a transaction that writes index entries compares it with the row:
// a microsecond or two in a pipeline that is sent anyway. Where they differ the
// transaction fails and is done again with a new index (store.Indexer). MaxAge would
// not do here: a bundle may take longer from extraction to commit.
//
// # The index of stored resources
//
// A change leaves a job for each resource type whose keys have changed, in its own
// transaction. A job begins when every transaction has ended that may have passed the fence
// by the older version: the transactions with a number below the next one when the job was
// first seen. From then on every missing entry is visible, and new ones are right. A chunk
// of work compares the index of some hundred resources with the parameters, and writes the
// differences; it is fenced like every write, changes no version and no lastUpdated, and
// repeating it does nothing. Servers take chunks with SKIP LOCKED; the chunks of a dead
// server are free again with its connection.
//
// Until its job is done, a search by a parameter has a warning in its answer
// (fhir.Parameter.Notice), and a conditional interaction is refused. Deleting a parameter makes searches by it fail at once;
// its entries go by a job of the same kind, and nobody reads them meanwhile.
//
// # The index of another build
//
// Compiled parameters are part of the parameters in force: after `go generate` with another
// package, or an upgrade, a server extracts other entries than the build before did. Every
// build has fingerprints of its entries (search.Registry.Fingerprints, fhir.Extraction).
// The database stores the fingerprints of the build that made its index: one for each
// resource type in index_fingerprint, one over all of them in search_registry, which is
// read with the version anyway.
//
//	Open: the same       --> nothing
//	      a new database --> one statement
//	      another build  --> one transaction: version + 1, fingerprints, and a job
//	                         of all keys for each type that was ever stored and
//	                         whose fingerprint is another one; then MaxAge
//
// From then on everything goes as with a SearchParameter that is written: searches
// by parameters of those types, compartments and wildcards of references included,
// warn until the job is done, and GET /$reindex tells of it.
//
// A server of the other build that still runs finds, within MaxAge, a
// fingerprint that is not its own. It answers searches, writes and /health/ready
// with 503 from then on, serves reads and history, and leaves the jobs alone. Its
// writes fail by the version at once, and cannot be done again with an index that
// lacks entries. When a server of its own build starts, that one takes the index
// back in the same way, and the first goes on by itself. So an upgrade of several
// servers is started on one of them, and the others are replaced; two builds do not
// serve side by side.
//
// # Orders by name
//
// Of a token, reference or uri the index has hashes, and `_sort` by one reads every
// match. A row of sort_index says that an administrator wants the order of a parameter
// of a type indexed: Index then leaves, under a key of its own, the texts that `_sort`
// compares (fhir.Sorter, search.SortIndex), and a search is sorted as by a string.
//
//	added    --> one transaction: row, version + 1, a job of its key; writes that do not
//	             know it fail by the version, searches sort in memory
//	job done --> every server reads anew (progress), searches use it
//	removed  --> marked: searches sort in memory within MaxAge; writes go on with it
//	             while a search of before may be under way (SearchTime); then the row
//	             goes with version + 1, and a job takes the entries away
//
// The row has the key of its entries. Where a SearchParameter that is written, or a
// build, says something else by the same code, the key in force is another one: searches
// sort in memory, and Run leaves a job. Whether searches may use it is thus one
// question: is the row's key the one in force, and does no job warn of it (notice.go)?
//
// # Profiles and value sets
//
// What validation keeps of stored profiles, value sets and code systems is dropped
// when one is written: at once on the server that wrote it, within MaxAge on the
// others, which read a counter with the version.
//
// # Compiled parameters stay compiled
//
// A stored SearchParameter with URL, code, type and expression of a compiled one
// is that one, and changes nothing: all of R4's definitions may be loaded. A
// branch with the path of a compiled one shares its entries and needs no job. One
// that says something else replaces the compiled parameter of the same code.
package searchparam
