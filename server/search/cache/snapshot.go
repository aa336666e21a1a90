package cache

import (
	"slices"
	"strconv"
	"strings"
)

// state is the state of a statement: the visible transactions, and the rest of plan.Now, which must not change.
type state struct {
	text    string
	end     uint64   // the first transaction that had not begun
	running []uint64 // below end, ascending
	index   string
}

// parseState reads plan.Now; ok is false for a state that cannot be followed.
func parseState(text string) (s state, ok bool) {
	snapshot, index, _ := strings.Cut(text, " ")
	parts := strings.Split(snapshot, ":")
	if len(parts) != 3 {
		return state{}, false
	}
	s = state{text: text, index: index}
	var err error
	if s.end, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return state{}, false
	}
	for x := range strings.SplitSeq(parts[2], ",") {
		if x == "" {
			continue
		}
		n, err := strconv.ParseUint(x, 10, 64)
		if err != nil {
			return state{}, false
		}
		s.running = append(s.running, n)
	}
	slices.Sort(s.running)
	return s, true
}

// includes reports whether everything that o has seen has been seen in s too. Of two
// snapshots of one PostgreSQL one includes the other.
func (s *state) includes(o *state) bool {
	if s.end < o.end {
		return false
	}
	for _, x := range s.running {
		if x >= o.end {
			continue
		}
		if _, found := slices.BinarySearch(o.running, x); !found {
			return false
		}
	}
	return true
}
