package matching

import (
	"context"
	"slices"

	"kiln/server/store"
)

// A ChangeHandler matches changes of the log with subscribers whose rules the log alters too.
type ChangeHandler interface {
	// AltersRules reports whether a change alters the rules of subscribers.
	AltersRules(c store.Change) bool
	// ApplyChanges brings the rules up to date with changes that alter them: one change, or changes of
	// definitions that follow each other.
	ApplyChanges(ctx context.Context, changes []store.Change) error
	// MatchChanges matches changes with the rules of now.
	MatchChanges(ctx context.Context, changes []store.Change) error
}

// HandleChanges handles changes in the order of the log. A change that alters rules is applied first, and
// then matched like any other: a subscriber may be about Subscriptions or topics.
func HandleChanges(ctx context.Context, h ChangeHandler, changes []store.Change) error {
	for len(changes) > 0 {
		n := slices.IndexFunc(changes, h.AltersRules)
		switch {
		case n < 0:
			n = len(changes)
		case n == 0:
			n = countAltering(changes)
			if err := h.ApplyChanges(ctx, changes[:n]); err != nil {
				return err
			}
		}
		if err := h.MatchChanges(ctx, changes[:n]); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// countAltering is the number of changes that are applied with the first one.
func countAltering(changes []store.Change) int {
	n := 1
	for DefinesCriteria(changes[0]) && n < len(changes) && DefinesCriteria(changes[n]) {
		n++
	}
	return n
}

// DefinesCriteria reports whether a change may change what criteria mean.
func DefinesCriteria(c store.Change) bool {
	return c.ResourceType == "SearchParameter" || c.ResourceType == "SubscriptionTopic"
}

// MatchChanges reads the events of changes and returns their hits, as MatchEvents does. It reads changes of the
// types that m wants, and those for which also is true; nil is never.
func (s *Evaluator) MatchChanges(ctx context.Context, m *Matcher, changes []store.Change, also func(store.Change) bool) (events []*Event, hits []Hit, costly []*Subscriber, err error) {
	var wanted []store.Change
	previous := false
	for _, c := range changes {
		if m.WantsType(c.ResourceType) || also != nil && also(c) {
			wanted = append(wanted, c)
			previous = previous || m.NeedsPrevious(c.ResourceType)
		}
	}
	if len(wanted) == 0 {
		return nil, nil, nil, nil
	}
	if events, err = s.ReadEvents(ctx, wanted, previous); err != nil {
		return nil, nil, nil, err
	}
	hits, costly, err = s.MatchEvents(ctx, m, events)
	return events, hits, costly, err
}
