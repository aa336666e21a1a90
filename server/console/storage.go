package console

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"time"
)

// storageStats are the figures of the region Storage. They are read again when they are old, while a page shows the old
// ones: they cost PostgreSQL a look at every table.
type storageStats struct {
	mu      sync.Mutex
	now     *storageFigures
	reading bool
}

type storageFigures struct {
	at      time.Time
	bytes   int64
	version string
	tables  []storageTable
}

type storageTable struct {
	name        string
	bytes, rows int64
}

// storageFresh is the age at which the figures are read again.
const storageFresh = 30 * time.Second

// read returns the figures. The first visit of a server waits for them.
func (s *storageStats) read(v *visit) (*storageFigures, error) {
	s.mu.Lock()
	now := s.now
	if now != nil && v.c.now().Sub(now.at) > storageFresh && !s.reading {
		s.reading = true
		old := *v
		old.r = v.r.Clone(v.c.background)
		go func() {
			fresh, err := readStorage(&old)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reading = false
			if err == nil {
				s.now = fresh
			}
		}()
	}
	s.mu.Unlock()
	if now != nil {
		return now, nil
	}
	fresh, err := readStorage(v)
	if err == nil {
		s.mu.Lock()
		s.now = fresh
		s.mu.Unlock()
	}
	return fresh, err
}

// readStorage asks the server for the figures.
func readStorage(v *visit) (*storageFigures, error) {
	var stats json.RawMessage
	if err := v.get("/admin/db/stats", &stats); err != nil {
		return nil, err
	}
	n, err := parseTree(stats)
	if err != nil {
		return nil, err
	}
	database := n.get("database")
	if database == nil {
		database = n
	}
	f := &storageFigures{at: v.c.now(), version: database.str("version"), bytes: integer(database.str("bytes"))}
	for _, t := range database.get("tables").items() {
		x := storageTable{name: t.str("name"), bytes: integer(t.str("bytes")), rows: integer(t.str("rows"))}
		f.tables = append(f.tables, x)
	}
	slices.SortFunc(f.tables, func(a, b storageTable) int { return cmp.Compare(b.bytes, a.bytes) })
	f.tables = f.tables[:min(len(f.tables), 6)]
	return f, nil
}

// integer reads a count, 0 where the text is none.
func integer(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
