// Package storage keeps the authorization server's state in PostgreSQL: clients,
// users, keys, codes, refresh tokens, sign-ins, pages on their way, revocations.
// It implements the storage interfaces of fosite, and owns the rule that what may
// happen once happens once: a code, a refresh token, an assertion and a launch are
// each used by an UPDATE or INSERT that changes one row for one caller, whatever
// server the callers ask.
//
// A transaction travels in the context (BeginTX); every query runs in it when there
// is one. Tokens, codes and cookies are stored as SHA-256 alone.
package storage
