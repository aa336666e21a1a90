package remembered

import (
	"testing"
	"testing/synctest"
	"time"
)

// A memory lags when too many have changed since its own state, not since an older one that a slow
// search has; it has caught up when all were brought in, and forgets what lags for so long that the
// change log may not go back to it.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := following(t)
		generation := m.generation
		older := m.positionAt("4:4: index")
		m.Bring(Changes{Position: older, Followed: true, Many: true, Now: "6:6: index"})
		if m.lags || m.generation != generation {
			t.Fatal("it lags behind an older state")
		}
		many := Changes{Position: m.position(), Followed: true, Many: true, Now: "6:6: index"}
		m.Bring(many)
		if _, _, follows := m.Following(); !m.lags || follows || m.generation != generation {
			t.Fatalf("behind many changes it lags: %v, follows: %v, generation %d, before %d", m.lags, follows, m.generation, generation)
		}
		c, ok := m.CatchUp()
		if !ok || c.State != "5:5: index" {
			t.Fatalf("it catches up with %q: %v", c.State, ok)
		}
		if !c.Bring(c.Stored([]int64{844424930131969})) || !m.lags || !c.Brought("6:6: index") || m.lags || m.state.text != "6:6: index" {
			t.Fatalf("it has caught up with %q, lags: %v", m.state.text, m.lags)
		}
		if _, ok := m.CatchUp(); ok {
			t.Error("it catches up with nothing")
		}

		many.Position, many.Now = m.position(), "7:7: index"
		m.Bring(many)
		if time.Sleep(followedFor); !m.lags { // by synctest's clock, like the second below
			t.Fatal("it does not lag again")
		}
		if _, ok := m.CatchUp(); !ok {
			t.Error("it does not catch up within the time that it may be followed")
		}
		time.Sleep(time.Second)
		if _, ok := m.CatchUp(); ok || m.lags || m.generation != generation+1 {
			t.Errorf("a state of more than an hour is caught up with: %v; generation %d, before %d", ok, m.generation, generation)
		}
	})
}
