// Package admission decides when a search may run. It limits the searches that run at the same time, so that
// short searches never wait for expensive ones, and reads and writes find a connection while long searches run.
//
//	admission.go       Admission: the limits of one server
//	shortplaces.go     the places of short searches
//	expensivequeue.go  the queue of expensive searches
//	computation.go     values that one search computes and others wait for
//
// Every search begins as a short one. A search that must count or read many matches returns its places and
// enters the queue of expensive searches:
//
//	AdmitShort ──> statements ──> end                    a short search
//	                    └──> end, AdmitExpensive ──> statements ──> EndExpensive
//
// The package knows neither connections nor statements. Package session takes a connection after the admission.
package admission
