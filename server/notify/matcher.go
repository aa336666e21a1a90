package notify

import (
	"context"
	"sync"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
)

// Rule selects the events that a subscriber wants. An event matches if it is of the type
// and of one of the kinds, and its versions meet the rule's conditions.
type Rule struct {
	ResourceType string // "" is every one
	Kinds        Kinds
	// current holds of the version after a create or update, previous of the one
	// before an update or delete; nil asks nothing.
	current, previous *criteria
	// both asks for current and previous of an update; otherwise one is enough.
	both bool
	// created and deleted are the values of previous for a create, and of current for a
	// delete.
	created, deleted bool
	// filter holds of the version that the event is about.
	filter *criteria
	// test is asked last, of the versions before and after; nil asks nothing.
	test func(ctx context.Context, e *Event) bool
}

// Subscriber is a receiver of events.
type Subscriber struct {
	// ID is "Subscription/<id>", or "App/<id>/0" for the first subscription of an App.
	ID    string
	Rules []Rule
	// Queued subscribers get deliveries in the queue; of others events are counted.
	Queued bool
	// principal is on whose behalf it hears of events: of what that may see, and nothing else; nil
	// sees everything.
	principal *access.Principal
	// Logged says that events are kept by their numbers where they are not queued.
	Logged bool
	// since is when a Subscription became active: it hears of nothing that was written before.
	since time.Time
}

// needsDatabase reports whether the database may have to be asked for the subscriber.
func (s *Subscriber) needsDatabase() bool {
	for i := range s.Rules {
		if r := &s.Rules[i]; r.current.needsDatabase() || r.previous.needsDatabase() || r.filter.needsDatabase() {
			return true
		}
	}
	return false
}

// matcher finds the subscribers of an event: by the type and one term that a resource must
// have to match, not by going through all of them.
type matcher struct {
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

// placed is a rule in the index.
type placed struct {
	rule       *Rule
	subscriber *Subscriber
	terms      []int64 // under which it lies; nil for any
}

func newMatcher() *matcher {
	return &matcher{types: make(map[string]*typeRules), subscribers: make(map[string][]*placed)}
}

// addSubscriber adds a subscriber, or replaces it.
func (m *matcher) addSubscriber(s *Subscriber) {
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
		if r.previous != nil || r.test != nil {
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

// choose picks the anchor that the fewest rules lie under so far: with 100,000 rules of the
// form patient=X&code=Y that is soon the patient.
func (t *typeRules) choose(r *Rule) []int64 {
	var best []int64
	least := 0
	consider := func(c *criteria) {
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
	consider(r.filter)
	// A term of only one of two versions is no anchor for the other.
	if r.previous == nil || r.previous == r.current {
		consider(r.current)
	}
	return best
}

// removeSubscriber takes a subscriber out.
func (m *matcher) removeSubscriber(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropRules(id)
}

func (m *matcher) dropRules(id string) {
	for _, p := range m.subscribers[id] {
		t := m.types[p.rule.ResourceType]
		delete(t.any, p)
		if p.rule.previous != nil || p.rule.test != nil {
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

// size is the number of subscribers.
func (m *matcher) size() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.subscribers)
}

// wantsType reports whether any rule is about a type.
func (m *matcher) wantsType(typ string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, name := range [2]string{typ, ""} {
		if t := m.types[name]; t != nil && len(t.byTerm)+len(t.any) > 0 {
			return true
		}
	}
	return false
}

// candidates are the rules that an event may match, each once.
func (m *matcher) candidates(typ string, k Kind, x *fhir.Index) []*placed {
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

// hit is a subscriber that an event is for.
type hit struct {
	subscriber *Subscriber
	event      *Event
}

// match returns the hits of events, in the order of the events and each subscriber once an
// event. Chains and _has are decided by the related resources, read once for all events and
// rules. The rest is a query for each rule. costly are subscribers whose criteria took too
// long: their result is unknown. An event that a subscriber may not see is no hit, even if
// its rules match.
func (s *Service) match(ctx context.Context, m *matcher, events []*Event) (hits []hit, costly []*Subscriber, err error) {
	type open struct {
		place *placed
		event int
	}
	decided := make([][]*Subscriber, len(events))
	ask := questions{ctx: ctx, related: s.newRelated(), sights: sights{s: s, ctx: ctx}}
	var waiting []open
	for i, e := range events {
		if !m.wantsType(e.ResourceType()) {
			continue
		}
		_, x := s.indexedVersion(e, e.Kind == Delete)
		for _, p := range m.candidates(e.ResourceType(), e.Kind, x) {
			switch s.holds(p, e, &ask) {
			case yes:
				decided[i] = append(decided[i], p.subscriber)
			case unknown:
				waiting = append(waiting, open{p, i})
			}
		}
	}
	// What needs other resources: first by those that it names, then by a search.
	steps := []func(context.Context) error{
		func(ctx context.Context) error { ask.loaded = true; return ask.related.loadResources(ctx) },
		func(ctx context.Context) error { return s.answer(ctx, &ask) },
	}
	for _, step := range steps {
		if len(waiting) == 0 {
			break
		}
		if err := step(ctx); err != nil {
			return nil, nil, err
		}
		var still []open
		for _, w := range waiting {
			switch s.holds(w.place, events[w.event], &ask) {
			case yes:
				decided[w.event] = append(decided[w.event], w.place.subscriber)
			case unknown:
				still = append(still, w)
			}
			if ask.err != nil {
				return nil, nil, ask.err
			}
		}
		waiting = still
	}
	seen := make(map[*Subscriber]bool)
	for _, w := range waiting { // queries that came too late
		if !seen[w.place.subscriber] {
			seen[w.place.subscriber] = true
			costly = append(costly, w.place.subscriber)
		}
	}
	for i, list := range decided {
		seen := make(map[*Subscriber]bool, len(list))
		for _, sub := range list {
			if seen[sub] {
				continue
			}
			seen[sub] = true
			if events[i].Written.Before(sub.since) || !ask.sights.mayRead(sub, events[i]) {
				continue
			}
			hits = append(hits, hit{sub, events[i]})
		}
	}
	return hits, costly, nil
}

// answer3 is yes, no or unknown.
type answer3 uint8

const (
	no answer3 = iota
	yes
	unknown
)

func answerOf(b bool) answer3 {
	if b {
		return yes
	}
	return no
}

// and is the conjunction, or the disjunction of their opposites.
func (a answer3) and(b answer3) answer3 {
	switch {
	case a == no || b == no:
		return no
	case a == unknown || b == unknown:
		return unknown
	}
	return yes
}

func (a answer3) or(b answer3) answer3 {
	switch {
	case a == yes || b == yes:
		return yes
	case a == unknown || b == unknown:
		return unknown
	}
	return no
}

// holds reports whether a rule is for an event of its type and kinds.
func (s *Service) holds(p *placed, e *Event, ask *questions) answer3 {
	r, result := p.rule, yes
	switch e.Kind {
	case Create, VRead:
		if r.current != nil || r.previous != nil {
			result = s.combine(r, s.holdsOf(r.current, e, false, ask), answerOf(r.created))
			if r.previous == nil {
				result = s.holdsOf(r.current, e, false, ask)
			}
		}
	case Update:
		if r.current != nil || r.previous != nil {
			result = s.combine(r, s.holdsOf(r.current, e, false, ask), s.holdsOf(r.previous, e, true, ask))
		}
	case Delete:
		switch {
		case r.previous != nil:
			result = s.combine(r, answerOf(r.deleted), s.holdsOf(r.previous, e, true, ask))
		case r.current != nil:
			result = s.holdsOf(r.current, e, true, ask) // the last version
		}
	}
	if result != no && r.filter != nil {
		result = result.and(s.holdsOf(r.filter, e, e.Kind == Delete, ask))
	}
	if result == yes && r.test != nil {
		result = answerOf(r.test(ask.ctx, ask.sights.visibleEvent(p.subscriber, e)))
	}
	return result
}

// combine puts the answers about the two versions together.
func (s *Service) combine(r *Rule, current, previous answer3) answer3 {
	switch {
	case r.previous == nil:
		return current
	case r.current == nil:
		return previous
	case r.both:
		return current.and(previous)
	}
	return current.or(previous)
}

// questions are what events and rules leave open.
type questions struct {
	ctx     context.Context
	related *related
	sights  sights
	loaded  bool  // related has the wanted resources
	err     error // of reading more of it
	// of is which resources match criteria, by their refs: unknown until the database was
	// asked, and where it took too long.
	of map[*criteria]map[int64]answer3
}

func (q *questions) askCriteria(c *criteria, ref int64) answer3 {
	refs := q.of[c]
	if refs == nil {
		if q.of == nil {
			q.of = make(map[*criteria]map[int64]answer3)
		}
		refs = make(map[int64]answer3)
		q.of[c] = refs
	}
	if _, ok := refs[ref]; !ok {
		refs[ref] = unknown
	}
	return refs[ref]
}

const (
	// parallelQuestions bounds the searches of one batch of events under way.
	parallelQuestions = 4
	// defaultQuestionTimeout bounds one of them: what costs more holds up the events of others
	// that need the database.
	defaultQuestionTimeout = 5 * time.Second
	// pingTimeout is how long a database may take for nothing before it counts as hung.
	pingTimeout = time.Second
)

// answer asks the database, about several criteria at a time. Criteria that are not
// answered in time are asked once more, alone, and stay unknown if they are late again. It
// fails where the database does: the events come again. Criteria that cannot be
// asked any more match nothing, which the log tells.
func (s *Service) answer(ctx context.Context, q *questions) error {
	places := make(chan struct{}, parallelQuestions)
	var asking sync.WaitGroup
	var mu sync.Mutex
	var failed error
	type question struct {
		criteria *criteria
		refs     []int64
	}
	var late []question
	for c, refs := range q.of {
		var list []int64
		for ref, a := range refs {
			if a == unknown {
				list = append(list, ref)
			}
		}
		if len(list) == 0 {
			continue
		}
		places <- struct{}{}
		asking.Go(func() {
			defer func() { <-places }()
			inTime, err := s.askOnce(ctx, c, list, refs)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			} else if !inTime {
				late = append(late, question{c, list})
			}
		})
	}
	asking.Wait()
	if failed != nil {
		return failed
	}
	for _, l := range late {
		inTime, err := s.askOnce(ctx, l.criteria, l.refs, q.of[l.criteria])
		if err != nil {
			return err
		}
		if inTime {
			continue
		}
		// Is it the criteria, or the database?
		ping, cancel := context.WithTimeout(ctx, pingTimeout)
		err = s.Store.Pool().Ping(ping)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// askOnce asks which of the resources with some refs match criteria. It reports false where
// the answer does not come in time.
func (s *Service) askOnce(ctx context.Context, c *criteria, list []int64, refs map[int64]answer3) (inTime bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, s.questionTimeout)
	defer cancel()
	found, err := s.findMatches(bounded, c, list)
	if err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if bounded.Err() != nil {
			return false, nil
		}
		if outcome.Ours(err) {
			return false, err
		}
		s.Log.Warn("criteria of a subscription cannot be asked", "criteria", c.typ+"?"+c.text, "error", err)
	}
	for _, ref := range list {
		refs[ref] = answerOf(found[ref])
	}
	return true, nil
}
