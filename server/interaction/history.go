package interaction

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// HistoryParams are the inputs of a history. Without ID it is the history of a
// type, without ResourceType the history of everything.
type HistoryParams struct {
	ResourceType, ID string
	Values           url.Values // _since, _at, _count, _cursor, _total, _summary, _elements
}

// History returns versions, deletions included, newest first. The history of a
// resource that never existed is not-found.
// Spec: https://hl7.org/fhir/R4/http.html#history.
func (s *Service) History(ctx context.Context, p HistoryParams) (Response, error) {
	return s.answerRead(ctx, s.demandOf(p.ResourceType, nil), func(ctx context.Context, from Reader) (Response, error) { return s.history(ctx, from, p) })
}

func (s *Service) history(ctx context.Context, from Reader, p HistoryParams) (Response, error) {
	if err := s.mayHistory(ctx, p); err != nil {
		return Response{}, err
	}
	if err := s.SettleAudit(ctx, from, p.ResourceType, nil); err != nil {
		return Response{}, err
	}
	from, err := s.VisibleReader(ctx, from)
	if err != nil {
		return Response{}, err
	}
	if p.ID != "" && !fhir.ValidID(p.ID) {
		return Response{}, outcome.NotFound(p.ResourceType, outcome.Clip(p.ID))
	}
	q := store.HistoryQuery{ResourceType: p.ResourceType, ID: p.ID}
	if q.Count, err = s.pageSize(p.Values); err != nil {
		return Response{}, err
	}
	var types []string
	if p.ResourceType != "" {
		types = []string{p.ResourceType}
	}
	cut, summary, err := s.Subsets(types, p.Values)
	if err != nil {
		return Response{}, err
	}
	if summary == search.SummaryCount {
		q.Count = 0
	}
	applied, err := applyHistoryParameters(&q, p.Values)
	if err != nil {
		return Response{}, err
	}
	page, err := from.History(ctx, q)
	if err != nil {
		return Response{}, err
	}
	for i, v := range page.Versions {
		page.Versions[i] = cut(v)
	}
	return Response{Status: http.StatusOK, Bundle: historyBundle(p, q, page, applied)}, nil
}

// mayHistory checks that the principal may read a history. The history of one resource
// needs the right to read, any other the right of history.
func (s *Service) mayHistory(ctx context.Context, p HistoryParams) error {
	if p.ResourceType == "" && s.now().RefuseSystemHistory {
		return outcome.NotSupported("history of the whole system is switched off on this server (fhir.system_history)")
	}
	kind := access.History
	if p.ID != "" {
		kind = access.Read
	}
	if err := s.mayFind(ctx, kind, p.ResourceType, p.ID); err != nil {
		return err
	}
	if p.ResourceType == "" {
		return s.mayAny(ctx, kind)
	}
	return nil
}

// applyHistoryParameters puts the parameters of a request into q, which has the page size
// already. It returns the parameters for the links of the Bundle, without the cursor.
func applyHistoryParameters(q *store.HistoryQuery, values url.Values) (applied url.Values, err error) {
	applied = url.Values{}
	for name, list := range values {
		value := list[len(list)-1]
		if value == "" && slices.Contains(historyParameters, name) {
			continue // a parameter without a value is ignored
		}
		switch name {
		case "_since":
			q.Since, err = ParseInstant(name, value)
		case "_at":
			q.At, q.AtEnd, err = period(name, value)
		case "_total":
			if q.NoTotal = value == "none"; !q.NoTotal && value != "accurate" && value != "estimate" {
				err = outcome.Invalid("_total is %q: expected none, estimate or accurate", outcome.Clip(value))
			}
		case "_elements":
			value = strings.Join(list, ",")
		case "_format", "_pretty", "_summary":
		case "_cursor":
			q.Cursor = value
			continue
		case "_count":
			value = strconv.Itoa(q.Count)
		default:
			return nil, outcome.Invalid("history has no parameter %q; it has %s and _pretty", outcome.Clip(name), strings.Join(historyParameters[:7], ", "))
		}
		if err != nil {
			return nil, err
		}
		applied.Set(name, value)
	}
	return applied, nil
}

// historyParameters are the parameters of a history.
var historyParameters = []string{"_since", "_at", "_count", "_total", "_summary", "_elements", "_format", "_pretty", "_cursor"}

func historyBundle(p HistoryParams, q store.HistoryQuery, page store.HistoryPage, applied url.Values) *Bundle {
	path := "_history"
	switch {
	case p.ID != "":
		path = p.ResourceType + "/" + p.ID + "/_history"
	case p.ResourceType != "":
		path = p.ResourceType + "/_history"
	}
	b := &Bundle{Type: "history", Total: page.Total, Entries: make([]Entry, len(page.Versions))}
	link := func(relation, cursor string) {
		v := url.Values{}
		for k, values := range applied {
			v[k] = values
		}
		if cursor != "" {
			v.Set("_cursor", cursor)
		}
		b.Links = append(b.Links, Link{relation, WithQuery(path, v)})
	}
	link("self", q.Cursor)
	if q.Count > 0 {
		link("first", "")
		if page.Previous != "" {
			link("previous", page.Previous)
		}
		if page.Next != "" {
			link("next", page.Next)
		}
	}
	for i, v := range page.Versions {
		b.Entries[i] = historyEntry(v)
	}
	return b
}

// historyEntry tells how a version came about.
// Spec: https://hl7.org/fhir/R4/http.html#history (entry.request, entry.response).
func historyEntry(v fhir.Version) Entry {
	e := Entry{
		Version: v,
		Request: RequestLine{Method: v.Method.String(), URL: v.ResourceType + "/" + v.ID},
		Answer:  &Answer{Status: http.StatusOK, Located: true},
	}
	switch {
	case v.Deleted():
		e.Answer.Status, e.NoResource = http.StatusNoContent, true
	case v.Method == fhir.POST, v.Method == fhir.Unlogged:
		e.Request.URL = v.ResourceType
		e.Answer.Status = http.StatusCreated
	case v.VersionID == 1:
		e.Answer.Status = http.StatusCreated
	}
	return e
}

// pageSize reads _count: values above the maximum are clamped, 0 asks for the total only.
func (s *Service) pageSize(values url.Values) (int, error) {
	size, most := s.now().DefaultCount, s.now().MaxCount
	if size == 0 {
		size = 20
	}
	if most == 0 {
		most = 1000
	}
	if text := values.Get("_count"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, outcome.Invalid("_count is %q: expected a number of resources, 0 or more", outcome.Clip(text))
		}
		size = int(n)
	}
	return min(size, most), nil
}

// ParseInstant is the beginning of the period that a date text means.
func ParseInstant(name, text string) (time.Time, error) {
	low, _, err := ParseDate(name, text)
	return time.UnixMicro(low), err
}

// period is the period that a date text means, with its end.
func period(name, text string) (from, to time.Time, err error) {
	low, high, err := ParseDate(name, text)
	return time.UnixMicro(low), time.UnixMicro(high), err
}

// ParseDate is the time that a date text means, [low, high) in microseconds.
func ParseDate(name, text string) (low, high int64, err error) {
	// A plus sign of a time zone that was not percent-encoded arrives as a space.
	if i := strings.LastIndexByte(text, ' '); i > 10 {
		text = text[:i] + "+" + text[i+1:]
	}
	low, high, err = fhir.ParseDate(text)
	if err != nil {
		return 0, 0, outcome.Invalid("%s is %q: expected an instant such as 2024-05-06T07:08:09Z", name, outcome.Clip(text))
	}
	return low, high, nil
}

// WithQuery joins a path and a query.
func WithQuery(path string, v url.Values) string {
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}
