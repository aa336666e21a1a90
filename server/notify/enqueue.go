package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/notify/config"
	"kiln/server/notify/matching"
	"kiln/server/notify/owner"
	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/outcome"
	"kiln/server/store"
)

// reader follows the change log under a name and queues deliveries for some of the
// subscribers. There are two readers: one for subscribers that the index entries of an
// event decide about, and one for subscribers that need the database, so that slow criteria
// delay only each other.
type reader struct {
	s       *Service
	name    string
	asks    bool // it has the subscribers that need the database
	matcher *matching.Matcher
	// withoutRights are the Subscriptions that are not in matcher because their owner was
	// not allowed to follow their criteria. triedRights is the time of the last attempt.
	withoutRights map[string]bool
	triedRights   time.Time
	grounds       matching.Grounds // of matcher
	loaded        time.Time
	// principals are some of matcher's, by their rights.
	principals map[string]*access.Principal
	// topics is the URL of the topic that each Subscription names, by id.
	topics map[string]string
}

func (s *Service) readers() []*reader {
	return []*reader{
		{s: s, name: "notifications", matcher: matching.NewMatcher(), withoutRights: make(map[string]bool), topics: make(map[string]string), principals: make(map[string]*access.Principal)},
		{s: s, name: "notifications-related", asks: true, matcher: matching.NewMatcher(), withoutRights: make(map[string]bool), topics: make(map[string]string), principals: make(map[string]*access.Principal)},
	}
}

// run matches new changes while notifications are on.
func (r *reader) run(ctx context.Context) {
	s := r.s
	for s.watch.AwaitOn(ctx, func(c *config.Config) bool { return c.Enabled }) {
		on, off := s.watch.ContextWhile(ctx, func(c *config.Config) bool { return c.Enabled })
		err := s.feed.Run(on, r.name, store.Handler{Begin: r.loadSubscribers, Handle: r.enqueue, Committed: s.wakeUp, Idle: r.idle})
		if err != nil && on.Err() == nil {
			s.Log.Error("follow the change log", "reader", r.name, "error", err)
			store.SleepFor(ctx, time.Second)
		}
		off()
	}
}

// wakeUp makes the queue and the bound WebSockets look for new deliveries.
func (s *Service) wakeUp() {
	s.queue.WakeUp()
	s.hub.WakeBindings()
}

// idle reports that there is nobody for whom to look at changes.
func (r *reader) idle() bool { return r.matcher.Size() == 0 && len(r.withoutRights) == 0 }

// addSubscriber puts a subscriber into a matcher where it is one of this reader's, and takes it out
// where it is no longer.
func (r *reader) addSubscriber(m *matching.Matcher, sub *matching.Subscriber) {
	if sub.NeedsDatabase() == r.asks {
		m.AddSubscriber(sub)
	} else {
		m.RemoveSubscriber(sub.ID)
	}
}

// subscriptionPage is the number of Subscriptions read at a time, by two statements: one
// for their rows, one for the resources.
const subscriptionPage = 500

// loadSubscribers reads all subscribers, when this server begins to match.
func (r *reader) loadSubscribers(ctx context.Context) error {
	grounds, err := r.s.evaluator().RightsGrounds(ctx)
	if err != nil {
		return err
	}
	m := matching.NewMatcher()
	ctx = subscription.WithTopics(ctx)
	principals := make(map[owner.AccessKey]ownerRights)
	r.topics = make(map[string]string)
	for after := ""; ; {
		rows, err := r.s.db().Subscriptions(ctx, db.SubscriptionsParams{After: after, Count: subscriptionPage})
		if err != nil {
			return err
		}
		if err := r.loadRows(ctx, m, rows, principals); err != nil {
			return err
		}
		if len(rows) < subscriptionPage {
			break
		}
		after = rows[len(rows)-1].ID
	}
	for _, k := range r.s.kinds {
		list, err := k.Load(ctx, "")
		if err != nil {
			return fmt.Errorf("load subscribers of %s: %w", k.ResourceType(), err)
		}
		for _, sub := range list {
			r.addSubscriber(m, sub)
		}
	}
	r.matcher, r.grounds, r.loaded = m, grounds, time.Now()
	return nil
}

// ownerRights are the rights of an owner, or why there are none.
type ownerRights struct {
	owner     owner.Owner
	principal *access.Principal
	err       error
}

// loadRows puts some Subscriptions into a matcher, or removes them. principals caches the principals of
// owners.
func (r *reader) loadRows(ctx context.Context, m *matching.Matcher, rows []db.SubscriptionsRow, principals map[owner.AccessKey]ownerRights) error {
	var ids []string
	for _, row := range rows {
		if isMatchedStatus(row.Status, row.Started) {
			ids = append(ids, row.ID)
		}
	}
	versions, err := r.s.Store.ReadMany(ctx, "Subscription", ids)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if !isMatchedStatus(row.Status, row.Started) {
			r.removeSubscriber(m, row.ID)
			continue
		}
		// Owners with one client, user and token differ in nothing that revokes their access.
		o := owner.Decode(row.Owner)
		p, ok := principals[o.AccessKey()]
		if !ok || !reflect.DeepEqual(p.owner, o) {
			p = ownerRights{owner: o}
			p.principal, p.err = owner.FindPrincipal(ctx, r.s.Rights, o)
			principals[o.AccessKey()] = p
		}
		r.noteTopic(row.ID, versions[row.ID].Body)
		var c *subscription.Subscription
		err := p.err
		if err == nil {
			c, err = r.s.subscriptions.CompileStored(owner.WithPrincipal(ctx, p.principal), row.ID, versions)
		}
		if err := r.place(ctx, m, row.ID, row.StartedAt, c, err); err != nil {
			return err
		}
	}
	return nil
}

// removeSubscriber takes a Subscription out that hears of nothing.
func (r *reader) removeSubscriber(m *matching.Matcher, id string) {
	delete(r.withoutRights, id)
	delete(r.topics, id)
	m.RemoveSubscriber("Subscription/" + id)
}

// noteTopic notes which topic a Subscription names.
func (r *reader) noteTopic(id string, body []byte) {
	var named struct{ Topic, Criteria string }
	_ = json.Unmarshal(body, &named) // stored by this server
	if named.Topic == "" && subscription.IsCanonical(named.Criteria) {
		named.Topic = named.Criteria
	}
	if named.Topic == "" {
		delete(r.topics, id)
		return
	}
	r.topics[id], _, _ = strings.Cut(named.Topic, "|")
}

// parametersInterval is how often criteria are read anew, at most, while the parameters in force change
// in nothing but how far their indexes are: that makes a difference to chains that ask one of these.
const parametersInterval = 30 * time.Second

// outdated reports whether the criteria of matcher are to be read anew.
func (r *reader) outdated(now matching.Grounds) bool {
	return now.Policies != r.grounds.Policies || now.Parameters != r.grounds.Parameters && time.Since(r.loaded) > parametersInterval
}

// loadSubscription puts a Subscription into the matcher as it is now, or takes it out.
func (r *reader) loadSubscription(ctx context.Context, m *matching.Matcher, id string) error {
	return r.loadSubscriptions(ctx, m, []string{id})
}

// loadSubscriptions is loadSubscription for several.
func (r *reader) loadSubscriptions(ctx context.Context, m *matching.Matcher, ids []string) error {
	ctx = subscription.WithTopics(ctx)
	principals := make(map[owner.AccessKey]ownerRights)
	for page := range slices.Chunk(ids, subscriptionPage) {
		found, err := r.s.db().SubscriptionsByID(ctx, page)
		if err != nil {
			return err
		}
		rows := make([]db.SubscriptionsRow, len(found))
		there := make(map[string]bool, len(found))
		for i, row := range found {
			rows[i], there[row.ID] = db.SubscriptionsRow(row), true
		}
		for _, id := range page {
			if !there[id] {
				r.removeSubscriber(m, id)
			}
		}
		if err := r.loadRows(ctx, m, rows, principals); err != nil {
			return err
		}
	}
	return nil
}

// place puts a Subscription into the matcher, or takes out one that cannot be carried out,
// which err says: that is told at once, for it gets nothing from then on.
func (r *reader) place(ctx context.Context, m *matching.Matcher, id string, since time.Time, c *subscription.Subscription, err error) error {
	reference := "Subscription/" + id
	if err != nil {
		if outcome.Theirs(err) {
			if !r.withoutRights[id] {
				r.s.Log.Warn("a subscription cannot be carried out", "subscription", id, "error", err)
			}
			m.RemoveSubscriber(reference)
			if owner.IsRevoked(err) {
				r.withoutRights[id] = true
				return nil
			}
			return r.s.changeStatus(ctx, id, []string{subscription.Requested, subscription.Active}, subscription.Error, err.Error())
		}
		return err
	}
	delete(r.withoutRights, id)
	r.addSubscriber(m, &matching.Subscriber{ID: reference, Rules: c.Rules, Queued: !c.WebSocket, Logged: c.Backport, Principal: r.share(c.Principal), Since: since})
	return nil
}

// maxShared bounds the principals that Subscriptions yet to come may share.
const maxShared = 10_000

// share returns a principal with the rights of p: one for all Subscriptions whose owners
// differ only in their tokens, so that their rights are checked once for all of them.
func (r *reader) share(p *access.Principal) *access.Principal {
	o := owner.FromPrincipal(p)
	o.TokenID, o.Session = "", ""
	rights := string(o.Encode())
	if same := r.principals[rights]; same != nil {
		return same
	}
	if len(r.principals) >= maxShared {
		clear(r.principals)
	}
	r.principals[rights] = p
	return p
}

// rightsInterval is the time between attempts to load subscriptions whose owner was not
// allowed to follow their criteria: a policy may have been changed since.
const rightsInterval = 200 * time.Millisecond

// reloadWithoutRights tries them again.
func (r *reader) reloadWithoutRights(ctx context.Context) error {
	if len(r.withoutRights) == 0 || time.Since(r.triedRights) < rightsInterval {
		return nil
	}
	r.triedRights = time.Now()
	for id := range r.withoutRights {
		if err := r.loadSubscription(ctx, r.matcher, id); err != nil {
			return err
		}
	}
	return nil
}

// enqueue matches a batch of changes and puts deliveries into the queue.
func (r *reader) enqueue(ctx context.Context, changes []store.Change) (func(context.Context, pgx.Tx) error, error) {
	now, err := r.s.evaluator().RightsGrounds(ctx)
	if err == nil && r.outdated(now) {
		err = r.loadSubscribers(ctx)
	}
	if err == nil {
		err = r.reloadWithoutRights(ctx)
	}
	if err != nil {
		return nil, err
	}
	b := &batch{reader: r}
	if err := matching.HandleChanges(ctx, b, changes); err != nil {
		return nil, err
	}
	hits := b.hits
	if len(hits) == 0 {
		return nil, nil
	}
	return func(ctx context.Context, tx pgx.Tx) error { return queue.AddDeliveries(ctx, tx, hits) }, nil
}

// batch is some changes that a reader matches: a matching.ChangeHandler that collects hits.
type batch struct {
	*reader
	hits []matching.Hit
}

// MatchChanges implements matching.ChangeHandler.
func (b *batch) MatchChanges(ctx context.Context, changes []store.Change) error {
	_, hits, costly, err := b.s.evaluator().MatchChanges(ctx, b.matcher, changes, nil)
	if err != nil {
		return err
	}
	for _, sub := range costly {
		if err := b.s.endCostly(ctx, sub.ID); err != nil {
			return err
		}
		b.matcher.RemoveSubscriber(sub.ID)
	}
	b.hits = append(b.hits, hits...)
	return nil
}

// ApplyChanges implements matching.ChangeHandler.
func (b *batch) ApplyChanges(ctx context.Context, changes []store.Change) error {
	if matching.DefinesCriteria(changes[0]) {
		return b.applyDefinitions(ctx, changes)
	}
	return b.applyChange(ctx, changes[0])
}

// AltersRules implements matching.ChangeHandler.
func (r *reader) AltersRules(c store.Change) bool {
	switch c.ResourceType {
	case "Subscription", "SubscriptionTopic", "SearchParameter":
		return true
	}
	for _, k := range r.s.kinds {
		if k.ResourceType() == c.ResourceType {
			return true
		}
	}
	return false
}

// applyDefinitions follows writes of topics and search parameters. Of a topic it loads the
// Subscriptions that name it; search parameters may change all of them.
func (r *reader) applyDefinitions(ctx context.Context, changes []store.Change) error {
	if err := r.s.refreshSearchParameters(ctx); err != nil {
		return err
	}
	if slices.ContainsFunc(changes, func(c store.Change) bool { return c.ResourceType != "SubscriptionTopic" }) {
		return r.loadSubscribers(ctx)
	}
	events, err := r.s.evaluator().ReadEvents(ctx, changes, true)
	if err != nil {
		return err
	}
	if len(events) < len(changes) { // a version is gone, and with it the URL of its topic
		return r.loadSubscribers(ctx)
	}
	changed := make(map[string]bool)
	for _, e := range events {
		now, before := subscription.DecodeTopic(e.Version.Body), subscription.DecodeTopic(e.Previous.Body)
		if reflect.DeepEqual(now, before) {
			continue // the server reads nothing of it that has changed
		}
		changed[now.URL], changed[before.URL] = true, true
	}
	var ids []string
	for id, address := range r.topics {
		if changed[address] {
			ids = append(ids, id)
		}
	}
	return r.loadSubscriptions(ctx, r.matcher, ids)
}

// applyChange follows a write that changes who matches.
func (r *reader) applyChange(ctx context.Context, c store.Change) error {
	versions, err := r.s.Store.ChangedVersions(ctx, []store.VersionKey{c.Key()}, map[int64]string{c.Ref: c.ResourceType})
	if err != nil {
		return err
	}
	v, ok := versions[c.Key()]
	if !ok {
		return nil
	}
	if c.ResourceType == "Subscription" {
		return r.loadSubscription(ctx, r.matcher, v.ID)
	}
	for _, k := range r.s.kinds {
		if k.ResourceType() != c.ResourceType {
			continue
		}
		list, err := k.Load(ctx, v.ID)
		if err != nil {
			return err
		}
		r.matcher.RemovePrefix(k.Prefix() + v.ID + "/")
		for _, sub := range list {
			r.addSubscriber(r.matcher, sub)
		}
	}
	return nil
}

// endCostly switches off a subscriber whose criteria cost more than questionTimeout; its
// status and the log give the reason. Its events of that time are lost, so it must not
// continue as if nothing were missing.
func (s *Service) endCostly(ctx context.Context, subscriber string) error {
	s.Log.Warn("the criteria of a subscriber cost too much", "subscriber", subscriber, "limit", s.questionTimeout)
	id, ok := strings.CutPrefix(subscriber, "Subscription/")
	if !ok {
		return nil
	}
	return s.changeStatus(ctx, id, []string{subscription.Active, subscription.Error, subscription.Requested}, subscription.Off, s.evaluator().RefuseCostly().Error())
}
