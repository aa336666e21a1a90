package notify

import (
	"context"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/notify/owner"
)

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
		versions[i].Body = s.subscriptions.MaskBody(v.Body)
	}
	return nil
}

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
