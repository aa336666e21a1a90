package recent

import (
	"slices"
	"sync/atomic"

	"kiln/server/search/match"
)

// Units are committed units of quantities, with their ids. They are not changed.
type Units struct {
	IDs   []int64
	Units []match.Unit
}

// WithUnits returns the units with more of them.
func (u *Units) WithUnits(more []match.Unit) *Units {
	out := &Units{IDs: slices.Clone(u.IDs), Units: append(slices.Clone(u.Units), more...)}
	for _, m := range more {
		out.IDs = append(out.IDs, m.ID)
	}
	return out
}

// UnitCache contains the units that searches have read. The zero value is empty. It is safe for concurrent use.
type UnitCache struct{ units atomic.Pointer[Units] }

// FindUnits returns the units; nil before the first StoreUnits.
func (c *UnitCache) FindUnits() *Units { return c.units.Load() }

// StoreUnits replaces the units.
func (c *UnitCache) StoreUnits(u *Units) { c.units.Store(u) }
