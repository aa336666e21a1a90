package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server"
)

// Hostile searches, by GET and by POST: a right answer, or a 400 that names the fault (search.html#errors, contract).
func TestHostileSearches(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Patient","id":"p","name":[{"family":"a;b=c"}]}`,
		`{"resourceType":"Observation","id":"o","status":"final","code":{"coding":[{"code":"c"}]},"subject":{"reference":"Patient/p"},"valueQuantity":{"value":1}}`,
	)
	values := func(n int, format string) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(list, ",")
	}
	again := func(n int, parameter string) string { return strings.Repeat(parameter+"&", n-1) + parameter }
	for _, c := range []struct {
		name, path, query string
		want              string // the total, or the issue code and words of the outcome
	}{
		{"an unknown parameter", "Patient", "famly=x", "not-supported famly family"},
		{"an unknown parameter without a value", "Patient", "famly", "not-supported famly"},
		{"a parameter without a name", "Patient", "=x", "not-supported"},
		{"an unknown modifier", "Patient", "family:nothing=x", "invalid family:nothing :exact"},
		{"a modifier after a modifier", "Patient", "family:exact:exact=x", "invalid family:exact:exact"},
		{"a colon alone", "Patient", "family:=x", "invalid family:"},
		{"an unknown prefix", "Patient", "birthdate=zz2020", "invalid birthdate zz2020"},
		{"an unknown unit", "Observation", "value-quantity=1|http://unitsofmeasure.org|nothing", "0"},
		{"a day that is none", "Patient", "birthdate=2020-02-30", "invalid birthdate 2020-02-30"},
		{"a year that is none", "Patient", "birthdate=10000", "invalid birthdate 10000"},
		{"an unknown sort key", "Patient", "_sort=nothing", "not-supported _sort nothing"},
		{"a hundred sort keys", "Patient", "_sort=" + values(100, "k%d"), "too-costly _sort 100"},
		{"an unknown include", "Patient", "_include=Patient:nothing", "invalid _include nothing"},
		{"a hundred equal includes", "Patient", again(100, "_revinclude:iterate=*"), "1"},
		{"a negative count", "Patient", "_count=-1", "invalid _count -1"},
		{"an enormous count", "Patient", "_count=99999999999999999999", "invalid _count"},
		{"a negative offset", "Patient", "_offset=-1", "invalid _offset -1"},
		{"an offset beyond all numbers", "Patient", "_offset=99999999999999999999", "invalid _offset"},
		{"the largest offset", "Patient", "_offset=9223372036854775807&_count=200", "1"},
		{"a forged cursor", "Patient", "_cursor=AAAA", "invalid _cursor"},
		{"a forged cursor of JSON", "Patient", "_cursor=eyJyIjotMX0", "invalid _cursor"},
		{"a long cursor", "Patient", "_cursor=" + strings.Repeat("A", 10_000), "invalid _cursor"},
		{"a chain over no reference", "Patient", "family.name=x", "invalid family"},
		{"a chain into nowhere", "Patient", "organization.nothing.name=x", "not-supported nothing Organization"},
		{"a chain without end", "Patient", "organization." + strings.Repeat("partof.", 50) + "name=x", "too-costly hops"},
		{"a chain over everything", "QuestionnaireResponse", strings.Repeat("subject.", 8) + "family=x", "too-costly subject"},
		{"a reverse chain without end", "Patient", strings.Repeat("_has:Observation:focus:", 40) + "code=x", "too-costly hops"},
		{"a reverse chain from nowhere", "Patient", "_has:Nothing:x:y=z", "not-supported Nothing"},
		{"a reverse chain without a parameter", "Patient", "_has:Observation:patient:=z", "invalid _has"},
		{"10,000 tokens", "Observation", "code=" + values(9_999, "x%d") + ",c", "1"},
		{"10,000 tokens that it is not", "Observation", "code:not=" + values(10_000, "x%d"), "1"},
		{"10,000 ids", "Patient", "_id=" + values(9_999, "x%d") + ",p", "1"},
		{"10,000 references", "Observation", "subject=" + values(9_999, "x%d") + ",p", "1"},
		{"10,000 values at the end of a chain", "Observation", "patient.identifier=" + values(10_000, "x%d"), "0"},
		{"10,000 values at the end of a reverse chain", "Patient", "_has:Observation:patient:code=" + values(9_999, "x%d") + ",c", "1"},
		{"10,001 values", "Patient", "_id=" + values(10_001, "x%d"), "too-costly _id 10000"},
		{"10,000 ids of any type", "", "_id=" + values(10_000, "x%d"), "too-costly _id"},
		{"10,000 references to any type", "List", "item=" + values(10_000, "x%d"), "too-costly item"},
		{"10,000 strings", "Patient", "family=" + values(10_000, "x%d"), "too-costly family 10000"},
		{"10,000 texts", "Observation", "code:text=" + values(10_000, "x%d"), "too-costly code:text 10000"},
		{"10,000 uris and what is below", "Patient", "_profile:below=" + values(10_000, "http://x/%d"), "too-costly _profile:below 10000"},
		{"64 strings", "Patient", "family=" + values(63, "x%d") + ",a", "1"},
		{"64 quantities, often", "Observation", again(150, "value-quantity="+values(64, "ne%d|http://unitsofmeasure.org|mg")), "too-costly value-quantity"},
		{"200 parameters", "Patient", again(200, "family=a"), "1"},
		{"200 chains", "Observation", again(200, "patient.family=a"), "1"},
		{"200 reverse chains", "Patient", again(200, "_has:Observation:patient:code=c"), "1"},
		{"201 parameters", "Patient", again(201, "family=a"), "too-costly 201 200"},
		{"a NUL", "Patient", "family=a%00b", "invalid family"},
		{"a NUL in a name", "Patient", "fam%00ily=a", "invalid"},
		{"bytes that are not UTF-8", "Patient", "family=%ff%fe", "invalid family UTF-8"},
		{"an overlong encoding", "Patient", "family=%c0%80", "invalid family UTF-8"},
		{"half a surrogate pair", "Patient", "family=%ed%a0%80", "invalid family UTF-8"},
		{"a broken escape", "Patient", "family=%zz", "invalid %zz"},
		{"a semicolon is data (RFC 3986 §3.4)", "Patient", "family=a;b=c", "1"},
		{"empty parameters", "Patient", "&&family=a&", "1"},
		{"a number beyond all numbers", "Observation", "value-quantity=1e999999999", "invalid value-quantity"},
		{"5,000 digits", "Observation", "value-quantity=" + strings.Repeat("9", 5_000), "invalid value-quantity"},
		{"nothing but an accent", "Patient", "family=%CC%81", "invalid family"},
		{"60,000 letters", "Patient", "family=" + strings.Repeat("x", 60_000), "0"},
		{"a text of wildcards", "Patient", "family:contains=%25_%25", "0"},
		{"a backslash at the end", "Patient", `family=%5C`, "invalid family backslash"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			path := "/" + c.path
			if path != "/" {
				path += "/"
			}
			asked := []*answer{s.post(path+"_search", c.query, "Content-Type", "application/x-www-form-urlencoded")}
			if len(c.query) < 63_000 { // longer text is no URL, search.html#Introduction
				asked = append(asked, s.get("/"+c.path+"?"+c.query))
			}
			for _, a := range asked {
				checkNoLeak(t, a)
				if strings.Trim(c.want, "0123456789") == "" {
					a.want(200).equal("total", c.want)
					continue
				}
				words := strings.Fields(c.want)
				a.issue(400, words[0])
				for _, w := range words[1:] {
					if !strings.Contains(a.str("issue.0.diagnostics"), w) {
						t.Errorf("the outcome does not say %q: %s", w, a.str("issue.0.diagnostics"))
					}
				}
			}
		})
	}
	t.Run("a URL that is too long: 414", func(t *testing.T) {
		s.in(t).get("/Patient?_id="+values(10_000, "xxxxx%d")).issue(414, "too-long", "_search")
	})
	t.Run("the service is still there", func(t *testing.T) {
		s.in(t).get("/Patient?family=a").want(200).equal("total", "1")
	})
}

// contract: search.timeout_seconds ends a search with 503 and timeout, and
// PostgreSQL stops working on it.
func TestSearchTimeout(t *testing.T) {
	var url string
	s := start(t, func(c *server.Config) {
		c.Search.TimeoutSeconds = 1
		url = c.Database.URL
	})
	s.load(`{"resourceType":"Patient","id":"p","name":[{"family":"a"}]}`)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	// Whoever reads waits for this transaction.
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "LOCK TABLE resource IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/Patient?family=a", "/Patient?_sort=family", "/?_lastUpdated=gt2000"} {
		begin := time.Now()
		a := s.get(path).issue(503, "timeout", "search.timeout_seconds")
		if took := time.Since(begin); took < time.Second || took > 20*time.Second {
			t.Errorf("%s: given up after %s, want 1 s", path, took)
		}
		if a.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", path)
		}
		checkNoLeak(t, a)
	}
	// The answer comes after PostgreSQL has given up the statement. Others may wait for the table too: the background reads
	// the matches and common terms for the search cache, and the sizes of the types.
	var waiting string
	if err := tx.QueryRow(ctx, `SELECT coalesce(string_agg(a.query, E'\n'), '') FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE NOT l.granted AND l.relation = 'resource'::regclass AND a.query LIKE '%FROM resource r %' AND a.query NOT LIKE 'SELECT r.rid FROM %' AND a.query NOT LIKE 'WITH b AS MATERIALIZED %'
		AND a.query NOT LIKE 'SELECT t.typ, %'`).Scan(&waiting); err != nil {
		t.Fatal(err)
	}
	if waiting != "" {
		t.Errorf("statements still run in PostgreSQL:\n%s", waiting)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	s.get("/Patient?family=a").want(200).equal("total", "1")
}
