package notify

import (
	"context"
	"testing"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/config"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/smart"
)

// counted are Rights to see Observations. They count the questions.
type counted struct{ asked int }

func (*counted) Principal(context.Context, owner.Owner) (*access.Principal, error) { return nil, nil }

func (c *counted) Sees(ctx context.Context, p *access.Principal, v fhir.Version, _ *fhir.Index) (bool, error) {
	c.asked++
	return access.PrincipalFrom(ctx) == p && v.ResourceType == "Observation", nil
}

// Contract, Notifications 2, Access: the rights of an owner on an event are checked once
// for all Subscriptions with the same rights, and never for an owner without limits.
func TestSightsAreAskedOnce(t *testing.T) {
	rights := new(counted)
	s := New(Parts{Rights: rights, Settings: func() *config.Config { return new(config.Config) }})
	r := s.readers()[0]
	owner := func(scopes, token string) *matching.Subscriber {
		parsed, err := smart.Parse(scopes)
		if err != nil {
			t.Fatal(err)
		}
		return &matching.Subscriber{Principal: r.share(&access.Principal{Subject: "a", ClientID: "a", Scopes: parsed, TokenID: token})}
	}
	subscribers := []*matching.Subscriber{
		owner("user/Observation.rs", "1"), owner("user/Observation.rs", "2"), owner("user/*.rs", "1"), owner("user/*.rs", "2"),
		{}, {Principal: r.share(access.Open)},
	}
	e := s.evaluator()
	x := e.NewSights(t.Context())
	for i, c := range []struct {
		event *matching.Event
		sees  int
		asked int
	}{
		{&matching.Event{Kind: matching.Create, Version: fhir.Version{ResourceType: "Observation"}}, 6, 2},
		{&matching.Event{Kind: matching.Create, Version: fhir.Version{ResourceType: "Patient"}}, 2, 2},
		{&matching.Event{Kind: matching.Delete, Version: fhir.Version{ResourceType: "Observation"}, Previous: fhir.Version{ResourceType: "Patient"}}, 2, 2},
	} {
		sees := 0
		rights.asked = 0
		for range 2 {
			for _, sub := range subscribers {
				if x.MayHear(sub, c.event) {
					sees++
				}
			}
		}
		if sees != 2*c.sees || rights.asked != c.asked {
			t.Errorf("event %d: %d see it, and %d were asked about, want %d and %d", i, sees/2, rights.asked, c.sees, c.asked)
		}
	}
}
