package terminology

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/maypok86/otter/v2"
	"github.com/maypok86/otter/v2/stats"
	"golang.org/x/sync/singleflight"
)

// Expansions are cached in two places. Service.expansions contains those made of local definitions, by generation: they
// are valid until a terminology resource is written. The expansionCache of this file contains those of the external
// server, and its other answers: they are valid for terminology.cache_ttl_secs.

// Bounds of the two caches, in bytes.
const (
	expansionBytes = 6 << 20  // of local expansions
	answerBytes    = 16 << 20 // of the external server's answers, compressed
)

// newLocalExpansions returns the cache of expansions made of local definitions.
func newLocalExpansions() *otter.Cache[key, *expansion] {
	return otter.Must(&otter.Options[key, *expansion]{
		StatsRecorder: stats.NewCounter(),
		MaximumWeight: expansionBytes,
		Weigher:       func(_ key, e *expansion) uint32 { return uint32(min(e.size(), expansionBytes)) },
	})
}

// cachedExpansion returns the expansion of a value set, by its canonical URL, that was made
// in this snapshot before; nil where there is none.
func (e *evaluation) cachedExpansion(name string) *expansion {
	x, _ := e.expansions.GetIfPresent(e.expansionKey(name))
	return x
}

// cacheExpansion keeps an expansion for others; not one with codes of the external server,
// whose answers have a lifetime of their own.
func (e *evaluation) cacheExpansion(name string, x *expansion) {
	if !x.foreign {
		e.expansions.Set(e.expansionKey(name), x)
	}
}

// expansionKey tells a lenient expansion, which may have gaps, from a strict one.
func (e *evaluation) expansionKey(name string) key {
	if e.lenient {
		return key{e.number, "lenient " + name}
	}
	return key{e.number, "strict " + name}
}

// Answers stores the answers of an external server for all instances.
type Answers interface {
	// TerminologyAnswer returns the body stored under key, nil for none.
	TerminologyAnswer(ctx context.Context, key int64) (body []byte, fetched time.Time, err error)
	// PutTerminologyAnswer keeps an answer; a later one replaces it.
	PutTerminologyAnswer(ctx context.Context, key int64, body []byte, fetched time.Time) error
}

// expansionCache caches the answers of the external terminology server: whole expansions, pages of them, and answers
// about single codes. All are in memory. Whole expansions are also in PostgreSQL, which all instances
// share and which survives a restart.
type expansionCache struct {
	base    string        // of the server: answers of another one do not count
	ttl     time.Duration // how long an answer is good without being asked for again
	shared  Answers       // nil is memory only
	memory  *otter.Cache[int64, *answer]
	flights singleflight.Group
	now     func() time.Time
	log     *slog.Logger
}

func newExpansionCache(base string, ttl time.Duration, c Config) *expansionCache {
	return &expansionCache{base: base, ttl: ttl, shared: c.Answers, now: c.Now, log: c.Logger,
		memory: otter.Must(&otter.Options[int64, *answer]{
			MaximumWeight: answerBytes,
			Weigher:       func(_ int64, a *answer) uint32 { return uint32(min(200+len(a.packed), answerBytes)) },
		})}
}

// answer is something that the server said.
type answer struct {
	fetched time.Time
	packed  []byte // s2

	once      sync.Once
	expansion *expansion // of the answer to an expand question
	err       error
}

func newAnswer(fetched time.Time, body []byte) *answer {
	return &answer{fetched: fetched, packed: s2.Encode(nil, body)}
}

// body returns the body that the server sent.
func (a *answer) body() ([]byte, error) { return s2.Decode(nil, a.packed) }

// keyOf is the name of a question in memory and in the database.
func (c *expansionCache) keyOf(question string) int64 {
	sum := sha256.Sum256([]byte(c.base + "\x00" + question))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// get returns the cached answer for a question, or fetches a new one. If the server cannot be reached, it returns an
// expired answer, with a warning. whole marks a whole expansion, which other instances share. Answers about single codes,
// and pages for somebody who types, are too many to share.
func (c *expansionCache) get(ctx context.Context, question string, whole bool, fetch func(context.Context) ([]byte, error)) (a *answer, warning string, err error) {
	key := c.keyOf(question)

	// 1. The memory of this process.
	if a, ok := c.memory.GetIfPresent(key); ok && c.fresh(a) {
		return a, "", nil
	}

	// 2. The shared answers, or the server; one request serves all that wait.
	result := c.flights.DoChan(strconv.FormatInt(key, 16), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTime)
		defer cancel()
		// Another flight may have landed since this caller looked.
		if a := c.keptAnswer(ctx, key, whole); a != nil && c.fresh(a) {
			return a, nil
		}
		body, err := fetch(ctx)
		if err != nil {
			return nil, err
		}
		a := newAnswer(c.now(), body)
		c.memory.Set(key, a)
		if whole && c.shared != nil {
			if err := c.shared.PutTerminologyAnswer(ctx, key, a.packed, a.fetched); err != nil {
				c.log.WarnContext(ctx, "terminology answer is not shared", "error", err)
			}
		}
		return a, nil
	})
	var got singleflight.Result
	select {
	case got = <-result:
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	if got.Err == nil {
		return got.Val.(*answer), "", nil
	}

	// 3. An expired answer.
	if !isUnreachable(got.Err) {
		return nil, "", got.Err
	}
	if a := c.keptAnswer(ctx, key, whole); a != nil {
		return a, c.warning(a), nil
	}
	return nil, "", got.Err
}

// warning tells of an answer that is past its time; "" for a fresh one.
func (c *expansionCache) warning(a *answer) string {
	if c.fresh(a) {
		return ""
	}
	return staleWarning(a)
}

func staleWarning(a *answer) string {
	return "the terminology server does not answer; this is its answer of " + a.fetched.UTC().Format(time.RFC3339)
}

// fresh reports whether an answer is younger than terminology.cache_ttl_secs.
func (c *expansionCache) fresh(a *answer) bool { return c.now().Sub(a.fetched) < c.ttl }

// keptAnswer returns the answer in memory, else the shared one, of whatever age; nil when
// there is none. The younger one counts: another instance may have asked since.
func (c *expansionCache) keptAnswer(ctx context.Context, key int64, whole bool) *answer {
	own, ok := c.memory.GetIfPresent(key)
	if ok && c.fresh(own) || !whole || c.shared == nil {
		return own
	}
	body, fetched, err := c.shared.TerminologyAnswer(ctx, key)
	if err != nil {
		c.log.WarnContext(ctx, "shared terminology answers cannot be read", "error", err)
		return own
	}
	if body == nil || ok && !fetched.After(own.fetched) {
		return own
	}
	a := &answer{fetched: fetched, packed: body}
	c.memory.Set(key, a)
	return a
}

// isUnreachable reports whether an error is the server's and not the question's.
func isUnreachable(err error) bool {
	var down unreachable
	return errors.As(err, &down)
}
