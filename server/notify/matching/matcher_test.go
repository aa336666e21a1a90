package matching

import (
	"testing"
	"time"
)

// Contract, Notifications 2: an event finds its candidates by a term, not by going through
// all subscriptions.
func TestCandidatesByTheRarestTerm(t *testing.T) {
	t.Parallel()
	m := NewMatcher()
	const n = 10_000
	for i := range n {
		// patient=i, and a code that all have.
		c := &Criteria{typ: "Observation", anchors: [][]int64{{int64(1000 + i)}, {7}}}
		m.AddSubscriber(&Subscriber{ID: "Subscription/" + string(rune('a'+i%26)) + time.Duration(i).String(), Rules: []Rule{{ResourceType: "Observation", Kinds: AllKinds, Current: c}}})
	}
	if got := len(m.types["Observation"].byTerm[7]); got > 1 {
		t.Errorf("%d rules lie under the term that all have", got)
	}
	if got := len(m.types["Observation"].byTerm[1000+n/2]); got != 1 {
		t.Errorf("%d rules lie under a patient, want 1", got)
	}
	if m.Size() != n || !m.WantsType("Observation") || m.WantsType("Patient") {
		t.Errorf("%d subscribers", m.Size())
	}
}
