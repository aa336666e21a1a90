package remembered

import (
	"encoding/json"
	"fmt"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// MaxChanges is the number of changed resources that are brought in at once; after more
// of them everything is forgotten.
const MaxChanges = 4000

// MaxBrought is the number of changed resources that are brought into what has been found,
// and is not remembered yet.
const MaxBrought = 50_000

// Changes are the resources of some types that have changed between two states, as
// plan.Changes reads them.
type Changes struct {
	Since    string
	Types    []int16
	Followed bool   // they can be followed at all
	Rows     string // a JSON array of changed, "" for none
	Now      string
}

// changed is a resource as its rows are: without ID where it is gone.
type changed struct {
	RID     int64   `json:"r"`
	ID      *string `json:"i"`
	Version int     `json:"v"`
	Updated int64   `json:"u"` // microseconds
	Terms   []int64 `json:"t"`
	Dates   []struct {
		Key, Low, High int64
	} `json:"d"`
	Numbers []struct {
		Key       int64
		Low, High string
	} `json:"n"`
	Quantities []struct {
		Key                int64
		Low, High          string
		System, Code, Unit string
	} `json:"q"`
	Strings []struct {
		Key  int64
		Text string
	} `json:"s"`
}

// parseChanges reads Changes.Rows. A resource that is gone is nil.
func parseChanges(rows string, typeName func(int16) string) (map[int64]*match.Resource, error) {
	if rows == "" {
		return nil, nil
	}
	var all []changed
	if err := json.Unmarshal([]byte(rows), &all); err != nil {
		return nil, fmt.Errorf("read changed resources: %w", err)
	}
	out := make(map[int64]*match.Resource, len(all))
	for i := range all {
		c := &all[i]
		if c.ID == nil {
			out[c.RID] = nil
			continue
		}
		x := &fhir.Index{Terms: c.Terms}
		for _, e := range c.Dates {
			x.Dates = append(x.Dates, fhir.DateEntry{Key: fhir.Key(e.Key), Low: e.Low, High: e.High})
		}
		for _, e := range c.Numbers {
			x.Numbers = append(x.Numbers, fhir.NumberEntry{Key: fhir.Key(e.Key), Low: e.Low, High: e.High})
		}
		for _, e := range c.Quantities {
			x.Quantities = append(x.Quantities, fhir.QuantityEntry{Key: fhir.Key(e.Key), Low: e.Low, High: e.High, System: e.System, Code: e.Code, Unit: e.Unit})
		}
		for _, e := range c.Strings {
			x.Strings = append(x.Strings, fhir.StringEntry{Key: fhir.Key(e.Key), Text: e.Text})
		}
		out[c.RID] = &match.Resource{Type: typeName(int16(c.RID >> 48)), ID: *c.ID, VersionID: c.Version, LastUpdated: time.UnixMicro(c.Updated).UTC(), Index: x}
	}
	return out, nil
}

// number is the part of a surrogate that tells resources of a type apart; false where
// it is beyond what sets hold.
func number(rid int64) (uint32, bool) {
	n := rid & (1<<48 - 1)
	return uint32(n), n>>32 == 0
}
