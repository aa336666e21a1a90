// Package oauth is the authorization server: OAuth 2.0, OpenID Connect and SMART
// App Launch around ory/fosite, with its state in PostgreSQL.
//
//	authorize.go      a request, checked before anybody sees a page
//	launch.go         an EHR's launch of an app, and its context
//	flow.go           login -> consent -> patient -> encounter -> code; pages.go shows
//	                  them, formagain.go answers a form that is sent twice
//	tokenendpoint.go  tokens by fosite's grants on our storage, which provider.go
//	                  composes: PKCE and the reuse of refresh tokens are fosite's;
//	                  clientauth.go says which client asks
//	token.go          access and ID tokens, signed by the keys of key.go
//	verifier.go       bearer token -> access.Principal, with what revocation.go knows
//	admin.go          clients, users, API keys, signing keys; manage.go over HTTP
//	federation.go     sign-in with another provider; trusted.go tokens of other issuers
//
// server/smart is the scope syntax, oauth/storage the database. server/access decides which
// resources a principal may see. This package knows FHIR only through Records, which finds
// a user's resource, and patients and encounters to pick.
//
// Any number of servers share one database, and any request may go to any of them: no state
// that matters is kept in memory alone. Each server caches verified tokens, signing keys
// and revocations, and reads the revocations of other servers several times a second.
package oauth
