package notify

import (
	"context"
	"strings"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
)

// masked stands for the value of a header that somebody may not read.
const masked = "********"

// maskHeader is a channel.header without its value.
func maskHeader(text string) string {
	name, _, _ := strings.Cut(text, ":")
	return name + ": " + masked
}

// isMasked reports whether a channel.header came from a Subscription that was read masked.
func isMasked(text string) bool {
	_, value, _ := strings.Cut(text, ":")
	return strings.TrimSpace(value) == masked
}

// Mask is the interaction.Mask of Subscriptions: what channel.header holds is for the owner alone, and
// of versions from before the owner for nobody.
func (s *Service) Mask(ctx context.Context, versions []fhir.Version) error {
	p := access.From(ctx)
	var ids []string
	for _, v := range versions {
		ids = append(ids, v.ID)
	}
	rows, err := s.db().SubscriptionOwners(ctx, ids)
	if err != nil {
		return err
	}
	from := make(map[string]int, len(rows)) // version from which on it is p's
	for _, r := range rows {
		if readOwner(r.Owner).is(p) {
			from[r.ID] = int(r.OwnedFrom)
		}
	}
	for i, v := range versions {
		if first, mine := from[v.ID]; mine && v.VersionID >= first {
			continue
		}
		versions[i].Body = s.maskBody(v.Body)
	}
	return nil
}

// maskBody returns a Subscription with masked headers; one that cannot be read has none
// that anybody would.
func (s *Service) maskBody(body []byte) []byte {
	r, err := s.decode(body)
	if err != nil || r.Channel == nil || len(r.Channel.Header) == 0 {
		return body
	}
	for i := range r.Channel.Header {
		r.Channel.Header[i].Text = maskHeader(r.Channel.Header[i].Text)
	}
	return fhir.Encode(nil, r)
}

// shown is the body of a version as notifications tell of it: nobody reads headers there
// where there is authorization.
func (s *Service) shown(v fhir.Version) []byte {
	if s.Rights == nil || v.ResourceType != "Subscription" || len(v.Body) == 0 {
		return v.Body
	}
	return s.maskBody(v.Body)
}

// is reports whether p is the owner; nobody owns what was written without authorization.
func (o Owner) is(p *access.Principal) bool {
	return p != nil && !p.IsOpen() && o.Subject+o.Client != "" && o.Subject == p.Subject && o.Client == p.ClientID
}

// ownership is what a write does to the owner of a Subscription: store.Write.Note.
type ownership struct{ keep bool }

// unmask takes the headers that came back masked from what is stored, and refuses to hand
// somebody else's on to a new owner. patched says that r was made of was.
func (s *Service) unmask(ctx context.Context, id string, r, was *r4.Subscription, patched bool) (ownership, error) {
	if r.Channel == nil || len(r.Channel.Header) == 0 && (was == nil || was.Channel == nil) {
		return ownership{}, nil
	}
	p := access.From(ctx)
	foreign := false
	if was != nil && s.Rights != nil && p != nil && !p.IsOpen() {
		rows, err := s.db().SubscriptionOwners(ctx, []string{id})
		if err != nil {
			return ownership{}, err
		}
		foreign = len(rows) == 0 || !readOwner(rows[0].Owner).is(p)
	}
	stored := make(map[string]string)
	if was != nil && was.Channel != nil {
		for i := range was.Channel.Header {
			text := was.Channel.Header[i].Text
			stored[maskHeader(text)] = text
		}
	}
	restored := false
	for i := range r.Channel.Header {
		h := &r.Channel.Header[i]
		if text, ok := stored[maskHeader(h.Text)]; isMasked(h.Text) && ok {
			h.Text, restored = text, true
		} else if isMasked(h.Text) {
			return ownership{}, unprocessable("Subscription.channel.header", "value", "the value of a header is masked, and there is none in its place: send it in full")
		} else if patched && ok && text == h.Text {
			restored = true
		}
	}
	if !foreign {
		return ownership{}, nil
	}
	if r.Status.Text == "off" && same(r, was) {
		return ownership{keep: true}, nil // nothing is sent on behalf of anybody
	}
	if restored {
		return ownership{}, unprocessable("Subscription.channel.header", "forbidden",
			"the values of the headers are known to the owner of the subscription only: send them in full, or switch it off and change nothing else")
	}
	return ownership{}, nil
}
