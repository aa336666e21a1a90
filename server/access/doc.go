// Package access decides what a caller may do. Every interaction asks here, and
// nowhere else, before it reads or writes:
//
//	request --Verifier--> Principal (in the context) --May--> go on, or login / forbidden
//
// Without authorization every request runs as Open, which may do everything;
// such a server is not to be reached from other machines, which CheckListen
// sees to.
package access
