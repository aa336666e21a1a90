package subscription

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/outcome"
	"kiln/server/store"
)

// A Reader reads Subscriptions and their topics. Its fields are set before its first use.
type Reader struct {
	Store *store.Store
	// Interactions has the search parameters, and the rights of requests.
	Interactions *interaction.Service
	Rights       owner.Rights // nil: everybody may read everything
	Evaluator    *matching.Evaluator
	Log          *slog.Logger
	// CheckEndpoint refuses an endpoint that no message may be sent to.
	CheckEndpoint func(u *url.URL) error

	topics knownTopics
}

// Decode reads a Subscription as it is stored.
func (s *Reader) Decode(body []byte) (*r4.Subscription, error) {
	r, err := fhir.Decode(s.Interactions.Model, body)
	if err != nil {
		return nil, err
	}
	sub, ok := r.(*r4.Subscription)
	if !ok {
		return nil, fmt.Errorf("a %s where a Subscription was expected", r.Type().Name)
	}
	return sub, nil
}

// CompileStored compiles one of some Subscriptions that were read.
func (s *Reader) CompileStored(ctx context.Context, id string, versions map[string]fhir.Version) (*Subscription, error) {
	v, ok := versions[id]
	if !ok {
		return nil, outcome.NotFound("Subscription", id)
	}
	r, err := s.Decode(v.Body)
	if err != nil {
		return nil, err
	}
	return s.Compile(ctx, id, r)
}

// Read compiles a Subscription as it is stored.
func (s *Reader) Read(ctx context.Context, id string) (*Subscription, error) {
	v, err := s.Store.Read(ctx, "Subscription", id)
	if err != nil {
		return nil, err
	}
	r, err := s.Decode(v.Body)
	if err != nil {
		return nil, err
	}
	return s.Compile(ctx, id, r)
}

// ReadVisible returns the row of a Subscription that the caller may read.
func (s *Reader) ReadVisible(ctx context.Context, i access.Interaction, id string) (db.SubscriptionRow, fhir.Version, error) {
	if err := s.Interactions.CheckAllowed(ctx, i, "Subscription", id); err != nil {
		return db.SubscriptionRow{}, fhir.Version{}, err
	}
	v, err := s.Store.Read(ctx, "Subscription", id)
	if err != nil {
		return db.SubscriptionRow{}, v, err
	}
	if p := access.PrincipalFrom(ctx); s.Rights != nil && p != nil && !p.IsOpen() {
		seen, err := s.Rights.Sees(ctx, p, v, s.Evaluator.IndexEntries(v))
		if err == nil && !seen {
			err = outcome.NotFound("Subscription", id)
		}
		if err != nil {
			return db.SubscriptionRow{}, v, err
		}
	}
	row, err := db.New(s.Store.Pool()).Subscription(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		// It was stored before this server knew what to do with it.
		row, err = db.SubscriptionRow{ID: id, Status: Off}, nil
	}
	return row, v, err
}
