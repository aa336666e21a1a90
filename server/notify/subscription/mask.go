package subscription

import (
	"context"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
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

// MaskBody returns a Subscription with masked headers; one that cannot be read has none
// that anybody would.
func (s *Reader) MaskBody(body []byte) []byte {
	r, err := s.Decode(body)
	if err != nil || r.Channel == nil || len(r.Channel.Header) == 0 {
		return body
	}
	for i := range r.Channel.Header {
		r.Channel.Header[i].Text = maskHeader(r.Channel.Header[i].Text)
	}
	return fhir.Encode(nil, r)
}

// MaskHeaders is a version as whatever tells of events has it: nobody reads headers there, and no
// expression tests them, where there is authorization.
func (s *Reader) MaskHeaders(v fhir.Version) fhir.Version {
	if s.Rights != nil && v.ResourceType == "Subscription" && len(v.Body) > 0 {
		v.Body = s.MaskBody(v.Body)
	}
	return v
}

// ReadVersions reads versions that events are about.
func (s *Reader) ReadVersions(ctx context.Context, keys []store.VersionKey, types map[int64]string) (map[store.VersionKey]fhir.Version, error) {
	versions, err := s.Store.ChangedVersions(ctx, keys, types)
	for key, v := range versions {
		if v.ResourceType == "Subscription" {
			versions[key] = s.MaskHeaders(v)
		}
	}
	return versions, err
}

// Ownership is the effect of a write on the owner of a Subscription: store.Write.Note.
type Ownership struct{ Keep bool } // Keep: the owner stays

// RestoreHeaders replaces the headers of r that came back masked by the stored ones of was, and
// refuses to hand the headers of one owner over to another.
func RestoreHeaders(r, was *r4.Subscription, foreign bool) (Ownership, error) {
	if r.Channel == nil || len(r.Channel.Header) == 0 && (was == nil || was.Channel == nil) {
		return Ownership{}, nil
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
			return Ownership{}, Unprocessable("Subscription.channel.header", "value", "the value of a header is masked, and there is none in its place: send it in full")
		}
		h.Text, stored[maskHeader(h.Text)] = texts[0], texts[1:]
		restored++
	}
	if !foreign {
		return Ownership{}, nil
	}
	// The owner after a write must not reveal whether a header that a client sends in full
	// is the stored one.
	if r.Status.Text == Off && restored == len(r.Channel.Header) && HasSameChannel(r, was) {
		return Ownership{Keep: true}, nil // nothing is sent on behalf of anybody
	}
	if restored > 0 {
		return Ownership{}, Unprocessable("Subscription.channel.header", "forbidden",
			"the values of the headers are known to the owner of the subscription only: send them in full, or switch it off and change nothing else")
	}
	return Ownership{}, nil
}
