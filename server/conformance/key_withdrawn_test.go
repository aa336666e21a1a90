package conformance

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"kiln/oauth"
	"kiln/oauth/storage"
	"kiln/server"
	"kiln/server/store/storetest"
)

// A Subscription and a stream of a token end with the key that signed the token: the owner of a leaked key could have
// made such a token.
// Contract, Authorization 2: `kiln admin key revoke KID`: tokens end, with their streams and Subscriptions.
func TestSubscriptionOfAWithdrawnKey(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	a := withAuthorizationOn(t, database, notifying)
	b := withAuthorizationOn(t, database, notifying, func(c *server.Config) { c.Auth.Issuer, c.Server.BaseURL = a.origin(), a.base })
	token := a.backendToken("backend", "system/*.cruds")
	backend, r := a.bearer(token), newReceiver(t)
	id := backend.subscribe(subscription("Patient?", r.url))
	stream := b.stream("/Observation/$events", "Authorization", "Bearer "+token)

	head, _, _ := strings.Cut(token, ".")
	text, _ := base64.RawURLEncoding.DecodeString(head)
	var header struct{ Kid string }
	if err := json.Unmarshal(text, &header); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := oauth.NewAdmin(storage.New(pool), oauth.DefaultConfig()).RevokeKey(t.Context(), header.Kid); err != nil {
		t.Fatal(err)
	}
	soon(t, "the stream has ended", func() bool {
		select {
		case _, open := <-stream.events:
			return !open
		default:
			return false
		}
	})
	backend.get("/Patient").want(401)
	b.bearer(token).get("/Patient").want(401)
	again := a.bearer(a.backendToken("backend", "system/*.cruds"))
	soon(t, "the Subscription is off", func() bool { return again.get("/Subscription/"+id).want(200).str("status") == "off" })
}
