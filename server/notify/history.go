package notify

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/matching"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/web"
)

// maxHistoryScan bounds the versions that are looked at for one page: a page of a search
// that hardly ever holds ends early, with a link to the next.
const maxHistoryScan = 5000

// eventsHistory answers GET /{Type}/$events-history: the events of the past, newest first,
// as a Bundle of type history in which an entry's id is the notification's.
func (s *Service) eventsHistory(w http.ResponseWriter, r *http.Request, typ string) error {
	ctx := r.Context()
	if err := s.watch.CheckServed(ctx, ""); err != nil {
		return err
	}
	for _, i := range []access.Interaction{access.Search, access.Read} {
		if err := s.Service.CheckAllowed(ctx, i, typ, ""); err != nil {
			return err
		}
	}
	contentType, err := s.answerFormat(r)
	if err != nil {
		return err
	}
	values, err := interaction.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	asked := matching.CloneValues(values)
	q, err := s.readHistoryQuery(ctx, typ, values)
	if err != nil {
		return err
	}
	for _, name := range []string{"_since", "_count", "_cursor", "token"} {
		values.Del(name)
	}
	rule, err := s.historyRule(ctx, typ, values)
	if err != nil {
		return err
	}
	found, links, err := s.findPastEvents(r, q, rule)
	if err != nil {
		return err
	}
	s.sendHistory(w, r, contentType, typ, found, asked, links)
	return nil
}

// readHistoryQuery reads the parameters of a page.
func (s *Service) readHistoryQuery(ctx context.Context, typ string, values url.Values) (q store.HistoryQuery, err error) {
	options := s.Service.SearchOptions(ctx, false, nil)
	q = store.HistoryQuery{ResourceType: typ, Count: options.DefaultCount, NoTotal: true, Cursor: values.Get("_cursor")}
	if q.Count <= 0 {
		q.Count = 20
	}
	if text := values.Get("_since"); text != "" {
		if q.Since, err = matching.ParseInstant(text); err != nil {
			return q, outcome.Invalid("_since is %q: expected an instant", outcome.Clip(text))
		}
	}
	if text := values.Get("_count"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return q, outcome.Invalid("_count is %q: expected a number above 0", outcome.Clip(text))
		}
		most := options.MaxCount
		if most <= 0 {
			most = 200
		}
		q.Count = min(n, most)
	}
	return q, nil
}

// historyRule returns the rule of the events that the other parameters select.
func (s *Service) historyRule(ctx context.Context, typ string, values url.Values) (rule matching.Rule, err error) {
	rule.ResourceType = typ
	if rule.Kinds, err = matching.ParseKinds(matching.TakeList(values, "events")); err != nil || len(values) == 0 {
		return rule, err
	}
	criteria, err := s.evaluator().CompileCriteria(ctx, typ, values)
	if err == nil && len(criteria.Query.Clauses) > 0 {
		rule.Current = criteria
	}
	return rule, err
}

// findPastEvents reads the history until a page is full, and returns the events that meet the rule and the cursors of
// the pages beside them. No page of the history is cut in the middle: the next page begins where this one ends.
func (s *Service) findPastEvents(r *http.Request, q store.HistoryQuery, rule matching.Rule) (found []*matching.Event, links store.HistoryPage, err error) {
	ctx := r.Context()
	one := matching.NewMatcher()
	one.AddSubscriber(&matching.Subscriber{ID: "history", Rules: []matching.Rule{rule}, Principal: access.PrincipalFrom(ctx)})
	newer, count := store.IsPreviousCursor(q.Cursor), q.Count
	for scanned, first := 0, true; ; first = false {
		page, err := s.Store.History(ctx, q)
		if err != nil {
			return nil, links, err
		}
		matched, err := s.matchPastEvents(r, one, page.Versions)
		if err != nil {
			return nil, links, err
		}
		if first {
			links.Next, links.Previous = page.Next, page.Previous
		}
		follow := page.Next
		if newer {
			follow, found, links.Previous = page.Previous, append(matched, found...), page.Previous
		} else {
			found, links.Next = append(found, matched...), page.Next
		}
		scanned += len(page.Versions)
		if follow == "" || len(found) > 0 && len(found) >= count || scanned >= maxHistoryScan {
			return found, links, nil
		}
		q.Cursor, q.Count = follow, max(1, count-len(found))
	}
}

// matchPastEvents returns the events of versions that the one subscriber of a matcher receives.
func (s *Service) matchPastEvents(r *http.Request, one *matching.Matcher, versions []fhir.Version) ([]*matching.Event, error) {
	events, err := s.pastEvents(r, versions)
	if err != nil {
		return nil, err
	}
	hits, costly, err := s.evaluator().MatchEvents(r.Context(), one, events)
	if err == nil && len(costly) > 0 {
		err = s.evaluator().RefuseCostly()
	}
	matched := make([]*matching.Event, len(hits))
	for i, h := range hits {
		matched[i] = h.Event
	}
	return matched, err
}

// pastEvents makes events of versions.
func (s *Service) pastEvents(r *http.Request, versions []fhir.Version) ([]*matching.Event, error) {
	var keys []store.VersionKey
	types := make(map[int64]string)
	for _, v := range versions {
		ref := int64(fhir.ValueReference(v.ResourceType, v.ID))
		types[ref] = v.ResourceType
		if v.VersionID > 1 && v.Method != fhir.POST {
			keys = append(keys, store.VersionKey{Ref: ref, VersionID: v.VersionID - 1})
		}
	}
	before, err := s.subscriptions.ReadVersions(r.Context(), keys, types)
	if err != nil {
		return nil, err
	}
	epochs, err := s.Store.EpochsOf(r.Context(), versions)
	if err != nil {
		return nil, err
	}
	var events []*matching.Event
	for i, v := range versions {
		if v.Method == fhir.Unlogged {
			continue
		}
		ref := int64(fhir.ValueReference(v.ResourceType, v.ID))
		e := &matching.Event{Position: store.ChangePosition{Epoch: epochs[i]}, Kind: matching.KindOf(v.Method), Version: s.subscriptions.MaskHeaders(v), Written: v.LastUpdated, Ref: ref}
		if previous, ok := before[store.VersionKey{Ref: ref, VersionID: v.VersionID - 1}]; ok && !previous.Deleted() {
			e.Previous = previous
		}
		if e.Kind == matching.Update && e.Previous.VersionID == 0 {
			e.Kind = matching.Create
		}
		events = append(events, e)
	}
	return events, nil
}

// sendHistory writes the Bundle.
func (s *Service) sendHistory(w http.ResponseWriter, r *http.Request, contentType, typ string, events []*matching.Event, asked url.Values, page store.HistoryPage) {
	x := web.ExchangeOf(w)
	base := s.Settings().BaseURL
	if base == "" {
		base = s.Base(r) + x.Prefix
	}
	asked.Del("token")
	path := base + "/" + typ + "/$events-history"
	b := []byte(`{"resourceType":"Bundle","type":"history","link":[{"relation":"self","url":`)
	b = fhir.AppendString(b, path+queryOf(asked.Encode()))
	b = append(b, '}')
	for _, link := range []struct{ relation, cursor string }{{"previous", page.Previous}, {"next", page.Next}} {
		if link.cursor == "" {
			continue
		}
		asked.Set("_cursor", link.cursor)
		b = append(b, `,{"relation":"`+link.relation+`","url":`...)
		b = fhir.AppendString(b, path+queryOf(asked.Encode()))
		b = append(b, '}')
	}
	b = append(b, ']')
	for i, e := range events {
		if i == 0 {
			b = append(b, `,"entry":[`...)
		} else {
			b = append(b, ',')
		}
		v := e.Version
		b = append(b, `{"id":"`+e.NotificationID("").String()+`","fullUrl":`...)
		b = fhir.AppendString(b, base+"/"+v.ResourceType+"/"+v.ID)
		if len(v.Body) > 0 {
			b = append(b, `,"resource":`...)
			b = append(b, v.Body...)
		}
		location := v.ResourceType + "/" + v.ID
		status := "200"
		switch {
		case v.Method == fhir.POST:
			location, status = v.ResourceType, "201"
		case e.Kind == matching.Create:
			status = "201"
		case e.Kind == matching.Delete:
			status = "204"
		}
		b = append(b, `,"request":{"method":"`+v.Method.String()+`","url":`...)
		b = fhir.AppendString(b, location)
		b = append(b, `},"response":{"status":"`+status+`","etag":"W/\"`+strconv.Itoa(v.VersionID)+`\"","lastModified":"`+
			v.LastUpdated.UTC().Format(time.RFC3339Nano)+`"}}`...)
	}
	if len(events) > 0 {
		b = append(b, ']')
	}
	x.Send(r, http.StatusOK, contentType, append(b, '}'), true)
}
