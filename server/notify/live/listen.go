package live

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"kiln/server/access"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/notify/subscription"
	"kiln/server/outcome"
	"kiln/server/store"
)

// MaxListeners bounds the number of listeners of one connection.
const MaxListeners = 200

// parseWish reads the filter of a connection. criteria is "Type?search" or the search
// alone.
func (h *Hub) parseWish(ctx context.Context, p *access.Principal, typ string, events []string, criteria string) (wish, error) {
	w := wish{typ: typ}
	var err error
	if w.kinds, err = matching.ParseKinds(events); err != nil {
		return w, err
	}
	if typ == "" || typ == "*" {
		w.typ = ""
		if criteria != "" {
			return w, outcome.Invalid("criteria need a resourceType")
		}
		return w, h.checkMayFollow(ctx, p, "")
	}
	if h.Interactions.Model.Resources[typ] == nil {
		return w, h.Interactions.UnknownType(typ)
	}
	if err := h.checkMayFollow(ctx, p, typ); err != nil {
		return w, err
	}
	if criteria == "" {
		return w, nil
	}
	query := criteria
	if t, q, ok := strings.Cut(criteria, "?"); ok {
		if t != "" && t != typ {
			return w, outcome.Invalid("the criteria are about %s, the resourceType is %s", outcome.Clip(t), typ)
		}
		query = q
	} else if criteria == typ {
		query = ""
	}
	w.criteria, err = h.Evaluator.ParseCriteria(ctx, typ, query)
	return w, err
}

// renewed is the filter of a listener, parsed with the present search parameters.
func (h *Hub) renewed(ctx context.Context, l *listener) (wish, error) {
	w := l.wish
	if p := l.client.principal; p != nil {
		ctx = access.WithPrincipal(ctx, p)
	}
	var err error
	w.criteria, err = h.Evaluator.ParseCriteria(ctx, w.typ, w.criteria.Text)
	return w, err
}

// checkMayFollow refuses a wish of somebody who may not search and read the type.
func (h *Hub) checkMayFollow(ctx context.Context, p *access.Principal, typ string) error {
	ctx = access.WithPrincipal(ctx, p)
	for _, i := range []access.Interaction{access.Search, access.Read} {
		if err := h.Interactions.CheckAllowed(ctx, i, typ, ""); err != nil {
			return err
		}
	}
	return nil
}

// listen makes a connection receive the events from l.from on, in the order of the log,
// each once: events of rules, or of l.wish if there are no rules. It returns when the
// connection listens live.
func (h *Hub) listen(ctx context.Context, l *listener, rules []matching.Rule) error {
	if rules == nil {
		rules = l.wish.rules()
	}
	own := matching.NewMatcher()
	sub := &matching.Subscriber{ID: uuid.NewString(), Rules: rules, Principal: l.client.principal}
	l.lane, l.subscriber = h.findLane(sub), sub
	own.AddSubscriber(l.subscriber)
	at := l.from.position
	if err := h.awaitBegun(ctx); err != nil {
		return err
	}
	for {
		// 1. Are there changes between this listener's position and the lane's?
		l.lane.mu.Lock()
		if c := l.wish.criteria; c != nil && c.Parameters < max(l.lane.parameters, h.Interactions.Parameters.Current().Version()) {
			l.lane.mu.Unlock()
			if err := h.Refresh(ctx); err != nil {
				return err
			}
			w, err := h.renewed(ctx, l)
			if err != nil {
				return err
			}
			l.wish = w
			l.subscriber.Rules = w.rules()
			own.AddSubscriber(l.subscriber)
			continue
		}
		end := l.lane.position
		if at.Compare(end) >= 0 {
			l.from.position = at
			h.addListener(l)
			l.lane.mu.Unlock()
			return nil
		}
		l.lane.mu.Unlock()

		// 2. A page of it.
		page, next, err := h.replay(ctx, l, own, at, end)
		if err != nil {
			return err
		}
		at = next
		if len(page) == 0 {
			continue
		}
		select {
		case l.client.replay <- page:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// replay returns the messages of a listener about a page of the changes after one position and up to another, and the
// position up to which it has read.
func (h *Hub) replay(ctx context.Context, l *listener, own *matching.Matcher, at, end store.ChangePosition) ([]addressed, store.ChangePosition, error) {
	changes, err := h.Store.Changes(ctx, at, replayPage)
	if err != nil {
		return nil, at, err
	}
	full := len(changes) == replayPage
	for len(changes) > 0 && changes[len(changes)-1].Position.Compare(end) > 0 {
		changes, full = changes[:len(changes)-1], false
	}
	if len(changes) > 0 {
		at = changes[len(changes)-1].Position
	}
	if !full {
		at = end
	}
	changes = slices.DeleteFunc(changes, func(c store.Change) bool {
		return !own.WantsType(c.ResourceType) || !l.from.includesPosition(c.Position) || !l.kinds.Has(matching.KindOf(c.Method)) && l.kinds != 0
	})
	if len(changes) == 0 {
		return nil, at, nil
	}
	events, err := h.Evaluator.ReadEvents(ctx, changes, own.NeedsPrevious(l.typ))
	if err != nil {
		return nil, at, err
	}
	events = slices.DeleteFunc(events, func(e *matching.Event) bool { return e.Version.LastUpdated.Before(l.from.instant) })
	hits, costly, err := h.Evaluator.MatchEvents(ctx, own, events)
	if err == nil && len(costly) > 0 {
		err = h.Evaluator.RefuseCostly()
	}
	if err != nil {
		return nil, at, err
	}
	page := make([]addressed, 0, len(hits))
	for _, hit := range hits {
		m := addressed{l.newNotification(hit.Event), l}
		m.countUnwritten()
		page = append(page, m)
	}
	return page, at, nil
}

// addListener registers a listener for new events; the caller holds the mu of its lane.
func (h *Hub) addListener(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.clients[l.client]; !ok {
		return // it has gone meanwhile
	}
	h.listeners[l.subscriber] = l
	l.lane.matcher.AddSubscriber(l.subscriber)
	l.mu.Lock()
	l.live = true
	l.mu.Unlock()
	if l.bind != "" {
		if h.bound[l.bind] == nil {
			h.bound[l.bind] = make(map[*listener]struct{})
		}
		h.bound[l.bind][l] = struct{}{}
	}
}

// removeListener ends a listener.
func (h *Hub) removeListener(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropListener(l)
}

func (h *Hub) dropListener(l *listener) {
	if l.subscriber != nil {
		delete(h.listeners, l.subscriber)
		l.lane.matcher.RemoveSubscriber(l.subscriber.ID)
	}
	if l.bind != "" {
		if delete(h.bound[l.bind], l); len(h.bound[l.bind]) == 0 {
			delete(h.bound, l.bind)
		}
	}
}

// rebind follows a change of a Subscription that connections of a lane are bound to: the criteria keep
// to what each of them may see.
func (h *Hub) rebind(ctx context.Context, in *lane, id string) {
	rules := make(map[*access.Principal][]matching.Rule)
	h.mu.Lock()
	for l := range h.bound[id] {
		rules[l.client.principal] = nil
	}
	h.mu.Unlock()
	for p := range rules {
		c, err := h.Subscriptions.Read(owner.WithPrincipal(ctx, p), id)
		if err == nil && c.Status == subscription.Active && c.WebSocket {
			rules[p] = c.Rules
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.bound[id] {
		if l.lane != in {
			continue
		}
		in.matcher.RemoveSubscriber(l.subscriber.ID)
		delete(h.listeners, l.subscriber)
		l.subscriber = &matching.Subscriber{ID: uuid.NewString(), Rules: rules[l.client.principal], Principal: l.client.principal}
		h.listeners[l.subscriber] = l
		in.matcher.AddSubscriber(l.subscriber)
	}
}
