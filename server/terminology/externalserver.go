package terminology

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"kiln/server/outcome"
	"kiln/server/parameters"
)

// ServerConfig names the external terminology server.
type ServerConfig struct {
	URL string // of its FHIR base; "" is none
	// CacheTTL is how long an answer is good without being asked for again; 0 is
	// an hour.
	CacheTTL time.Duration
	// Timeout bounds one request; 0 is ten seconds.
	Timeout time.Duration
	// Token is sent as a bearer token, else Username and Password by Basic; both
	// may be "".
	Token, Username, Password string
	Client                    *http.Client // nil is a client of its own
}

// Limits of the answers of the server.
const (
	maxAnswer = 64 << 20 // bytes of one answer, all pages together, unpacked
	pageSize  = 10_000   // codes asked for at a time
	fetchTime = 2 * time.Minute
)

// externalServer is the external terminology server with its cached answers.
type externalServer struct {
	base    string
	config  ServerConfig
	client  *http.Client
	breaker breaker
	cache   *expansionCache
}

// question is a request for $expand. Its JSON is the key of the answer.
type question struct {
	URL     string   `json:"url,omitempty"` // canonical, with version
	Compose *Compose `json:"compose,omitempty"`
	// A page, asked for as it is; Count nil asks for everything.
	Filter              string `json:"filter,omitempty"`
	Count               *int   `json:"count,omitempty"`
	Offset              int    `json:"offset,omitempty"`
	ActiveOnly          bool   `json:"activeOnly,omitempty"`
	IncludeDesignations bool   `json:"includeDesignations,omitempty"`
	DisplayLanguage     string `json:"displayLanguage,omitempty"`
}

func newExternalServer(c Config) (*externalServer, error) {
	u, err := url.Parse(c.Server.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("terminology.server_url: %q is not an http or https URL", c.Server.URL)
	}
	s := &externalServer{base: strings.TrimRight(c.Server.URL, "/"), config: c.Server, client: c.Server.Client, breaker: breaker{now: c.Now}}
	if s.config.CacheTTL == 0 {
		s.config.CacheTTL = time.Hour
	}
	if s.config.Timeout == 0 {
		s.config.Timeout = 10 * time.Second
	}
	if s.client == nil {
		s.client = &http.Client{}
	}
	s.cache = newExpansionCache(s.base, s.config.CacheTTL, c)
	return s, nil
}

// expand returns the expansion that the server gives for q: all of it, or the
// page that q asks for. It fails with not-found, too-costly, invalid or exception
// (503), the last also for pages that end before the total is reached.
func (s *externalServer) expand(ctx context.Context, q question) (*expansion, error) {
	name, err := q.name()
	if err != nil {
		return nil, err
	}
	a, stale, err := s.cache.get(ctx, name, q.whole(), func(ctx context.Context) ([]byte, error) { return s.fetchExpansion(ctx, q) })
	if err != nil {
		return nil, err
	}
	return a.expanded(q, s.config.CacheTTL, stale)
}

// keptExpansion returns the expansion that the cache has for q, of whatever age,
// with a warning that says so. It fails with exception (503) when there is none.
func (s *externalServer) keptExpansion(ctx context.Context, q question) (*expansion, error) {
	name, err := q.name()
	if err != nil {
		return nil, err
	}
	a := s.cache.keptAnswer(ctx, s.cache.keyOf(name), q.whole())
	if a == nil {
		return nil, s.unavailable(errors.New("it has not answered this before"))
	}
	return a.expanded(q, s.config.CacheTTL, staleWarning(a))
}

// name returns the key of the answer to q.
func (q question) name() (string, error) {
	name, err := json.Marshal(q)
	if err != nil {
		return "", fmt.Errorf("terminology question: %w", err)
	}
	return "expansion " + string(name), nil
}

// whole reports whether q asks for all codes.
func (q question) whole() bool { return q.Count == nil && q.Filter == "" }

// expanded is the answer to q, read once. stale is a warning to go with it, "" for
// none.
func (a *answer) expanded(q question, ttl time.Duration, stale string) (*expansion, error) {
	a.once.Do(func() {
		var x Expansion
		body, err := a.body()
		if err == nil {
			err = json.Unmarshal(body, &x)
		}
		if err != nil {
			a.err = fmt.Errorf("read kept expansion: %w", err)
			return
		}
		a.expansion = &expansion{foreign: true, page: q.Count != nil, total: -1, unclosed: x.isMarked(unclosedURL), expires: a.fetched.Add(ttl)}
		if x.Total != nil {
			a.expansion.total = *x.Total
		}
		a.err = a.expansion.addContained(x.Contains, -1)
		seen := make(map[canonical]bool)
		for i := range a.expansion.entries {
			y := &a.expansion.entries[i]
			if c := (canonical{y.system, y.version}); !seen[c] {
				seen[c] = true
				a.expansion.systems = append(a.expansion.systems, c)
			}
		}
	})
	if a.err != nil || stale == "" {
		return a.expansion, a.err
	}
	x := *a.expansion
	x.warnings = []string{stale}
	return &x, nil
}

// fetchExpansion requests an expansion page by page and returns it as one: with every code, or with valueset-unclosed if
// the server says that it cannot list all. A cut answer is an error.
func (s *externalServer) fetchExpansion(ctx context.Context, q question) ([]byte, error) {
	budget := int64(maxAnswer)
	if q.Count != nil {
		page, err := s.page(ctx, q, *q.Count, q.Offset, &budget)
		if err != nil {
			return nil, err
		}
		return json.Marshal(Expansion{Extension: page.Extension, Total: page.Total, Contains: page.Contains})
	}
	all := Expansion{}
	seen := make(map[Coding]bool) // with version, without display
	for offset := 0; ; {
		page, err := s.page(ctx, q, pageSize, offset, &budget)
		switch {
		case err != nil && offset > 0 && !isUnreachable(err):
			return nil, s.cut("it refuses the page from code %d on: %v", offset, err)
		case err != nil:
			return nil, err
		case page.isLimited():
			return nil, tooCostly("the terminology server has cut it")
		case page.Total != nil && *page.Total > maxCodes:
			return nil, tooCostly("by the terminology server's count")
		}
		n := countOf(page.Contains)
		fresh := addNew(seen, page.Contains)
		if fresh > 0 || n == 0 {
			all.Contains = append(all.Contains, page.Contains...)
			all.Extension = append(all.Extension, page.Extension...)
		}
		unclosed := all.isMarked(unclosedURL)
		if offset += n; offset > maxCodes {
			return nil, tooCostly("by the terminology server's count")
		}
		switch {
		case page.Total != nil && offset >= *page.Total && (fresh > 0 || n == 0):
			// Every code that the server counts.
		case n > 0 && fresh > 0 && (!unclosed || n >= pageSize):
			continue // Without a total only the page after the last one tells that it was.
		case page.Total != nil && !unclosed:
			return nil, s.cut("%d of %d codes came", len(seen), *page.Total)
		case n > 0 && !unclosed && (n == pageSize || page.cutAt(n)):
			// The server minds count and not offset.
			return nil, s.cut("its second page is the first one again")
		}
		// An empty page is the end; one that repeats comes from a server without pages,
		// which has sent everything the first time.
		total := len(seen)
		all.Total = &total
		return json.Marshal(all)
	}
}

// cut is the failure of a server that leaves out a part of an expansion.
func (s *externalServer) cut(format string, args ...any) error {
	return s.unavailable(incompleteError(fmt.Sprintf(format, args...)))
}

// incompleteError says how an expansion falls short.
type incompleteError string

func (e incompleteError) Error() string { return "its expansion is incomplete: " + string(e) }

// addNew adds the codes of list to seen, and returns how many were new.
func addNew(seen map[Coding]bool, list []Contained) int {
	before := len(seen)
	for i := range list {
		if c := &list[i]; c.Code != "" {
			seen[Coding{System: c.System, Version: c.Version, Code: c.Code}] = true
		}
		addNew(seen, list[i].Contains)
	}
	return len(seen) - before
}

func countOf(list []Contained) int {
	n := 0
	for i := range list {
		if list[i].Code != "" {
			n++
		}
		n += countOf(list[i].Contains)
	}
	return n
}

func (s *externalServer) page(ctx context.Context, q question, count, offset int, budget *int64) (*Expansion, error) {
	in := askedParameters{}
	if q.Compose != nil {
		vs := struct {
			ResourceType string `json:"resourceType"`
			ValueSet
		}{"ValueSet", ValueSet{Status: "active", Compose: q.Compose}}
		if err := in.resource("valueSet", vs); err != nil {
			return nil, fmt.Errorf("terminology question: %w", err)
		}
	} else {
		c := parseCanonical(q.URL)
		in.add(parameters.URI("url", c.url))
		in.add(parameters.String("valueSetVersion", c.version))
	}
	in.add(parameters.String("filter", q.Filter))
	in.add(parameters.Code("displayLanguage", q.DisplayLanguage))
	in.flag("activeOnly", q.ActiveOnly)
	in.flag("includeDesignations", q.IncludeDesignations)
	in.add(parameters.Integer("count", count))
	in.add(parameters.Integer("offset", offset))
	body, err := s.call(ctx, "ValueSet/$expand", in, budget)
	if err != nil {
		return nil, err
	}
	var vs ValueSet
	if err := json.Unmarshal(body, &vs); err != nil {
		return nil, s.unavailable(fmt.Errorf("$expand answered with no ValueSet: %w", err))
	}
	if vs.Expansion == nil {
		return nil, s.unavailable(errors.New("$expand answered a ValueSet without expansion"))
	}
	return vs.Expansion, nil
}

// operation asks for an operation that answers Parameters, and returns them.
func (s *externalServer) operation(ctx context.Context, path string, in askedParameters) ([]parameters.Parameter, string, error) {
	name, err := parameters.Write(in)
	if err != nil {
		return nil, "", fmt.Errorf("terminology question: %w", err)
	}
	a, stale, err := s.cache.get(ctx, path+" "+string(name), false, func(ctx context.Context) ([]byte, error) {
		budget := int64(maxAnswer)
		return s.call(ctx, path, in, &budget)
	})
	if err != nil {
		return nil, "", err
	}
	body, err := a.body()
	if err != nil {
		return nil, "", fmt.Errorf("unpack kept answer: %w", err)
	}
	out, err := parameters.Read(body)
	if err != nil {
		return nil, "", s.unavailable(fmt.Errorf("%s answered with no Parameters: %w", path, err))
	}
	return out, stale, nil
}

// unreachable is the cause of every failure that is the server's and not the
// question's.
type unreachable struct{ cause error }

func (u unreachable) Error() string { return u.cause.Error() }
func (u unreachable) Unwrap() error { return u.cause }

// unavailable is the 503 for a server that does not answer, or not in FHIR. The
// client gets the kind of failure; addresses stay in the log.
func (s *externalServer) unavailable(cause error) error {
	return outcome.Unavailable("terminology server unavailable: %s", reason(cause)).Because(unreachable{cause})
}

func reason(err error) string {
	var timeout interface{ Timeout() bool }
	var status statusError
	var cut incompleteError
	switch {
	case errors.As(err, &status):
		return status.Error()
	case errors.As(err, &cut):
		return cut.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it took too long"
	case strings.Contains(err.Error(), "connection refused"):
		return "connection refused"
	case strings.Contains(err.Error(), "no such host"):
		return "its name does not resolve"
	case strings.Contains(err.Error(), "answered"):
		return "it did not answer in FHIR"
	}
	return "the connection failed"
}

// statusError is an HTTP status that says the server cannot serve now, or that
// there is no terminology server at that address.
type statusError struct {
	status int
	hint   string // what to look at, "" for nothing
}

func (e statusError) Error() string {
	return fmt.Sprintf("it answered %d %s%s", e.status, http.StatusText(e.status), e.hint)
}

// call makes one request and returns the body of a good answer, whose size is
// taken off budget.
func (s *externalServer) call(ctx context.Context, path string, in askedParameters, budget *int64) ([]byte, error) {
	if err := s.breaker.allow(); err != nil {
		return nil, s.unavailable(err)
	}
	body, status, typ, err := s.send(ctx, path, in, *budget)
	if err == nil && (status >= 500 && status != http.StatusNotImplemented || status == http.StatusTooManyRequests ||
		status == http.StatusUnauthorized || status == http.StatusForbidden) {
		err = statusError{status: status}
	}
	if err == nil && missesOperation(status, typ, body) {
		err = statusError{status, " to " + path + "; terminology.server_url has to be the base of a FHIR R4 terminology server"}
	}
	var large tooLarge
	if errors.As(err, &large) {
		s.breaker.done(nil)
		return nil, outcome.New(outcome.CodeTooCostly, "the terminology server's answer is larger than %d bytes", maxAnswer)
	}
	s.breaker.done(err)
	if err != nil {
		return nil, s.unavailable(err)
	}
	*budget -= int64(len(body))
	if status != http.StatusOK {
		return nil, refusal(path, status, body)
	}
	return body, nil
}

// missesOperation reports whether an answer says that the address is wrong, and not
// that a resource is unknown: a 404, 405 or 410 that is no FHIR, or an
// OperationOutcome that says not-supported.
func missesOperation(status int, typ string, body []byte) bool {
	switch status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone:
	default:
		return false
	}
	var o struct {
		ResourceType string `json:"resourceType"`
		Issue        []struct {
			Code outcome.Code `json:"code"`
		} `json:"issue"`
	}
	if err := json.Unmarshal(body, &o); err != nil || o.ResourceType != "OperationOutcome" {
		return !strings.Contains(typ, "fhir")
	}
	return len(o.Issue) > 0 && o.Issue[0].Code == outcome.CodeNotSupported
}

// refusal returns the error for a 4xx of the server.
func refusal(path string, status int, body []byte) error {
	var o struct {
		Issue []struct {
			Code        outcome.Code `json:"code"`
			Diagnostics string       `json:"diagnostics"`
			Details     struct {
				Text string `json:"text"`
			} `json:"details"`
		} `json:"issue"`
	}
	_ = json.Unmarshal(body, &o) // without an OperationOutcome the status has to do
	code, why := outcome.CodeInvalid, ""
	if status == http.StatusNotFound || status == http.StatusGone {
		code = outcome.CodeNotFound
	}
	for _, i := range o.Issue {
		switch i.Code {
		case outcome.CodeNotFound, outcome.CodeTooCostly:
			code = i.Code
		}
		if why == "" {
			why = i.Diagnostics
		}
		if why == "" {
			why = i.Details.Text
		}
	}
	if why == "" {
		why = fmt.Sprintf("%d %s", status, http.StatusText(status))
	}
	return outcome.New(code, "the terminology server refuses %s: %s", path, outcome.Clip(why))
}

type tooLarge struct{}

func (tooLarge) Error() string { return "the answer is too large" }

// send is one HTTP exchange. typ is the media type of the answer.
func (s *externalServer) send(ctx context.Context, path string, in askedParameters, limit int64) (body []byte, status int, typ string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var req *http.Request
	if query, ok := parameters.Query(in); ok {
		req, err = http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/"+path+"?"+query, nil)
	} else {
		var b []byte
		if b, err = parameters.Write(in); err != nil {
			return nil, 0, "", err
		}
		if req, err = http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/"+path, bytes.NewReader(b)); err == nil {
			req.Header.Set("Content-Type", "application/fhir+json")
		}
	}
	if err != nil {
		return nil, 0, "", err
	}
	req.Header.Set("Accept", "application/fhir+json")
	switch {
	case s.config.Token != "":
		req.Header.Set("Authorization", "Bearer "+s.config.Token)
	case s.config.Username != "":
		req.SetBasicAuth(s.config.Username, s.config.Password)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, 0, "", err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, 0, "", err
	}
	if int64(len(body)) > limit {
		return nil, 0, "", tooLarge{}
	}
	typ, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode == http.StatusOK && !strings.Contains(typ, "json") {
		return nil, 0, "", fmt.Errorf("%s answered %q instead of JSON", path, typ)
	}
	return body, resp.StatusCode, typ, nil
}
