package terminology

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"kiln/server/outcome"
	"kiln/server/search"
)

// pages answers $expand from codes c0, c1, … of a system, at most most of them at a
// time, as its fields say.
type pages struct {
	codes, most  int
	total        *int   // told; nil is not
	ignoreOffset bool   // every page is the first
	extra        string // more elements of the expansion, as JSON with a comma after each
}

func (p pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	count, _ := strconv.Atoi(r.URL.Query().Get("count"))
	if p.ignoreOffset {
		offset = 0
	}
	list := []Contained{}
	for i := offset; i < p.codes && len(list) < min(count, p.most); i++ {
		list = append(list, Contained{System: "http://far", Code: fmt.Sprintf("c%d", i)})
	}
	body, _ := json.Marshal(list)
	total := ""
	if p.total != nil {
		total = fmt.Sprintf(`"total":%d,`, *p.total)
	}
	fmt.Fprintf(w, `{"resourceType":"ValueSet","status":"active","expansion":{%s%s"contains":%s}}`, p.extra, total, body)
}

// Contract, Specification "Terminology-backed behaviour": a search or check by an
// expansion that the server has cut would miss codes without a word.
func TestExternalExpansionIsNeverPartial(t *testing.T) {
	t.Parallel()
	number := func(n int) *int { return &n }
	const unclosed = `"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/valueset-unclosed","valueBoolean":true}],`
	const costly = `"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/valueset-toocostly","valueBoolean":true}],`
	for _, tt := range []struct {
		name      string
		answer    pages
		wantCodes int // of :in; 0 is a refusal
		status    int
		code      outcome.Code
		why       string
	}{
		{"pages of 100 without total are all fetched", pages{codes: 250, most: 100}, 250, 0, "", ""},
		{"pages of 100 with total are all fetched", pages{codes: 250, most: 100, total: number(250)}, 250, 0, "", ""},
		{"a server without pages sends everything", pages{codes: 42, most: 10_000, ignoreOffset: true}, 42, 0, "", ""},
		{"pages end before the total", pages{codes: 250, most: 100, total: number(300)}, 0, 503, outcome.CodeException, "250 of 300 codes came"},
		{"the first page comes again, the total says more", pages{codes: 250, most: 100, total: number(250), ignoreOffset: true}, 0, 503, outcome.CodeException, "100 of 250 codes came"},
		{"a full page comes again", pages{codes: 20_000, most: 20_000, ignoreOffset: true}, 0, 503, outcome.CodeException, "first one again"},
		{"a page as large as the server's limit comes again", pages{codes: 250, most: 100, ignoreOffset: true, extra: `"parameter":[{"name":"count","valueInteger":100}],`},
			0, 503, outcome.CodeException, "first one again"},
		{"valueset-unclosed", pages{codes: 7, most: 100, total: number(7), extra: unclosed}, 0, 422, outcome.CodeIncomplete, "valueset-unclosed"},
		{"valueset-unclosed without total", pages{codes: 7, most: 100, extra: unclosed}, 0, 422, outcome.CodeIncomplete, "valueset-unclosed"},
		{"valueset-toocostly", pages{codes: 7, most: 100, extra: costly}, 0, 400, outcome.CodeTooCostly, "has cut it"},
		{"limitedExpansion", pages{codes: 7, most: 100, extra: `"parameter":[{"name":"limitedExpansion","valueBoolean":true}],`}, 0, 400, outcome.CodeTooCostly, "has cut it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRemote(t)
			r.answer = tt.answer.ServeHTTP
			s, _ := external(t, r)
			got, _, err := s.SearchCodes(t.Context(), search.Expansion{Modifier: "in", ValueSet: "http://far/vs"})
			if tt.wantCodes == 0 {
				refused(t, err, tt.status, tt.code, tt.why)
				return
			}
			if err != nil || len(got.Values) != tt.wantCodes {
				t.Errorf("%d codes, %v; want %d", len(got.Values), err, tt.wantCodes)
			}
		})
	}
}

// $expand returns the known part of an unclosed value set, and marks it.
func TestUnclosedExpansionIsMarked(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.answer = pages{codes: 7, most: 100, extra: `"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/valueset-unclosed","valueBoolean":true}],`}.ServeHTTP
	s, _ := external(t, r, vs("http://x/vs/outer", `{"include":[{"valueSet":["http://far/vs"]}]}`))
	two := 2
	for _, p := range []ExpandParams{{URL: "http://far/vs"}, {URL: "http://x/vs/outer"}, {URL: "http://far/vs", Count: &two}} {
		x := expand(t, s, p).Expansion
		if !x.isMarked(unclosedURL) || x.Total != nil {
			t.Errorf("%s: total %v, extensions %v", p.URL, x.Total, x.Extension)
		}
	}
}

// A page without a total is not told as the whole.
func TestPageWithoutTotal(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.answer = pages{codes: 7, most: 100}.ServeHTTP
	s, _ := external(t, r)
	two := 2
	if x := expand(t, s, ExpandParams{URL: "http://far/vs", Count: &two}).Expansion; x.Total != nil || len(x.Contains) != 2 {
		t.Errorf("total %v of %d codes", *x.Total, len(x.Contains))
	}
}

// A stored value set with an expansion and no compose is as complete as it says.
func TestStoredExpansionThatIsCut(t *testing.T) {
	t.Parallel()
	s, _ := local(t, `{"resourceType":"ValueSet","id":"a","url":"http://x/vs/a","status":"active","expansion":{"total":3,"contains":[{"system":"s","code":"a"}]}}`)
	_, _, err := s.SearchCodes(t.Context(), search.Expansion{Modifier: "in", ValueSet: "http://x/vs/a"})
	refused(t, err, 422, outcome.CodeIncomplete, "not complete")
}

// terminology.cache_ttl_secs below a minute holds for searches too.
func TestShortLifetime(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.codes["http://far/vs"] = []string{"http://far|a"}
	at := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	s, err := New(Config{Now: at.Now, Server: ServerConfig{URL: r.URL, CacheTTL: 2 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	q := search.Expansion{Modifier: "in", ValueSet: "http://far/vs"}
	for _, tt := range []struct {
		after time.Duration
		asked int
	}{{0, 1}, {time.Second, 0}, {time.Second, 1}, {1900 * time.Millisecond, 0}, {100 * time.Millisecond, 1}} {
		at.add(tt.after)
		if _, _, err := s.SearchCodes(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		if n := len(r.takes()); n != tt.asked {
			t.Errorf("%v later it was asked %d times, want %d", tt.after, n, tt.asked)
		}
	}
}

// A kept expansion answers $validate-code while the server is down.
func TestValidateCodeByKeptExpansion(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	r.codes["http://far/vs"] = []string{"http://far|a"}
	r.codes["body"] = []string{"http://loinc.org|8480-6"}
	s, at := external(t, r, vs("http://x/vs/loinc", `{"include":[{"system":"http://loinc.org","filter":[{"property":"CLASS","op":"=","value":"BP"}]}]}`))
	expand(t, s, ExpandParams{URL: "http://far/vs"})
	expand(t, s, ExpandParams{URL: "http://x/vs/loinc"})
	r.Close()
	for _, age := range []time.Duration{0, 24 * time.Hour} {
		at.add(age)
		for _, tt := range []struct {
			url, system, code string
			want              bool
		}{
			{"http://far/vs", "http://far", "a", true},
			{"http://far/vs", "http://far", "b", false},
			{"http://x/vs/loinc", "http://loinc.org", "8480-6", true},
			{"http://x/vs/loinc", "http://loinc.org", "1234-5", false},
		} {
			got, err := s.ValidateCode(t.Context(), ValidateCodeParams{URL: tt.url, Coding: []Coding{{System: tt.system, Code: tt.code}}})
			if err != nil || got.Result != tt.want || !strings.Contains(got.Warning, "does not answer") {
				t.Errorf("%s in %s after %v: %+v, %v; want %v with a warning", tt.code, tt.url, age, got, err, tt.want)
			}
		}
	}
	_, err := s.ValidateCode(t.Context(), ValidateCodeParams{URL: "http://far/other", Coding: []Coding{{System: "http://far", Code: "a"}}})
	refused(t, err, 503, outcome.CodeException, "terminology server unavailable")
}

// A 404 of a server that does not know the operation is not "ValueSet not found".
func TestWrongServerURL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, typ, body string }{
		{"a web server", "text/html", "<html>not here"},
		{"JSON that is no FHIR", "application/json", `{"error":"not found"}`},
		{"a FHIR server without the operation", "application/fhir+json", `{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"not-supported"}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRemote(t)
			r.answer = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.typ)
				w.WriteHeader(http.StatusNotFound)
				io.WriteString(w, tt.body)
			}
			s, _ := external(t, r)
			_, err := s.Expand(t.Context(), ExpandParams{URL: "http://far/vs"})
			refused(t, err, 503, outcome.CodeException, "terminology.server_url")
			_, err = s.ValidateCode(t.Context(), ValidateCodeParams{URL: "http://far/vs", Coding: []Coding{{System: "http://far", Code: "a"}}})
			refused(t, err, 503, outcome.CodeException, "it answered 404 Not Found")
			_, _, err = s.SearchCodes(t.Context(), search.Expansion{Modifier: "in", ValueSet: "http://far/vs"})
			refused(t, err, 503, outcome.CodeException, "it answered 404 Not Found")
		})
	}
}
