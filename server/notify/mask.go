package notify

import (
	"context"
	"strings"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/owner"
	"kiln/server/store"
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
	p := access.PrincipalFrom(ctx)
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
		if owner.Decode(r.Owner).IsPrincipal(p) {
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
	r, err := s.decodeSubscription(body)
	if err != nil || r.Channel == nil || len(r.Channel.Header) == 0 {
		return body
	}
	for i := range r.Channel.Header {
		r.Channel.Header[i].Text = maskHeader(r.Channel.Header[i].Text)
	}
	return fhir.Encode(nil, r)
}

// maskHeaders is a version as whatever tells of events has it: nobody reads headers there, and no
// expression tests them, where there is authorization.
func (s *Service) maskHeaders(v fhir.Version) fhir.Version {
	if s.Rights != nil && v.ResourceType == "Subscription" && len(v.Body) > 0 {
		v.Body = s.maskBody(v.Body)
	}
	return v
}

// readVersions reads versions that events are about.
func (s *Service) readVersions(ctx context.Context, keys []store.VersionKey, types map[int64]string) (map[store.VersionKey]fhir.Version, error) {
	versions, err := s.Store.ChangedVersions(ctx, keys, types)
	for key, v := range versions {
		if v.ResourceType == "Subscription" {
			versions[key] = s.maskHeaders(v)
		}
	}
	return versions, err
}

// ownership is the effect of a write on the owner of a Subscription: store.Write.Note.
type ownership struct{ keep bool }

// isForeign reports whether a Subscription that is stored belongs to somebody else than whoever
// writes it.
func (s *Service) isForeign(ctx context.Context, id string) (bool, error) {
	p := access.PrincipalFrom(ctx)
	if s.Rights == nil || p == nil || p.IsOpen() {
		return false, nil
	}
	rows, err := s.db().SubscriptionOwners(ctx, []string{id})
	return err == nil && (len(rows) == 0 || !owner.Decode(rows[0].Owner).IsPrincipal(p)), err
}

// unmask replaces the headers of r that came back masked by the stored ones of was, and
// refuses to hand the headers of one owner over to another.
func unmask(r, was *r4.Subscription, foreign bool) (ownership, error) {
	if r.Channel == nil || len(r.Channel.Header) == 0 && (was == nil || was.Channel == nil) {
		return ownership{}, nil
	}
	stored := make(map[string][]string) // by their masked texts
	if was != nil && was.Channel != nil {
		for i := range was.Channel.Header {
			text := was.Channel.Header[i].Text
			stored[maskHeader(text)] = append(stored[maskHeader(text)], text)
		}
	}
	restored := 0
	for i := range r.Channel.Header {
		h := &r.Channel.Header[i]
		if !isMasked(h.Text) {
			continue
		}
		texts := stored[maskHeader(h.Text)]
		if len(texts) == 0 {
			return ownership{}, unprocessable("Subscription.channel.header", "value", "the value of a header is masked, and there is none in its place: send it in full")
		}
		h.Text, stored[maskHeader(h.Text)] = texts[0], texts[1:]
		restored++
	}
	if !foreign {
		return ownership{}, nil
	}
	// The owner after a write must not reveal whether a header that a client sends in full
	// is the stored one.
	if r.Status.Text == statusOff && restored == len(r.Channel.Header) && sameChannel(r, was) {
		return ownership{keep: true}, nil // nothing is sent on behalf of anybody
	}
	if restored > 0 {
		return ownership{}, unprocessable("Subscription.channel.header", "forbidden",
			"the values of the headers are known to the owner of the subscription only: send them in full, or switch it off and change nothing else")
	}
	return ownership{}, nil
}
