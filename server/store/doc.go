// Package store keeps resources in PostgreSQL: transactions, versions, history, index rows,
// the change log. It owns every statement. The meaning of a search is decided in
// server/search, the meaning of a request in server/interaction.
//
// # A write
//
// is one transaction, whatever it touches:
//
//	lock current versions (in ref order) -> decide in Go (precondition.go) -> one pipeline:
//	    move superseded versions to history, insert or update resources,
//	    replace index rows, append to the change log -> commit
//
// Short writes that arrive at the same time share a transaction and its commit; each
// succeeds or fails by itself (queue.go). The rows of a transaction are written by one
// statement for each table (group.go); many rows for one table are copied (copy.go). A
// create with an id of the server's own reads nothing first: one round trip. A create with
// the client's id can lose a race, and a transaction can lose a lock: both run again
// (write.go).
//
// An update that leaves dates, numbers, quantities and strings as they were leaves their
// rows alone. A hash beside the body shows whether they are equal (ranges.go).
//
// Reads by id that come at the same time share a query (reader.go).
//
// A search keeps one connection from its first statement to its last (server/search/strategy). A
// few short ones run at a time, in the order of arrival, which ends each of them
// sooner than taking turns would. The bodies of its page lie in memory that another
// page gets once they have been written out (body.go).
//
// What several writes would wait for is committed beforehand, on connections of
// its own: numbers for surrogates (surrogate.go), units and display texts
// (dictionary.go). New terms are sorted into the index by the way (flush.go).
//
// # The change log and its feed
//
// Every transaction adds a row to the change log. Readers read up to the oldest transaction
// that still runs (change.go), so they skip none that commits late. After commits a Feed
// wakes the readers of all servers (feed.go); polling alone is enough. A named reader keeps
// its position in the database and moves it in the transaction of its own results. One
// server at a time runs the reader of a name. Rows that every reader has passed are deleted
// when they are old enough (trim.go).
//
// # The tables
//
// Version 1 of a Patient and of an Observation about her:
//
//	resource_type   typ  name
//	                  1  Patient
//	                 12  Observation
//
//	resource        rid               ref                   shard  version  method  id        terms          targets            body
//	                 281474976710657   4658968063194266131     19        1  C       43b6ae50  {-92199…, …}   {}                 1,096 bytes of 3,471
//	                3377699720527919   1158000421376019282    210        1  C       f65d529f  {-90412…, …}   {46589680631942…}  232 bytes of 902
//	                (and last_updated, typ, ranges)
//
//	index_date      key                  low                high               rid
//	                1158737988215347144  -1037664000000000  -1037577600000000   281474976710657   birthdate 1937-02-13
//	index_quantity  key                  rid               unit                  low     high
//	                7652380043792490855  3377699720527919  -7501980108178894089  158.47  null     value-quantity
//	                6056799325178408703  3377699720527919  -7501980108178894089  158.47  null     code-value-quantity: http://loinc.org|8302-2
//	index_number    the same without a unit
//	index_string    key                  rid              text, word
//	                2614462118170421996  281474976710657  billerica                               address-city, and so address
//	                (as fhir.JoinText has it; word: a part of a name from a further word on, under fhir.WordKey;
//	                null: what the resource is sorted by, fhir.Index.Ordered)
//
//	quantity_unit   id                    system                     code  unit
//	                -7501980108178894089  http://unitsofmeasure.org  cm    cm
//	token_text      key                   value                 text
//	                -8769010974065415881  -9041249294341209578  body height
//	                -7128962589868424281  -9130585380348588326  http://loinc.org  a system of 8302-2 in code-value-quantity
//
//	change          xid     shard  rids                 refs                versions  methods
//	                110576     19  {281474976710657,…}  {4658968063194…,…}  {1,1}     CC
//
// After an update the old row is in resource_history, with its rid, ref, version and body
// and without terms. After a delete there is a second row with method D and no body, and no
// row in resource and the index tables. rid_next has the next free surrogate of each type
// and its parts; body_dictionary has the dictionaries that compress bodies (body.go).
//
// search_registry has one row: the version of the search parameters, with which every write
// of index rows is checked, and the fingerprint of the build that made the index.
// index_fingerprint has the build's fingerprint of each resource type. reindex_job has
// the jobs that index stored resources again, whose work is in job and job_part (reindex.go,
// fingerprint.go). sort_index names the sort orders of tokens, references and uris that
// index_string has entries for, because an administrator asked for them (sortindex.go).
//
// Surrogates, keys and values are 64-bit numbers: fhir.ValueReference is ref,
// fhir.Key.Term a term. SQL by hand reads the view resource_json, some 3,000
// resources a second:
//
//	SELECT body->>'gender', count(*) FROM resource_json WHERE type = 'Patient' GROUP BY 1
//
// Every unique key has the column shard, surrogates and times are made in Go, and
// nothing but dictionaries is shared between shards: resource, resource_history
// and change can be distributed by shard, dictionaries copied to every node.
//
// # Parts
//
// New rows go to the end of resource, of its primary key and of a common term. Dates and
// amounts come in no order: in one index of all of them nearly every entry would go to a
// page of its own, which would be read, logged and written for it; imports among 20 million
// resources took twice as long as among 200,000. index_date and index_quantity keep the
// entries of a key in parts, one for each million surrogates of a type, by adding the
// number of the part to the key (match.StoredKey), and a search reads every part. A part is
// announced before it is used (announce.go). An import among 20 million resources reads 0.2
// pages for each resource; without parts it reads 1.7.
//
// # Neighbours
//
// resource_terms and resource_ref are in the order of hashes. Entries that would be
// scattered are brought together in two ways. Terms of one value begin alike whatever their
// keys are (fhir.KeyOf), so that all references to a patient are on one page. A ref, with
// the terms of references to it, begins with the span of time in which this server made the
// id (fhir.NewID), so that present writes go to one 256th of the index. Ids that clients
// choose are hashed as a whole. Among 20 million resources these two indexes are larger
// than their cache; the order raises creates, updates and deletes from 3,400 to 5,500 a
// second.
//
// # Costs
//
// 617 Synthea records (191,093 resources, 1,436 bytes of JSON each, 23 terms) on
// PostgreSQL 15 with durable commits, for each resource:
//
//	disk   1,396 bytes: row 717 (body 367, terms 211), dates 176, quantities 167,
//	       terms 120, last_updated 71, surrogate 55, ref 42, strings 27, log 15
//	WAL    2,414 bytes in bundles of 300
//	CPU    25 us of PostgreSQL, 8 us of this package
//
// On two cores that is 47,000 resources a second in bundles from three uploaders, and, one
// at a time from 32 clients, 23,000 creates, 13,000 updates and 20,000 deletes a second at
// 40, 70 and 36 us of PostgreSQL. Choices made by measurement:
//
//	reads          by 32 clients 100,000/s where they share queries, 25,000/s one by one
//	short bundles  of two entries by WriteAll 130 us of CPU, by InTx 395
//	bodies         s2 with a dictionary 25% of the JSON in 0.8 us, lz4 55%, zstd with it 21% in 13 us
//	change log     one row for a transaction 16 bytes, one for each version 70
//	many rows      COPY 2,420 bytes of WAL and 23 us, INSERT of arrays 2,555 and 26
//	writers        one for two cores (workerslots.go): two make twice the commits and cost PostgreSQL 10 to 15% more
//	equal rows     left alone by updates 16% less of PostgreSQL for a CRUD request (ranges.go)
//	pending terms  200,000 at a time 2,600 bytes of WAL, 40,000 2,780; a search reads them in 1.4 ms
//
// # Why an array of terms
//
// `bench layout` loads the same rows into other layouts: 191,093 resources of 29.5
// terms, beside other work on two cores, so that times are good to a factor of two
// and bytes and CPU to some per cent. "rows" is one row (term, rid) for each term in
// the place of the array and its GIN index, "narrow" keeps the array in a table
// beside the bodies, "flushed" is the array without GIN's pending list.
//
//	                                   array    rows  narrow  plain bodies  flushed
//	disk for a resource, bytes         1,557   3,686   1,541         2,326    1,403
//	WAL for a resource, bytes          2,514   4,623   2,624         3,219    9,808
//	CPU of PostgreSQL, us                 32      87      33            39      101
//	single creates a second            4,375   1,919   2,835         2,965    2,822
//	resources imported a second       22,531   6,228  20,179        14,275    8,278
//	page of two terms, one common, ms   0.27     2.0    0.21          0.30     0.28
//	count of a common term, ms            32       5      42            42       37
//
// Rows win one line of it, the count of a term that 100,000 resources have, and pay
// with twice the disk and nearly three times the CPU; such totals are remembered
// and checked against the change log instead (search.go).
package store
