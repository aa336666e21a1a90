package cache

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kiln/server/fhir"
	"kiln/server/search/match"
)

// MaxCatchUp is the largest number of changed resources that are applied in parts, to an item not yet cached or to a
// cache that has fallen behind. After more changes the cache is cleared.
const MaxCatchUp = 1_000_000

// unlogged are the resource types with versions that have no row in the change log (store.Write.Unlogged).
var unlogged = []string{"AuditEvent"}

// FollowsType reports whether a cache can follow the changes of a resource type. It cannot if versions of the type may
// have no row in the change log.
func FollowsType(name string) bool { return !slices.Contains(unlogged, name) }

// A Position is where changes are read from.
type Position struct {
	State string
	Types []int16 // whose changes are read
	// Written are rows of the change log that this server writes. No more is read of them than that they are there.
	Written []*Written

	names map[int16]string // of Types
}

// Changes are the resources that have changed since a position, as plan.SelectChanges reads them.
type Changes struct {
	Position
	Followed bool // they can be followed at all
	Many     bool // more than are read at once, or it cannot be told which
	// Rows are the present rows of Written, each as rid/version, separated by commas; a space; and a JSON array
	// of changed, or nothing. "" for no change.
	Rows string
	Now  string

	own []*Written // the writes in Rows
}

// changed is a resource as its rows are: without ID where it is gone.
type changed struct {
	RID     int64   `json:"r"`
	ID      *string `json:"i"`
	Version int     `json:"v"`
	Updated int64   `json:"u"` // microseconds
	Terms   []int64 `json:"t"`
	Targets []int64 `json:"g"`
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

// resources are those that have changed; false where it is not known whether all were committed. Rows
// that cannot be read cannot be followed. It waits for a commit under way, and is called without a
// lock.
func (c *Changes) resources() (all map[int64]*match.Resource, ok bool) {
	if c.Rows == "" {
		return nil, true
	}
	own, others, _ := strings.Cut(c.Rows, " ")
	all, err := parseChanged(others, c.names)
	if err != nil {
		c.Followed = false
		return nil, true
	}
	if own == "" {
		return all, true
	}
	rows := make(map[rowKey]*Written, len(c.Written))
	n := 0
	for _, v := range c.Written {
		rows[v.key()] = v
		n += len(v.versions)
	}
	if len(all) == 0 {
		all = make(map[int64]*match.Resource, n)
	}
	versions := make(map[int64]int, n) // of those that own rows have
	for text := range strings.SplitSeq(own, ",") {
		rid, version, _ := strings.Cut(text, "/")
		r, err1 := strconv.ParseInt(rid, 10, 64)
		n, err2 := strconv.ParseInt(version, 10, 32)
		if err1 != nil || err2 != nil {
			c.Followed = false
			return nil, true
		}
		v := rows[rowKey{r, int32(n)}]
		if v == nil || !v.by.wait() { // another server may have written that version then
			return nil, false
		}
		c.own = append(c.own, v)
		for _, w := range v.versions {
			last, has := versions[w.rid]
			if _, read := all[w.rid]; has && last < w.version || !has && !read { // the statement read the present version
				all[w.rid], versions[w.rid] = w.r, w.version
			}
		}
	}
	return all, true
}

// parseChanged reads a JSON array of changed, "" for an empty one. A resource that is gone is nil.
func parseChanged(rows string, names map[int16]string) (map[int64]*match.Resource, error) {
	var list []changed
	if rows != "" {
		if err := json.Unmarshal([]byte(rows), &list); err != nil {
			return nil, fmt.Errorf("read changed resources: %w", err)
		}
	}
	out := Stored{names: names, all: make(map[int64]*match.Resource, len(list))}
	for i := range list {
		c := &list[i]
		if c.ID == nil {
			out.all[c.RID] = nil
			continue
		}
		out.AddResource(c.RID, *c.ID, c.Version, c.Updated, c.Terms, c.Targets)
		for _, e := range c.Dates {
			out.AddDate(c.RID, e.Key, e.Low, e.High)
		}
		for _, e := range c.Numbers {
			out.AddNumber(c.RID, e.Key, e.Low, e.High)
		}
		for _, e := range c.Quantities {
			out.AddQuantity(c.RID, e.Key, e.Low, e.High, e.System, e.Code, e.Unit)
		}
		for _, e := range c.Strings {
			out.AddString(c.RID, e.Key, e.Text)
		}
	}
	return out.all, nil
}

// Stored are some stored resources, made of their rows: the row of the resource table comes before the index
// entries. A resource without one is deleted.
type Stored struct {
	names map[int16]string // of the types
	all   map[int64]*match.Resource
}

func newStored(rids []int64, names map[int16]string) *Stored {
	s := &Stored{names: names, all: make(map[int64]*match.Resource, len(rids))}
	for _, rid := range rids {
		s.all[rid] = nil
	}
	return s
}

// AddResource adds a present resource, last updated so many microseconds since 1970. It keeps targets.
func (s *Stored) AddResource(rid int64, id string, version int, updated int64, terms, targets []int64) {
	s.all[rid] = &match.Resource{Type: s.names[int16(rid>>48)], ID: id, VersionID: version, LastUpdated: time.UnixMicro(updated).UTC(), Index: newIndex(terms, targets, updated, 0)}
}

// index returns the index of a resource; entries of a deleted one are dropped.
func (s *Stored) index(rid int64) *fhir.Index {
	if r := s.all[rid]; r != nil {
		return r.Index
	}
	return new(fhir.Index)
}

// AddDate adds an entry of index_date.
func (s *Stored) AddDate(rid, key, low, high int64) {
	x := s.index(rid)
	x.Dates = append(x.Dates, fhir.DateEntry{Key: match.EntryKey(key, rid), Low: low, High: high})
}

// AddNumber adds an entry of index_number, its ends as PostgreSQL writes them.
func (s *Stored) AddNumber(rid, key int64, low, high string) {
	x := s.index(rid)
	x.Numbers = append(x.Numbers, fhir.NumberEntry{Key: fhir.Key(key), Low: low, High: high})
}

// AddQuantity adds an entry of index_quantity, its ends as PostgreSQL writes them.
func (s *Stored) AddQuantity(rid, key int64, low, high, system, code, unit string) {
	x := s.index(rid)
	x.Quantities = append(x.Quantities, fhir.QuantityEntry{Key: match.EntryKey(key, rid), Low: low, High: high, System: system, Code: code, Unit: unit})
}

// AddString adds an entry of index_string.
func (s *Stored) AddString(rid, key int64, text string) {
	x := s.index(rid)
	x.Strings = append(x.Strings, fhir.StringEntry{Key: fhir.Key(key), Text: text})
}

// version tells the versions of a resource apart.
type version struct {
	id int
	at int64 // microseconds
}

func versionOf(r *match.Resource) version { return version{r.VersionID, r.LastUpdated.UnixMicro()} }
