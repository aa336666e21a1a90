// Package jobs runs long work in the background, on all servers of a database: it owns the
// tables job, job_part and job_file, the leases of parts, and the ends of jobs. The package
// that registers a Kind does its work; package bulk stores its files.
//
//	Add ──> job (waiting) ──> part, part, …          in one transaction
//
//	            Claim                 Kind.Run            finish, in one transaction
//	part waiting ──> part running ──> results, files ──> part done, job_file, new parts
//	     ^   ^            │  │                              │
//	     │   └─ a failure ┘  │                              └─ no part left: job done
//	     └─ the lease is over, or a clean stop
//
// # Leases and fencing
//
// A server leases a part for Settings.Lease and renews the lease in the background. Each lease has a
// number, one higher than the last. The results of a part are stored in one transaction that compares
// the number: a server that was frozen and wakes up behind its lease stores nothing. Files are
// written under paths that contain the number, so two servers never write to one file.
//
// A part that fails or loses its lease Settings.MaxAttempts times fails its job. An *outcome.Error fails
// the job at once where another attempt would get the same (permanent). A clean stop gives the part back,
// which counts as no attempt.
//
// A part that changes resources stores how far it is in the same transaction (Task.Keep): the next server
// goes on from there, and nothing is stored twice.
//
// # Stages
//
// The parts of a stage wait until all parts of earlier stages are done. A part can add parts: the
// first part of an export fixes the moment and adds the parts that read.
//
// # Pace
//
// While requests come, parts work in short slices, one part of a server at a time, and rest in between (Pacer). Each
// server paces its jobs by its own requests alone, so servers share no state for it.
//
// # Why no queue library
//
// riverqueue/river was considered. It knows jobs and not parts of a job, has no number of a lease
// with which results could be refused, and rescues a job whose server died after an hour by default,
// at the granularity of a maintenance service that one elected leader runs. Parts, fencing and a
// takeover within the lease and 5 s would be tables of our own beside its tables; they are four.
package jobs
