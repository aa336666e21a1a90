// Bench measures FHIR servers. It sends the same load to any server at a base
// URL and says how many requests a second it answered, how long they took, and
// what that cost in processor time, memory, WAL and disk.
//
//	bench run read,search --url http://127.0.0.1:8080     any server
//	bench floor --database-url postgres://…               PostgreSQL alone
//	bench section7 --kiln bin/kiln                        the design's targets, with floor and ratio
//	bench slope --kiln bin/kiln                           searches for one patient among few and among all
//	bench access --kiln bin/kiln                          reads, searches and tokens with authorization, beside those without
//	bench scale --size 2000000                            the design's rows among 0.2 and among 2 million resources
//	bench copies --first 1 --copies 9 --url http://…      fill a server with copies of the corpus
//	bench console --kiln bin/kiln                         pages of the console beside REST; reads with the console on and off
//	bench console --url http://127.0.0.1:8080             the pages of a server that runs
//	bench operations --kiln bin/kiln                      what rate limits and audit cost
//	bench bulk --kiln bin/kiln                            bulk export and import beside paging and transactions
//	bench replica --kiln bin/kiln                         reads after own writes with standbys, and what standbys cost and save
//	bench notifications --kiln bin/kiln                   subscriptions, webhooks, WebSockets, event streams
//	bench apps --kiln bin/kiln --corpus DIR               operations of Apps beside reads
//	bench soak --for 10m --url http://localhost:8080/fhir a mixed load at a part of its peak
//	bench smoke --kiln bin/kiln                           every workload once, no thresholds
//
// A workload is a function that performs one operation and a set of samples taken
// from the server's own data, so that nothing about a server is assumed but
// FHIR. Operations run in a closed loop (so many clients, each waits for its
// answer) or in an open loop (so many a second, come what may). In the open loop
// the time of an operation counts from the moment it was due, not from when a
// client was free to send it: a server that stalls is charged for everybody who
// would have waited.
//
// The floor is a program without FHIR: pgx moves the rows that the server would have moved,
// with as many clients. A figure divided by its floor is the server's share, on any
// machine.
package main
