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

// Bounds of what is taken from the server.
const (
	maxAnswer = 64 << 20 // bytes of one answer, all pages together, unpacked
	pageSize  = 10_000   // codes asked for at a time
	fetchTime = 2 * time.Minute
)

// externalServer is the external terminology server with what it has said before.
type externalServer struct {
	base    string
	config  ServerConfig
	client  *http.Client
	breaker breaker
	cache   *expansionCache
}

// question is what is asked with $expand. Its JSON is what the answer is kept
// under.
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
// (503).
func (s *externalServer) expand(ctx context.Context, q question) (*expansion, error) {
	name, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("terminology question: %w", err)
	}
	whole := q.Count == nil && q.Filter == ""
	a, stale, err := s.cache.get(ctx, "expand "+string(name), whole, func(ctx context.Context) ([]byte, error) { return s.fetchExpansion(ctx, q) })
	if err != nil {
		return nil, err
	}
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
		a.expansion = &expansion{foreign: true}
		if x.Total != nil {
			a.expansion.total = *x.Total
		}
		a.err = a.expansion.contain(x.Contains, -1)
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

// fetchExpansion asks for an expansion, page by page, and returns it as one.
func (s *externalServer) fetchExpansion(ctx context.Context, q question) ([]byte, error) {
	all := Expansion{}
	budget := int64(maxAnswer)
	count, offset := pageSize, 0
	if q.Count != nil {
		count, offset = *q.Count, q.Offset
	}
	for {
		page, err := s.page(ctx, q, count, offset, &budget)
		if err != nil {
			return nil, err
		}
		n := countOf(page.Contains)
		all.Contains = append(all.Contains, page.Contains...)
		if q.Count != nil {
			all.Total = page.Total
			break
		}
		offset += n
		switch {
		case offset > maxCodes || page.Total != nil && *page.Total > maxCodes:
			return nil, tooCostly("by the terminology server's count")
		case n == 0, page.Total != nil && offset >= *page.Total, page.Total == nil && n != count:
			// An answer that is longer than a page comes from a server without pages.
			total := offset
			all.Total = &total
			return json.Marshal(all)
		}
	}
	return json.Marshal(all)
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
	in := parametersIn{}
	if q.Compose != nil {
		vs := struct {
			ResourceType string `json:"resourceType"`
			ValueSet
		}{"ValueSet", ValueSet{Status: "active", Compose: q.Compose}}
		in.resource("valueSet", vs)
	} else {
		c := parseCanonical(q.URL)
		in.text("url", "valueUri", c.url)
		in.text("valueSetVersion", "valueString", c.version)
	}
	in.text("filter", "valueString", q.Filter)
	in.text("displayLanguage", "valueCode", q.DisplayLanguage)
	in.flag("activeOnly", q.ActiveOnly)
	in.flag("includeDesignations", q.IncludeDesignations)
	in.number("count", count)
	in.number("offset", offset)
	body, err := s.call(ctx, "ValueSet/$expand", in, budget)
	if err != nil {
		return nil, err
	}
	var vs ValueSet
	if err := json.Unmarshal(body, &vs); err != nil {
		return nil, s.unavailable(fmt.Errorf("$expand answered what is no ValueSet: %w", err))
	}
	if vs.Expansion == nil {
		return nil, s.unavailable(errors.New("$expand answered a ValueSet without expansion"))
	}
	return vs.Expansion, nil
}

// operation asks for an operation that answers Parameters, and returns them.
func (s *externalServer) operation(ctx context.Context, path string, in parametersIn) (*parametersOut, string, error) {
	name, err := json.Marshal(in)
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
	var out parametersOut
	if err := json.Unmarshal(body, &out); err != nil || out.ResourceType != "Parameters" {
		return nil, "", s.unavailable(fmt.Errorf("%s answered what are no Parameters: %w", path, err))
	}
	return &out, stale, nil
}

// unreachable is the cause of every failure that is the server's and not the
// question's.
type unreachable struct{ cause error }

func (u unreachable) Error() string { return u.cause.Error() }
func (u unreachable) Unwrap() error { return u.cause }

// unavailable is the 503 for a server that does not answer, or not in FHIR. The
// client is told what kind of failure it was; addresses stay in the log.
func (s *externalServer) unavailable(cause error) error {
	return outcome.New(outcome.CodeException, "terminology server unavailable: %s", reason(cause)).WithStatus(503).Because(unreachable{cause})
}

func reason(err error) string {
	var timeout interface{ Timeout() bool }
	var status statusError
	switch {
	case errors.As(err, &status):
		return status.Error()
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

// statusError is an HTTP status that says the server cannot serve now.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("it answered %d %s", int(e), http.StatusText(int(e)))
}

// call makes one request and returns the body of a good answer, whose size is
// taken off budget.
func (s *externalServer) call(ctx context.Context, path string, in parametersIn, budget *int64) ([]byte, error) {
	if err := s.breaker.allow(); err != nil {
		return nil, s.unavailable(err)
	}
	body, status, err := s.send(ctx, path, in, *budget)
	if err == nil && (status >= 500 && status != http.StatusNotImplemented || status == http.StatusTooManyRequests ||
		status == http.StatusUnauthorized || status == http.StatusForbidden) {
		err = statusError(status)
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

// refusal is what a 4xx of the server means to our client.
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
	return outcome.New(code, "the terminology server refuses %s: %s", path, clip(why))
}

type tooLarge struct{}

func (tooLarge) Error() string { return "the answer is too large" }

// send is one HTTP exchange.
func (s *externalServer) send(ctx context.Context, path string, in parametersIn, limit int64) (body []byte, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var req *http.Request
	if query, ok := in.query(); ok {
		req, err = http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/"+path+"?"+query, nil)
	} else {
		var b []byte
		if b, err = json.Marshal(in); err != nil {
			return nil, 0, err
		}
		if req, err = http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/"+path, bytes.NewReader(b)); err == nil {
			req.Header.Set("Content-Type", "application/fhir+json")
		}
	}
	if err != nil {
		return nil, 0, err
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
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, 0, err
	}
	if int64(len(body)) > limit {
		return nil, 0, tooLarge{}
	}
	if resp.StatusCode == http.StatusOK {
		if typ, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); !strings.Contains(typ, "json") {
			return nil, 0, fmt.Errorf("%s answered %q instead of JSON", path, typ)
		}
	}
	return body, resp.StatusCode, nil
}
