package matching

import (
	"context"
	"strings"
	"sync"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
)

// A Rule selects events for a subscriber, by resource type, kind, and conditions on the versions.
type Rule struct {
	ResourceType string // "" for all types
	Kinds        Kinds
	// Current is tested on the version after a create or update, Previous on the version before an update or delete;
	// nil is always met.
	Current, Previous *Criteria
	// Both requires Current and Previous of an update; otherwise one is enough.
	Both bool
	// Created is the result of Previous for a create, Deleted the result of Current for a delete.
	Created, Deleted bool
	// Filter is tested on the version of the event.
	Filter *Criteria
	// Test is called last, with both versions; nil is always met.
	Test func(ctx context.Context, e *Event) bool
}

// A Subscriber is a receiver of events.
type Subscriber struct {
	// ID is "Subscription/<id>", or "App/<id>/0" for the first subscription of an App.
	ID    string
	Rules []Rule
	// Queued subscribers get deliveries from the queue. For others events are only counted.
	Queued bool
	// Principal limits the events to resources that it may see; nil sees everything.
	Principal *access.Principal
	// Logged keeps the numbers of events that are not queued.
	Logged bool
	// Since is the time at which a Subscription became active. Earlier events are not for it.
	Since time.Time
}

// NeedsDatabase reports whether a rule of the subscriber may need the database.
func (s *Subscriber) NeedsDatabase() bool {
	for i := range s.Rules {
		if r := &s.Rules[i]; r.Current.needsDatabase() || r.Previous.needsDatabase() || r.Filter.needsDatabase() {
			return true
		}
	}
	return false
}

// A Matcher finds the rules that an event may meet by the type of the resource and one term that a matching resource
// must have, without visiting all rules. It is safe for concurrent use.
type Matcher struct {
	mu          sync.RWMutex
	types       map[string]*typeRules
	subscribers map[string][]*placed // by ID
}

// typeRules are the rules about one resource type.
type typeRules struct {
	byTerm map[int64][]*placed
	any    map[*placed]struct{} // rules that no term tells apart
	// previous is the number of rules that need the version before an update.
	previous int
}

// A placed is a rule in the index.
type placed struct {
	rule       *Rule
	subscriber *Subscriber
	terms      []int64 // under which it lies; nil for any
}

// NewMatcher returns a Matcher without subscribers.
func NewMatcher() *Matcher {
	return &Matcher{types: make(map[string]*typeRules), subscribers: make(map[string][]*placed)}
}

// AddSubscriber adds or replaces a subscriber.
func (m *Matcher) AddSubscriber(s *Subscriber) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropRules(s.ID)
	for i := range s.Rules {
		r := &s.Rules[i]
		t := m.types[r.ResourceType]
		if t == nil {
			t = &typeRules{byTerm: make(map[int64][]*placed), any: make(map[*placed]struct{})}
			m.types[r.ResourceType] = t
		}
		p := &placed{rule: r, subscriber: s, terms: t.choose(r)}
		if r.Previous != nil || r.Test != nil {
			t.previous++
		}
		if p.terms == nil {
			t.any[p] = struct{}{}
		}
		for _, term := range p.terms {
			t.byTerm[term] = append(t.byTerm[term], p)
		}
		m.subscribers[s.ID] = append(m.subscribers[s.ID], p)
	}
}

// choose returns the anchor with the fewest rules so far. With 100,000 rules of the form patient=X&code=Y that is
// soon the patient.
func (t *typeRules) choose(r *Rule) []int64 {
	var best []int64
	least := 0
	consider := func(c *Criteria) {
		if c == nil {
			return
		}
		for _, terms := range c.anchors {
			n := 0
			for _, term := range terms {
				n += 1 + len(t.byTerm[term])
			}
			if best == nil || n < least {
				best, least = terms, n
			}
		}
	}
	consider(r.Filter)
	// A term of only one of two versions is no anchor for the other.
	if r.Previous == nil || r.Previous == r.Current {
		consider(r.Current)
	}
	return best
}

// RemoveSubscriber removes a subscriber.
func (m *Matcher) RemoveSubscriber(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropRules(id)
}

func (m *Matcher) dropRules(id string) {
	for _, p := range m.subscribers[id] {
		t := m.types[p.rule.ResourceType]
		delete(t.any, p)
		if p.rule.Previous != nil || p.rule.Test != nil {
			t.previous--
		}
		for _, term := range p.terms {
			list := t.byTerm[term]
			for i, other := range list {
				if other == p {
					list[i] = list[len(list)-1]
					list[len(list)-1] = nil
					list = list[:len(list)-1]
					break
				}
			}
			if len(list) == 0 {
				delete(t.byTerm, term)
			} else {
				t.byTerm[term] = list
			}
		}
	}
	delete(m.subscribers, id)
}

// Size returns the number of subscribers.
func (m *Matcher) Size() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.subscribers)
}

// WantsType reports whether there is a rule about a type.
func (m *Matcher) WantsType(typ string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, name := range [2]string{typ, ""} {
		if t := m.types[name]; t != nil && len(t.byTerm)+len(t.any) > 0 {
			return true
		}
	}
	return false
}

// candidates returns the rules that an event may meet, each once.
func (m *Matcher) candidates(typ string, k Kind, x *fhir.Index) []*placed {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var list []*placed
	if t := m.types[""]; t != nil && typ != "" {
		for p := range t.any {
			if p.rule.Kinds.Has(k) {
				list = append(list, p)
			}
		}
	}
	t := m.types[typ]
	if t == nil {
		return list
	}
	var seen map[*placed]struct{}
	for p := range t.any {
		if p.rule.Kinds.Has(k) {
			list = append(list, p)
		}
	}
	if x == nil {
		return list
	}
	for _, term := range x.Terms {
		for _, p := range t.byTerm[term] {
			if !p.rule.Kinds.Has(k) {
				continue
			}
			if len(p.terms) > 1 {
				if _, ok := seen[p]; ok {
					continue
				}
				if seen == nil {
					seen = make(map[*placed]struct{})
				}
				seen[p] = struct{}{}
			}
			list = append(list, p)
		}
	}
	return list
}

// NeedsPrevious reports whether a rule about a type needs the version before an update.
func (m *Matcher) NeedsPrevious(typ string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t := m.types[typ]
	return t != nil && t.previous > 0
}

// RemovePrefix removes the subscribers whose ids have a prefix.
func (m *Matcher) RemovePrefix(prefix string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.subscribers {
		if strings.HasPrefix(id, prefix) {
			m.dropRules(id)
		}
	}
}
