package conformance

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// load stores resources under the ids they have, in one transaction.
func (s *service) load(resources ...string) {
	s.t.Helper()
	entries := make([]string, len(resources))
	for i, text := range resources {
		var r struct{ ResourceType, ID string }
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			s.t.Fatalf("test resource %d: %v\n%s", i, err, text)
		}
		entries[i] = entry("PUT", r.ResourceType+"/"+r.ID, "", text)
	}
	s.post("/", bundle("transaction", entries...)).want(200)
}

// searchCase is a search with the ids of its expected matches.
type searchCase struct {
	spec  string // the paragraph that says so
	query string // parameters as people write them: values are not percent-encoded
	want  string // ids of the matches, sorted, a space between them; or "400 " and words of the outcome
}

// searches makes each search by GET and by POST, and compares matches and total.
func (s *service) searches(t *testing.T, typ string, cases []searchCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.query+" ("+c.spec+")", func(t *testing.T) {
			s, query := s.in(t), encoded(c.query)
			for _, a := range []*answer{
				s.get("/" + typ + "?_count=200&" + query),
				s.post("/"+typ+"/_search", "_count=200&"+query, "Content-Type", "application/x-www-form-urlencoded"),
			} {
				if words, ok := strings.CutPrefix(c.want, "400"); ok {
					if a.want(400); a.str("resourceType") != "OperationOutcome" {
						t.Fatalf("no OperationOutcome: %s", clip(a.body))
					}
					for w := range strings.FieldsSeq(words) {
						if !strings.Contains(a.str("issue.0.diagnostics"), w) {
							t.Errorf("the outcome does not say %q: %s", w, a.str("issue.0.diagnostics"))
						}
					}
					continue
				}
				got := a.want(200).matches()
				if strings.Join(got, " ") != c.want {
					t.Errorf("%s found %q, want %q", a.what, strings.Join(got, " "), c.want)
				}
				if n, ok := a.at("total").(json.Number); !ok || n.String() != strconv.Itoa(len(strings.Fields(c.want))) {
					t.Errorf("%s: total %v, want %d", a.what, a.at("total"), len(strings.Fields(c.want)))
				}
			}
		})
	}
}

// matches are the sorted ids of the entries with search.mode match.
func (a *answer) matches() []string { return a.entries("match") }

// includes are the sorted Type/id of the entries with search.mode include.
func (a *answer) includes() []string { return a.entries("include") }

func (a *answer) entries(mode string) []string {
	out := []string{}
	for i := range a.len("entry") {
		at := "entry." + strconv.Itoa(i) + "."
		if a.str(at+"search.mode") != mode {
			continue
		}
		id := a.str(at + "resource.id")
		if mode == "include" {
			id = a.str(at+"resource.resourceType") + "/" + id
		}
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// encoded is a query string with its names and values percent-encoded.
func encoded(query string) string {
	parts := strings.Split(query, "&")
	for i, p := range parts {
		name, value, _ := strings.Cut(p, "=")
		parts[i] = url.QueryEscape(name) + "=" + url.QueryEscape(value)
	}
	return strings.Join(parts, "&")
}

// jsonText is a value of an answer as JSON, properties sorted.
func jsonText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
