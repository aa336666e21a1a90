package interaction

import (
	"context"

	"kiln/server/fhir"
)

// Mask removes from versions of its resource type the parts that the principal of ctx may
// not read. It replaces the body of a version that it changes.
type Mask func(ctx context.Context, versions []fhir.Version) error

// Mask applies the Masks of their types to versions that are sent to the principal of
// ctx.
func (s *Service) Mask(ctx context.Context, versions []fhir.Version) error {
	for typ, mask := range s.Masks {
		var at []int
		var some []fhir.Version
		for i, v := range versions {
			if v.ResourceType == typ && len(v.Body) > 0 {
				at, some = append(at, i), append(some, v)
			}
		}
		if len(some) == 0 {
			continue
		}
		if err := mask(ctx, some); err != nil {
			return err
		}
		for i, v := range some {
			versions[at[i]] = v
		}
	}
	return nil
}

// maskVersion is Mask for one version.
func (s *Service) maskVersion(ctx context.Context, v fhir.Version) (fhir.Version, error) {
	if s.Masks[v.ResourceType] == nil {
		return v, nil
	}
	one := [1]fhir.Version{v}
	err := s.Mask(ctx, one[:])
	return one[0], err
}
