package strategy

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"kiln/server/search/match"
)

// memory is what a server remembers of searches beside package remembered: totals and
// orders, each valid as long as nothing has changed; which drivers overflowed; and the
// units in use. The database has all of it too.
type memory struct {
	mu      sync.Mutex
	totals  map[totalKey]total
	drivers map[totalKey]time.Time // when a driver overflowed
	limit   int                    // Env.Limit

	orders orders

	units atomic.Pointer[unitsSeen]

	totalsCount, queriesCount counter
}

type totalKey [16]byte

// total is a number of matches and the snapshot in which it was counted.
type total struct {
	n        int64
	snapshot string
	at       time.Time
}

// What is remembered is bounded in number and in age: the change log is not kept
// for ever, and what was common may have become rare.
const (
	rememberedSearches = 4096
	rememberedFor      = time.Minute
)

func keyOf(st match.Statement) totalKey {
	h := sha256.New()
	h.Write([]byte(st.SQL))
	var buf []byte
	for _, a := range st.Args {
		switch a := a.(type) {
		case int64:
			buf = binary.BigEndian.AppendUint64(append(buf, 'i'), uint64(a))
		case []int64:
			buf = append(buf, 'I')
			for _, v := range a {
				buf = binary.BigEndian.AppendUint64(buf, uint64(v))
			}
		default:
			buf = fmt.Appendf(append(buf, 'v'), "%q", a)
		}
		buf = append(buf, 0)
	}
	h.Write(buf)
	var k totalKey
	copy(k[:], h.Sum(nil))
	return k
}

func (m *memory) total(k totalKey, now time.Time) (total, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.totals[k]
	ok = ok && now.Sub(t.at) < rememberedFor
	m.totalsCount.looked(ok)
	return t, ok
}

func (m *memory) keep(k totalKey, t total) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.totals == nil || len(m.totals) >= rememberedSearches {
		m.totalsCount.evictions.Add(uint64(len(m.totals)))
		m.totals = make(map[totalKey]total)
	}
	m.totals[k] = t
}

// overflows reports whether a driver has overflowed of late.
func (m *memory) overflows(k totalKey, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.drivers[k]
	ok = ok && now.Sub(at) < rememberedFor
	m.queriesCount.looked(ok)
	return ok
}

func (m *memory) overflowed(k totalKey, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drivers == nil || len(m.drivers) >= rememberedSearches {
		m.drivers = make(map[totalKey]time.Time)
	}
	m.drivers[k] = now
}
