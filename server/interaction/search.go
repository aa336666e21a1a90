package interaction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"kiln/server/telemetry"
)

// SearchParams are the inputs of a search.
type SearchParams struct {
	ResourceType string // "" for all types, or the types of _type; "*" in a compartment
	Values       url.Values
	Lenient      bool // handling=lenient: leave out parameters that are not known
	// Compartment and CompartmentID narrow the search to a compartment:
	// /Patient/1/Observation.
	Compartment, CompartmentID string
	BaseURL                    string // that the client's links begin with; its length counts
}

// Search returns a page of matches with their includes.
// Spec: https://hl7.org/fhir/R4/http.html#search.
func (s *Service) Search(ctx context.Context, p SearchParams) (Response, error) {
	d := s.demandOf(p.ResourceType, p.Values)
	d.alone = true
	return s.answerRead(ctx, d, func(ctx context.Context, from Reader) (Response, error) { return s.search(ctx, from, p) })
}

// settlingTime is how long other searches wait for pending AuditEvents.
const settlingTime = time.Second

// SettleAudit waits until the AuditEvents of acknowledged writes are stored, where what
// is read from a type ("" is every one) with these parameters could have them. What asks
// for AuditEvents by name fails rather than miss some; what would only have them beside
// other types waits for a second. Within a transaction nothing is waited for.
func (s *Service) SettleAudit(ctx context.Context, from Reader, typ string, values url.Values) error {
	if s.Settle == nil || from != Reader(s.Store) {
		return nil
	}
	switch named, beside := s.asksForAudit(typ, values); {
	case named:
		return s.Settle(ctx)
	case beside:
		bounded, cancel := context.WithTimeout(ctx, settlingTime)
		defer cancel()
		if err := s.Settle(bounded); err != nil && bounded.Err() == nil {
			return err
		}
	}
	return nil
}

// asksForAudit reports whether a read of a type ("" is every one) asks for AuditEvents by name, or could have
// them beside other types.
func (s *Service) asksForAudit(typ string, values url.Values) (named, beside bool) {
	if s.Settle == nil {
		return false, false
	}
	named = typ == "AuditEvent"
	beside = typ == "" && !values.Has("_type")
	for name, list := range values {
		beside = beside || strings.HasPrefix(name, "_revinclude")
		named = named || strings.Contains(name, "AuditEvent") ||
			slices.ContainsFunc(list, func(v string) bool { return strings.Contains(v, "AuditEvent") })
	}
	return named, beside
}

// searchOptions are the service's additions to a query. warnings collects warnings about
// the codes of terminology modifiers; it may be nil.
func (s *Service) searchOptions(ctx context.Context, lenient bool, warnings *[]outcome.Issue) search.Options {
	opt := search.Options{Lenient: lenient, DefaultCount: s.now().DefaultCount, MaxCount: s.now().MaxCount,
		Explain: s.now().Explain != nil && s.now().Explain(ctx), BaseURLs: s.BaseURLs, Now: s.Now()}
	if s.Terminology != nil {
		opt.Expand = s.newExpander(ctx, warnings)
	}
	return opt
}

// CheckSearch fails if the search would fail, and runs nothing. It returns the warnings of
// the search.
func (s *Service) CheckSearch(ctx context.Context, p SearchParams) (warnings []outcome.Issue, err error) {
	q, _, _, err := s.prepareSearch(ctx, s.Store, p)
	if err != nil {
		return nil, err
	}
	return q.Ignored, nil
}

func (s *Service) search(ctx context.Context, from Reader, p SearchParams) (Response, error) {
	token := ""
	if p.Values.Has(storedParameter) {
		var err error
		if token, p.Values, err = s.useStoredSearch(ctx, p); err != nil {
			return Response{}, err
		}
	}
	q, from, path, err := s.prepareSearch(ctx, from, p)
	if err != nil {
		return Response{}, err
	}
	answer, err := s.searchPage(ctx, from, q, WithQuery(path, q.Applied()))
	if err == nil {
		err = s.shortenLinks(ctx, &answer, q, path, p, token)
	}
	if err == nil && p.Compartment == "" {
		err = s.addDefinition(ctx, from, q, p.Values["url"], &answer)
	}
	return answer, err
}

// path is the path of a search below the base.
func (p *SearchParams) path() string {
	switch {
	case p.Compartment != "":
		return p.Compartment + "/" + p.CompartmentID + "/" + p.ResourceType
	case p.ResourceType == "*":
		return ""
	}
	return p.ResourceType
}

// prepareSearch reads a search and checks that the request may run it. It returns the query, what
// the query is run on, and the path of the search.
func (s *Service) prepareSearch(ctx context.Context, from Reader, p SearchParams) (*search.Query, Reader, string, error) {
	typ := p.ResourceType
	if typ == "*" {
		typ = ""
	}
	if err := s.mayFind(ctx, access.Search, typ, ""); err != nil {
		return nil, nil, "", err
	}
	if err := s.SettleAudit(ctx, from, typ, p.Values); err != nil {
		return nil, nil, "", err
	}
	from, err := s.VisibleReader(ctx, from)
	if err != nil {
		return nil, nil, "", err
	}
	path := p.path()
	reg := s.Parameters.Current()
	if p.Compartment != "" {
		if _, err := searchedInside(reg, p, nil); err != nil {
			return nil, nil, "", err
		}
	}
	var warnings []outcome.Issue
	q, err := search.Parse(reg, typ, p.Values, s.searchOptions(ctx, p.Lenient, &warnings))
	if err != nil {
		return nil, nil, "", err
	}
	q.Ignored = append(q.Ignored, warnings...)
	if typ == "" && len(q.Types) == 0 {
		if err := s.mayAny(ctx, access.Search); err != nil {
			return nil, nil, "", err
		}
	}
	if typ == "" {
		for _, t := range q.Types { // those that the client names
			if err := s.mayFind(ctx, access.Search, t, ""); err != nil {
				return nil, nil, "", err
			}
		}
	}
	if p.Compartment != "" {
		inside, err := searchedInside(reg, p, q.Types)
		if err != nil {
			return nil, nil, "", err
		}
		q.Inside(reg, inside, p.Compartment, p.CompartmentID)
	}
	if p.Compartment == "" && !oneURL(p.Values["url"]) {
		notices, err := s.warnOfBuiltIn(ctx, from, reg, q)
		if err != nil {
			return nil, nil, "", err
		}
		q.Notices = append(q.Notices, notices...)
	}
	return q, from, path, nil
}

// searchPage runs q and makes a searchset of the result; self is its URL without what
// tells one page from another.
func (s *Service) searchPage(ctx context.Context, from searcher, q *search.Query, self string) (Response, error) {
	timeout := s.SearchTimeout()
	if timeout > 0 {
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = bounded
	}
	began := time.Now()
	searching, span := telemetry.Start(ctx, "search")
	found, err := from.Search(searching, q)
	span.Fail(err)
	span.End()
	if s.Searched != nil {
		rows := 0
		if err == nil {
			rows = len(found.Matches) + len(found.Includes)
		}
		s.Searched(ctx, q, time.Since(began), rows, err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return Response{}, outcome.New(outcome.CodeTimeout, "the search took longer than %s (search.timeout_seconds) and was given up", timeout).Because(err)
	}
	if err != nil {
		return Response{}, err
	}
	b := &Bundle{Type: "searchset", Total: -1, Entries: make([]Entry, 0, len(found.Matches)+len(found.Includes)+1)}
	if found.Total != nil {
		b.Total = *found.Total
	}
	for _, at := range findPages(q, found) {
		b.Links = append(b.Links, Link{at.relation, pageURL(self, at.offset, at.cursor)})
	}
	reduce := s.newReducer(q.Summary, q.Elements)
	for _, v := range found.Matches {
		b.Entries = append(b.Entries, Entry{Version: reduce(v), Mode: "match"})
	}
	// The list of elements does not apply to included resources.
	// Spec: https://hl7.org/fhir/R4/search.html#elements.
	reduce = s.newReducer(q.Summary, nil)
	for _, v := range found.Includes {
		b.Entries = append(b.Entries, Entry{Version: reduce(v), Mode: "include"})
	}
	versions, err := s.warnOfVersions(ctx, q, found)
	if err != nil {
		return Response{}, err
	}
	issues := slices.Concat(q.Ignored, q.Notices, found.Issues, versions)
	if q.Asked > 0 && q.Count > 0 && q.Cursor == nil && q.Offset == 0 {
		issues = append(issues, outcome.Issue{Severity: outcome.Information, Code: outcome.CodeInformational,
			Diagnostics: fmt.Sprintf("parameter _count: %d is more than the largest page has; each page has up to %d matches", q.Asked, q.Count)})
	}
	if len(issues) > 0 {
		b.Entries = append(b.Entries, Entry{Body: outcome.JSON(issues), Mode: "outcome"})
	}
	return Response{Status: http.StatusOK, Bundle: b, found: found}, nil
}

// searchedInside are the resource types of a search in a compartment; asked are the types
// in `_type`, nil for all.
func searchedInside(reg *search.Registry, p SearchParams, asked []string) ([]string, error) {
	def, ok := reg.Compartment(p.Compartment)
	if !ok {
		return nil, outcome.NotSupported("%s is no compartment: expected Patient, Encounter, Practitioner, RelatedPerson or Device", p.Compartment)
	}
	if p.ResourceType == "*" {
		types := CompartmentTypes(def)
		for _, typ := range asked {
			if !slices.Contains(types, typ) {
				return nil, outcome.Invalid("parameter _type: the %s compartment has no resources of type %s", p.Compartment, typ)
			}
		}
		if len(asked) > 0 {
			types = asked
		}
		return types, nil
	}
	if _, ok := def.By[p.ResourceType]; !ok {
		return nil, outcome.NotSupported("the %s compartment has no resources of type %s", p.Compartment, p.ResourceType)
	}
	return []string{p.ResourceType}, nil
}

// page is a page of a search: the relation to the page that was asked for, and its place. An offset below 0 means a
// page without an offset.
type page struct {
	relation string
	offset   int
	cursor   string
}

// findPages returns the pages that a page links to. Spec: https://hl7.org/fhir/R4/http.html#paging.
func findPages(q *search.Query, found *store.SearchResult) []page {
	at, cursor := found.Offset, ""
	if q.Cursor != nil {
		cursor = q.Cursor.String()
	} else if at == 0 {
		at = -1
	}
	out := make([]page, 0, 5)
	out = append(out, page{"self", at, cursor})
	if q.Count == 0 {
		return out
	}
	out = append(out, page{"first", 0, ""})
	if found.Offset > 0 {
		out = append(out, page{"previous", max(found.Offset-q.Count, 0), found.First})
	}
	if found.HasNext {
		out = append(out, page{"next", found.Offset + len(found.Matches), found.Last})
	}
	if found.Total != nil {
		out = append(out, page{"last", found.EndOffset, found.End})
	}
	return out
}

// pageURL adds a page's offset and cursor to the URL of a search. An offset below 0 means a
// page without an offset. A cursor needs no escapes.
func pageURL(self string, offset int, cursor string) string {
	b := make([]byte, 0, len(self)+len("?_offset=&_cursor=")+10+len(cursor))
	b = append(b, self...)
	add := func(name string) {
		sep := byte('?')
		if bytes.IndexByte(b, sep) >= 0 {
			sep = '&'
		}
		b = append(append(b, sep), name...)
	}
	if offset >= 0 {
		add("_offset=")
		b = strconv.AppendInt(b, int64(offset), 10)
	}
	if cursor != "" {
		add("_cursor=")
		b = append(b, cursor...)
	}
	return string(b)
}

// CompartmentTypes are the resource types of a compartment, sorted.
func CompartmentTypes(def *fhir.Compartment) []string {
	types := make([]string, 0, len(def.By))
	for typ, by := range def.By {
		if len(by) > 0 {
			types = append(types, typ)
		}
	}
	slices.Sort(types)
	return types
}
