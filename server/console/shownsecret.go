package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
)

// secretLasts is how long a secret waits for the page that shows it.
const secretLasts = 2 * time.Minute

// sealedSecret is a secret in the database. Only the browser with the cookie of the session can open it.
type sealedSecret struct{ Sealed string }

// secretSession is the session in the row of a secret. It keeps secrets apart from the requests of the session.
func (v *visit) secretSession() string { return "secret " + v.sessionID() }

// secretSealer encrypts secrets of the session. Its key is derived from the cookie, which the database does not have.
func (v *visit) secretSealer() (*sealer, error) {
	return newSealer([]byte(v.c.seal.token("secret", v.cookie)))
}

// doneWithSecret ends an action that has made a secret: the next page shows the message and the secret, once.
func (v *visit) doneWithSecret(to, message, secret string) error {
	seal, err := v.secretSealer()
	if err != nil {
		return err
	}
	row, err := json.Marshal(sealedSecret{seal.seal("secret", secret)})
	if err != nil {
		return err
	}
	id := random()
	if err := v.c.DB().AddConsoleRequest(v.r.Context(), db.AddConsoleRequestParams{ID: id, Session: v.secretSession(), At: v.c.now(), Request: row}); err != nil {
		return err
	}
	v.c.sweepSecrets()
	time.AfterFunc(secretLasts+time.Second, v.c.sweepSecrets)
	return v.done(to+"?"+url.Values{"secret": {id}}.Encode(), message)
}

// sweepSecrets deletes old secrets. showSecret shows none of those that a failure leaves.
func (c *Console) sweepSecrets() {
	_ = c.DB().SweepConsoleSecrets(c.background, c.now().Add(-secretLasts)) // the next one deletes them
}

// showSecret adds the secret of the address to a page, and deletes it. Loading the page again says that it was shown.
func (v *visit) showSecret(p *panel) error {
	id := v.r.URL.Query().Get("secret")
	if id == "" || v.r.Method != http.MethodGet {
		return nil
	}
	row, err := v.c.DB().TakeConsoleRequest(context.WithoutCancel(v.r.Context()), db.TakeConsoleRequestParams{ID: id, Session: v.secretSession()})
	if errors.Is(err, pgx.ErrNoRows) {
		p.Note = v.T("The secret was shown once. It cannot be shown again.")
		return nil
	}
	if err != nil {
		return err
	}
	seal, err := v.secretSealer()
	if err != nil {
		return err
	}
	var kept sealedSecret
	if err := json.Unmarshal(row.Request, &kept); err != nil {
		return err
	}
	text, ok := seal.open("secret", kept.Sealed)
	if !ok || v.c.now().Sub(row.At) > secretLasts {
		p.Note = v.T("The secret was shown once. It cannot be shown again.")
		return nil
	}
	p.Secret = text
	return nil
}
