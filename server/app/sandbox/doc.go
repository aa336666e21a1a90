// Package sandbox runs the JavaScript of Apps, which nobody has to trust.
//
// goja has no limit on memory, and its native loops cannot be interrupted, so a script
// runs in a worker process of the same binary:
//
//	Pool.Run ── call ──> worker: a new goja.Runtime for each call
//	         <─ host ──  fhir.read(…)      Host.Call, in this process, under the caller's rights
//	         ── answer ─>
//	         <─ result ─
//
// The bounds of a script:
//
//   - the interrupt of goja after Limits.Execution, which is the script's own time, of the
//     processor where that is busy with others, as far as the contract leaves time for it:
//     waiting for the host does not count;
//   - a watchdog on the live heap (memory.go), Limits.Memory above that of an idle worker;
//   - RLIMIT_AS, the measured size of the process and twice Limits.Memory, at which Go
//     ends the process;
//   - this process, which kills a worker that is killGrace over Limits.Execution.
//
// A scheduler (turn.go) bounds the workers, gives each App and each client a fair share of them,
// and bounds the bytes on their way to the scripts of one tree of calls.
//
// A worker has no files, no environment and, where the system lets us, no network. It is
// replaced after each breach of a limit.
package sandbox
