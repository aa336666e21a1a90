package terminology

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/search"
)

// remote is an external terminology server. It records requests as "GET ValueSet/$expand count=2 url=http://…" with
// sorted parameters; a value that is no primitive is its JSON.
type remote struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []string
	header http.Header
	// answer writes the response; nil answers from codes.
	answer http.HandlerFunc
	// codes are the expansions by url; a value set in the body is "body".
	codes map[string][]string
}

func newRemote(t testing.TB) *remote {
	r := &remote{codes: map[string][]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (r *remote) serve(w http.ResponseWriter, req *http.Request) {
	in := map[string]string{}
	for k, v := range req.URL.Query() {
		in[k] = strings.Join(v, ",")
	}
	if req.Method == http.MethodPost {
		var p struct {
			Parameter []map[string]json.RawMessage
		}
		body, _ := io.ReadAll(req.Body)
		if err := json.Unmarshal(body, &p); err != nil {
			http.Error(w, "not JSON", http.StatusBadRequest)
			return
		}
		for _, q := range p.Parameter {
			name, _ := strconv.Unquote(string(q["name"]))
			for k, v := range q {
				if k != "name" {
					in[name] = strings.Trim(string(v), `"`)
				}
			}
		}
	}
	var list []string
	for k, v := range in {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	r.mu.Lock()
	r.asked = append(r.asked, req.Method+" "+strings.TrimPrefix(req.URL.Path, "/fhir/")+" "+strings.Join(list, " "))
	r.header = req.Header
	answer := r.answer
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/fhir+json")
	if answer != nil {
		answer(w, req)
		return
	}
	name := in["url"]
	if name == "" {
		name = "body"
	}
	codes, ok := r.codes[name]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"not-found","diagnostics":"no value set %s"}]}`, name)
		return
	}
	offset, _ := strconv.Atoi(in["offset"])
	count, _ := strconv.Atoi(in["count"])
	page := codes[min(offset, len(codes)):]
	page = page[:min(count, len(page))]
	x := Expansion{Total: new(int)}
	*x.Total = len(codes)
	for _, c := range page {
		system, code, _ := strings.Cut(c, "|")
		x.Contains = append(x.Contains, Contained{System: system, Code: code, Display: "Display of " + code})
	}
	json.NewEncoder(w).Encode(map[string]any{"resourceType": "ValueSet", "status": "active", "expansion": x})
}

// takes returns the requests since the last call.
func (r *remote) takes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.asked
	r.asked = nil
	return list
}

func (r *remote) answers(h http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = h
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func external(t testing.TB, r *remote, resources ...string) (*Service, *clock) {
	t.Helper()
	have := &stored{}
	for _, res := range resources {
		have.put(t, res)
	}
	at := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s, err := New(Config{Packages: r4, Resources: have, Now: at.Now, Server: ServerConfig{URL: r.URL + "/fhir/"}})
	if err != nil {
		t.Fatal(err)
	}
	return s, at
}

func want(t testing.TB, r *remote, asked ...string) {
	t.Helper()
	if got := r.takes(); !slices.Equal(got, asked) {
		t.Errorf("the server was asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(asked, "\n"))
	}
}

func TestServerExpand(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.codes["http://far/vs"] = []string{"http://far|a", "http://far|b", "http://far|c"}
	s, at := external(t, r)

	// 1. Asked once, then kept.
	for range 2 {
		if got := tree(expand(t, s, ExpandParams{URL: "http://far/vs|1"}).Expansion.Contains); got != "a b c" {
			t.Errorf("got %q", got)
		}
	}
	want(t, r, "GET ValueSet/$expand count=10000 offset=0 url=http://far/vs valueSetVersion=1")

	// 2. No request is sent for local definitions.
	expand(t, s, ExpandParams{URL: "http://hl7.org/fhir/ValueSet/administrative-gender"})
	want(t, r)

	// 3. A page is asked for as a page.
	two := 2
	got := expand(t, s, ExpandParams{URL: "http://far/vs", Count: &two, Offset: 1, Filter: "dis", ActiveOnly: true}).Expansion
	if tree(got.Contains) != "b c" || *got.Total != 3 {
		t.Errorf("page is %q of %d", tree(got.Contains), *got.Total)
	}
	want(t, r, "GET ValueSet/$expand activeOnly=true count=2 filter=dis offset=1 url=http://far/vs")

	// 4. After its lifetime it is asked for again.
	r.codes["http://far/vs"] = []string{"http://far|d"}
	at.add(time.Hour)
	if got := tree(expand(t, s, ExpandParams{URL: "http://far/vs|1"}).Expansion.Contains); got != "d" {
		t.Errorf("after its lifetime: got %q", got)
	}
	want(t, r, "GET ValueSet/$expand count=10000 offset=0 url=http://far/vs valueSetVersion=1")

	// 5. Nobody knows it.
	_, err := s.Expand(t.Context(), ExpandParams{URL: "http://far/none"})
	refused(t, err, 404, outcome.CodeNotFound, "ValueSet http://far/none not found")
}

func TestServerPages(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	for i := range pageSize*2 + 5 {
		r.codes["http://far/vs"] = append(r.codes["http://far/vs"], fmt.Sprintf("http://far|c%05d", i))
	}
	s, _ := external(t, r)
	got := expand(t, s, ExpandParams{URL: "http://far/vs"}).Expansion
	if len(got.Contains) != pageSize*2+5 || got.Contains[pageSize].Code != "c10000" {
		t.Errorf("%d codes", len(got.Contains))
	}
	want(t, r, "GET ValueSet/$expand count=10000 offset=0 url=http://far/vs", "GET ValueSet/$expand count=10000 offset=10000 url=http://far/vs",
		"GET ValueSet/$expand count=10000 offset=20000 url=http://far/vs")

	// A server that has no pages gives all at once, without a total.
	r.answers(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"resourceType":"ValueSet","expansion":{"contains":[{"system":"s","code":"a","contains":[{"system":"s","code":"b"}]}]}}`)
	})
	if got := tree(expand(t, s, ExpandParams{URL: "http://far/other"}).Expansion.Contains); got != "a (b)" {
		t.Errorf("got %q", got)
	}
	if n := len(r.takes()); n != 2 {
		t.Errorf("asked %d times for an answer without pages, want 2: the second one shows that there are none", n)
	}
}

// A local value set with codes from a system that only the server has.
func TestServerSystem(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.codes["body"] = []string{"http://loinc.org|8480-6", "http://loinc.org|8462-4"}
	s, _ := external(t, r, animals, vs("http://x/vs/both", `{"include":[{"system":"http://x/animals","concept":[{"code":"dog"}]},
		{"system":"http://loinc.org","filter":[{"property":"CLASS","op":"=","value":"BP"}]}],"exclude":[{"system":"http://loinc.org","concept":[{"code":"8462-4"}]}]}`))
	if got := tree(expand(t, s, ExpandParams{URL: "http://x/vs/both"}).Expansion.Contains); got != "dog 8480-6" {
		t.Errorf("got %q", got)
	}
	want(t, r, `POST ValueSet/$expand count=10000 offset=0 valueSet={"resourceType":"ValueSet","status":"active","compose":{"include":[{"system":"http://loinc.org","filter":[{"property":"CLASS","op":"=","value":"BP"}]}]}}`)
}

func TestServerOperations(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	s, _ := external(t, r, vs("http://x/vs/sct", `{"include":[{"system":"http://snomed.info/sct","filter":[{"property":"concept","op":"is-a","value":"73211009"}]}]}`))
	r.answers(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"resourceType":"Parameters","parameter":[{"name":"result","valueBoolean":true},{"name":"display","valueString":"Diabetes"},
			{"name":"outcome","valueCode":"subsumes"},{"name":"property","part":[{"name":"code","valueCode":"x"},{"name":"value","valueDecimal":1.50}]}]}`)
	})
	for range 2 {
		got, err := s.ValidateCode(t.Context(), ValidateCodeParams{URL: "http://far/vs", Coding: []Coding{{System: "http://snomed.info/sct", Code: "44054006"}}})
		if err != nil || !got.Result || got.Coding.Display != "Diabetes" {
			t.Errorf("$validate-code: %+v, %v", got, err)
		}
	}
	want(t, r, "GET ValueSet/$validate-code code=44054006 system=http://snomed.info/sct url=http://far/vs")

	got, err := s.ValidateCode(t.Context(), ValidateCodeParams{URL: "http://x/vs/sct", Coding: []Coding{{System: "http://snomed.info/sct", Code: "44054006"}}})
	if err != nil || !got.Result {
		t.Errorf("$validate-code of a local value set: %+v, %v", got, err)
	}
	want(t, r, `POST ValueSet/$validate-code code=44054006 system=http://snomed.info/sct valueSet={"resourceType":"ValueSet","url":"http://x/vs/sct","status":"active","compose":{"include":[{"system":"http://snomed.info/sct","filter":[{"property":"concept","op":"is-a","value":"73211009"}]}]}}`)

	if in, known, err := s.MemberOf(t.Context(), "http://snomed.info/sct", "44054006", "http://x/vs/sct"); !in || !known || err != nil {
		t.Errorf("MemberOf: %v, %v, %v", in, known, err)
	}
	want(t, r)

	o, err := s.SubsumesOutcome(t.Context(), SubsumesParams{System: "http://snomed.info/sct", CodeA: "1", CodeB: "2"})
	if err != nil || o != SubsumesCode {
		t.Errorf("$subsumes: %v, %v", o, err)
	}
	want(t, r, "GET CodeSystem/$subsumes codeA=1 codeB=2 system=http://snomed.info/sct")

	body, err := s.Lookup(t.Context(), LookupParams{System: "http://loinc.org", Code: "8480-6"})
	if err != nil || !strings.Contains(string(body), `"valueDecimal":1.50`) {
		t.Errorf("$lookup: %s, %v", body, err)
	}
	want(t, r, "GET CodeSystem/$lookup code=8480-6 system=http://loinc.org")
}

func TestServerCredentials(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		config ServerConfig
		want   string
	}{
		{"none", ServerConfig{}, ""},
		{"a token", ServerConfig{Token: "secret"}, "Bearer secret"},
		{"a user", ServerConfig{Username: "u", Password: "p"}, "Basic dTpw"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRemote(t)
			r.codes["http://far/vs"] = []string{"s|a"}
			tt.config.URL = r.URL
			s, err := New(Config{Server: tt.config})
			if err != nil {
				t.Fatal(err)
			}
			expand(t, s, ExpandParams{URL: "http://far/vs"})
			if got := r.header.Get("Authorization"); got != tt.want {
				t.Errorf("Authorization is %q, want %q", got, tt.want)
			}
			if got := r.header.Get("Accept"); got != "application/fhir+json" {
				t.Errorf("Accept is %q", got)
			}
		})
	}
	if _, err := New(Config{Server: ServerConfig{URL: "ftp://x"}}); err == nil || !strings.Contains(err.Error(), "terminology.server_url") {
		t.Errorf("a bad URL: %v", err)
	}
}

func TestServerFailures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		status int
		code   outcome.Code
		want   string
	}{
		{"a failing server", status(500, "<html>oops"), 503, outcome.CodeException, "terminology server unavailable: it answered 500 Internal Server Error"},
		{"a busy one", status(429, ""), 503, outcome.CodeException, "429"},
		{"one that does not know us", status(401, ""), 503, outcome.CodeException, "401 Unauthorized"},
		{"one that refuses", status(400, `{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"processing","details":{"text":"bad filter"}}]}`), 400, outcome.CodeInvalid, "the terminology server refuses ValueSet/$expand: bad filter"},
		{"too costly there", status(422, `{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"too-costly","diagnostics":"has 900000 codes"}]}`), 400, outcome.CodeTooCostly, "has 900000 codes"},
		{"unknown there", status(422, `{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"not-found","diagnostics":"?"}]}`), 404, outcome.CodeNotFound, "ValueSet http://far/vs not found"},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html>")
		}, 503, outcome.CodeException, "did not answer in FHIR"},
		{"no value set", status(200, `[]`), 503, outcome.CodeException, "did not answer in FHIR"},
		{"no expansion", status(200, `{"resourceType":"ValueSet"}`), 503, outcome.CodeException, "did not answer in FHIR"},
		{"a total that is too large", status(200, `{"resourceType":"ValueSet","expansion":{"total":900000,"contains":[{"code":"a"}]}}`), 400, outcome.CodeTooCostly, "at most 250000 codes"},
		{"an answer that is too large", func(w http.ResponseWriter, _ *http.Request) {
			chunk := []byte(strings.Repeat(" ", 1<<20))
			for range 100 {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, 400, outcome.CodeTooCostly, "larger than 67108864 bytes"},
		{"a connection that breaks", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 503, outcome.CodeException, "the connection failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRemote(t)
			r.answer = tt.answer
			s, _ := external(t, r)
			_, err := s.Expand(t.Context(), ExpandParams{URL: "http://far/vs"})
			refused(t, err, tt.status, tt.code, tt.want)
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		r := newRemote(t)
		s, _ := external(t, r)
		r.Close()
		_, err := s.Expand(t.Context(), ExpandParams{URL: "http://far/vs"})
		refused(t, err, 503, outcome.CodeException, "connection refused")
		if strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("the error tells the address: %v", err)
		}
	})
	t.Run("too slow", func(t *testing.T) {
		r := newRemote(t)
		gone := make(chan struct{})
		r.answer = func(_ http.ResponseWriter, req *http.Request) { <-gone }
		defer close(gone)
		s, err := New(Config{Server: ServerConfig{URL: r.URL, Timeout: time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Expand(t.Context(), ExpandParams{URL: "http://far/vs"})
		refused(t, err, 503, outcome.CodeException, "it took too long")
	})
}

func TestServerStale(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.codes["http://far/vs"] = []string{"http://far|a"}
	s, at := external(t, r)
	expand(t, s, ExpandParams{URL: "http://far/vs"})
	r.answers(status(503, ""))
	at.add(2 * time.Hour)
	got := expand(t, s, ExpandParams{URL: "http://far/vs"}).Expansion
	warned := slices.ContainsFunc(got.Parameter, func(p parameters.Parameter) bool {
		return p.Name == "warning" && strings.Contains(p.Text(), "does not answer") && strings.Contains(p.Text(), "2026-01-01T00:00:00Z")
	})
	if tree(got.Contains) != "a" || !warned {
		t.Errorf("got %q, %+v", tree(got.Contains), got.Parameter)
	}
	_, warnings, err := s.SearchCodes(t.Context(), search.Expansion{Modifier: "in", ValueSet: "http://far/vs"})
	if err != nil || len(warnings) != 1 {
		t.Errorf("search: %v, %v", warnings, err)
	}

	// When it is back, its word counts again.
	r.answers(nil)
	r.codes["http://far/vs"] = []string{"http://far|b"}
	if got := expand(t, s, ExpandParams{URL: "http://far/vs"}).Expansion; tree(got.Contains) != "b" || len(got.Parameter) != 0 {
		t.Errorf("afterwards: %q, %+v", tree(got.Contains), got.Parameter)
	}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.answers(status(500, ""))
	s, at := external(t, r)
	for i := range breakerFailures + 3 {
		_, err := s.Expand(t.Context(), ExpandParams{URL: fmt.Sprintf("http://far/%d", i)})
		refused(t, err, 503, outcome.CodeException, "it answered 500")
	}
	if n := len(r.takes()); n != breakerFailures {
		t.Errorf("asked %d times, want %d: then it is left alone", n, breakerFailures)
	}

	// After the pause one request tries; as long as that fails the pause doubles.
	for _, tt := range []struct {
		after time.Duration
		asked int
	}{{breakerPause, 1}, {breakerPause, 0}, {breakerPause, 1}} {
		at.add(tt.after)
		for range 3 {
			_, err := s.Expand(t.Context(), ExpandParams{URL: "http://far/vs"})
			refused(t, err, 503, outcome.CodeException, "it answered 500")
		}
		if n := len(r.takes()); n != tt.asked {
			t.Errorf("asked %d times, want %d", n, tt.asked)
		}
	}

	r.answers(nil)
	r.codes["http://far/vs"] = []string{"s|a"}
	at.add(breakerMaxPause)
	if got := tree(expand(t, s, ExpandParams{URL: "http://far/vs"}).Expansion.Contains); got != "a" {
		t.Errorf("got %q", got)
	}
	_, err := s.Expand(t.Context(), ExpandParams{URL: "http://far/none"})
	refused(t, err, 404, outcome.CodeNotFound, "not found")
}

// Many who ask at once make one request.
func TestServerAskedOnce(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	begun, release := make(chan struct{}, 100), make(chan struct{})
	r.answers(func(w http.ResponseWriter, _ *http.Request) {
		begun <- struct{}{}
		<-release
		io.WriteString(w, `{"resourceType":"ValueSet","expansion":{"total":1,"contains":[{"system":"s","code":"a"}]}}`)
	})
	s, _ := external(t, r)
	var done sync.WaitGroup
	for range 20 {
		done.Go(func() {
			if _, err := s.Expand(context.Background(), ExpandParams{URL: "http://far/vs"}); err != nil {
				t.Error(err)
			}
		})
	}
	<-begun
	close(release)
	done.Wait()
	if n := len(r.takes()); n != 1 {
		t.Errorf("asked %d times", n)
	}
}
