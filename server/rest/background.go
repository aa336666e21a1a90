package rest

import (
	"context"
	"net/http"
	"net/url"

	"kiln/server/interaction"
	"kiln/server/web"
)

// Background starts jobs for requests that are answered later: $export, $import, and the searches
// and $everything with Prefer: respond-async.
type Background interface {
	// KickOff checks a request, starts its job and answers.
	KickOff(ctx context.Context, x *web.Exchange, r *http.Request, k KickOff)
	// Serves reports whether an operation is always asynchronous, and where.
	Serves(name, typ, id string) bool
}

// KickOff is a request that is answered later.
type KickOff struct {
	Operation        string // $export, $import, $everything; "" for a search
	ResourceType, ID string
	Base             string // URL that links begin with
	Values           url.Values
	Body             []byte // nil where the Background reads it
	Search           interaction.SearchParams
	Lenient          bool
	// Note records parameters of the request in its AuditEvent; nil where there is none.
	Note func(parameters []byte)
}

// kickOff hands a request to the Background.
func (c *call) kickOff(r *http.Request, k KickOff) {
	k.Base = c.baseURL(r)
	c.h.Background.KickOff(c.ctx, c.Exchange, r, k)
}

// Streamed answers operations whose answers are no resources and are written while they are made: $sql-run.
type Streamed interface {
	// Answer answers a request; it reads the body.
	Answer(ctx context.Context, x *web.Exchange, r *http.Request, k KickOff)
	// Serves reports whether an operation is one of these, and where.
	Serves(name, typ, id string) bool
}
