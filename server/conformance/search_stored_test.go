package conformance

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/store/storetest"
)

const formType = "application/x-www-form-urlencoded"

// manyIDs is a search of n ids beside those of the given patients: about 38 bytes for each.
func manyIDs(n int, ids ...string) string {
	for i := range n {
		ids = append(ids, fmt.Sprintf("0193d1c4-0000-7000-8000-%012d", i))
	}
	return "_id=" + strings.Join(ids, ",")
}

// relations are the links of a page, by relation.
func (a *answer) relations() map[string]string {
	out := make(map[string]string)
	for i := range a.len("link") {
		out[a.str(fmt.Sprintf("link.%d.relation", i))] = a.str(fmt.Sprintf("link.%d.url", i))
	}
	return out
}

// Contract, Design 2: the links of a search with long parameters name a stored search.
func TestLongSearches(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	s := authorizedOn(t, database)
	other := authorizedOn(t, database)
	all := s.as(systemClient("system/*.cruds"))
	var ids []string
	for i := range 7 {
		id := fmt.Sprintf("p%d", i)
		all.put("/Patient/"+id, fmt.Sprintf(`{"resourceType":"Patient","id":%q,"gender":"male"}`, id)).want(201)
		all.put("/Observation/"+id, fmt.Sprintf(`{"resourceType":"Observation","id":%[1]q,"status":"final","code":{"text":"x"},"subject":{"reference":"Patient/p0"}}`, id)).want(201)
		ids = append(ids, id)
	}
	long := manyIDs(3000, ids...) // 114 kB

	// walk follows a relation from a page to the end, and returns all ids on the way.
	walk := func(s *service, a *answer, relation string) []string {
		s.t.Helper()
		var found []string
		for n := 0; ; n++ {
			found = append(found, a.ids()...)
			next := a.relations()[relation]
			if next == "" || n > 10 {
				slices.Sort(found)
				return found
			}
			if len(next) >= 1000 {
				s.t.Fatalf("the %s link has %d bytes", relation, len(next))
			}
			a = s.get(next).want(200)
		}
	}
	for _, c := range []struct{ name, path, form string }{
		{"of a type", "/Patient/_search", long},
		{"sorted and formatted", "/Patient/_search", long + "&_sort=-_lastUpdated&_format=json&_pretty=true"},
		{"of the system", "/_search", long + "&_type=Patient"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := all.in(t)
			a := all.post(c.path, c.form+"&_count=2", "Content-Type", formType).want(200).equal("total", "7")
			links := a.relations()
			if self := links["self"]; !strings.Contains(self, "0193d1c4") || len(self) < 100_000 {
				t.Errorf("self has %d bytes, want the whole search", len(self))
			}
			for _, relation := range []string{"first", "next", "last"} {
				u, err := url.Parse(links[relation])
				if err != nil || u.Query().Get("_stored") == "" || len(links[relation]) >= 1000 {
					t.Errorf("the %s link is %s", relation, clip([]byte(links[relation])))
				}
				if want := strings.TrimSuffix(c.path, "/_search"); !strings.HasSuffix(u.Path, want) {
					t.Errorf("the path of the %s link is %s, want %s", relation, u.Path, want)
				}
				if strings.Contains(c.form, "_pretty") && (u.Query().Get("_pretty") != "true" || u.Query().Get("_format") != "json") {
					t.Errorf("the %s link is %s, without _format and _pretty", relation, links[relation])
				}
			}
			if got := walk(all, a, "next"); !slices.Equal(got, ids) {
				t.Errorf("all pages have %v, want %v", got, ids)
			}
			if got := walk(other.as(systemClient("system/*.cruds")).in(t), all.get(links["last"]).want(200), "previous"); !slices.Equal(got, ids) {
				t.Errorf("back from the last page, on another server, there are %v, want %v", got, ids)
			}
			second := all.get(links["next"]).want(200).relations()
			if len(second["self"]) >= 1000 || second["self"] == "" {
				t.Errorf("self of the second page has %d bytes", len(second["self"]))
			}
			if first := all.get(second["first"]).want(200); len(first.relations()["next"]) >= 1000 || first.len("entry") != 2 {
				t.Errorf("the first page again: %s", clip(first.body))
			}
		})
	}
	t.Run("in a compartment, and by GET", func(t *testing.T) {
		all := all.in(t)
		a := all.get("/Patient/p0/Observation?_count=2&" + manyIDs(300, ids...)).want(200)
		if next := a.relations()["next"]; !strings.Contains(next, "/Patient/p0/Observation?_stored=") && !strings.Contains(next, "_stored=") {
			t.Errorf("next is %s", clip([]byte(next)))
		}
		if got := walk(all, a, "next"); !slices.Equal(got, ids) {
			t.Errorf("all pages have %v, want %v", got, ids)
		}
	})
	t.Run("in a batch", func(t *testing.T) {
		all := all.in(t)
		a := all.post("", `{"resourceType":"Bundle","type":"batch","entry":[{"request":{"method":"GET","url":"Patient?_count=2&`+manyIDs(300, ids...)+`"}}]}`).want(200)
		if !strings.Contains(string(a.body), "Patient?_stored=") {
			t.Errorf("the answer has no stored search: %s", clip(a.body))
		}
	})
	t.Run("short parameters and one page are not stored", func(t *testing.T) {
		all := all.in(t)
		if next := all.post("/Patient/_search", manyIDs(80, ids...)+"&_count=2", "Content-Type", formType).want(200).relations()["next"]; strings.Contains(next, "_stored") || !strings.Contains(next, "0193d1c4") {
			t.Errorf("next is %s", next)
		}
		if links := all.post("/Patient/_search", long, "Content-Type", formType).want(200).relations(); len(links) != 1 || links["self"] == "" {
			t.Errorf("one page has %d links", len(links))
		}
	})
	t.Run("only the client and user who searched may use a link", func(t *testing.T) {
		all := all.in(t)
		next := all.post("/Patient/_search", long+"&_count=2", "Content-Type", formType).want(200).relations()["next"]
		for name, c := range map[string]claims{
			"another client": {Subject: "backend", Client: "another", Scope: "system/*.cruds"},
			"another user":   {Subject: "another", Client: "backend", Scope: "system/*.cruds"},
			"another issuer": {Subject: "backend", Client: "backend", Issuer: "https://elsewhere.example", Scope: "system/*.cruds"},
		} {
			if a := s.as(c).in(t).get(next); a.status != 410 || a.str("issue.0.code") != "expired" {
				t.Errorf("%s: %d %s", name, a.status, clip(a.body))
			}
		}
		all.get("/Patient?_stored=unknown").issue(410, "expired")
		all.get(strings.Replace(next, "/Patient?", "/Observation?", 1)).issue(410, "expired")
		all.get(next+"&gender=male").issue(400, "invalid", "gender", "_stored")
		all.get(next+"&_count=5").issue(400, "invalid", "_count")
		all.get("/Patient?_stored=a&_stored=b").issue(400, "invalid", "_stored")
		// Rights are checked anew: the same client with a narrower token.
		s.as(systemClient("system/Observation.rs")).in(t).get(next).issue(403, "forbidden")
		if got := s.as(systemClient("system/Patient.rs?gender=female")).in(t).get(next).want(200); got.str("total") != "0" && got.str("total") != "7" {
			t.Errorf("total is %s", got.str("total"))
		} else if n := got.len("entry"); n != 0 {
			t.Errorf("a narrower token sees %d entries", n)
		}
	})
	t.Run("links end after search.stored_minutes without use", func(t *testing.T) {
		all := all.in(t)
		next := all.post("/Patient/_search", long+"&_count=2", "Content-Type", formType).want(200).relations()["next"]
		age := func(minutes int) {
			t.Helper()
			c, err := pgx.Connect(context.Background(), database)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.Background())
			if _, err := c.Exec(context.Background(), "UPDATE stored_search SET used = used - make_interval(mins => $1)", minutes); err != nil {
				t.Fatal(err)
			}
		}
		age(59)
		all.get(next).want(200) // counts from the last use
		age(59)
		all.get(next).want(200)
		age(61)
		all.get(next).issue(410, "expired")
	})
}

// A server without authorization stores searches too; the log has none of their values.
func TestLongSearchesWithoutAuthorization(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Search.StoredMinutes = 1 })
	for i := range 3 {
		s.put(fmt.Sprintf("/Patient/p%d", i), fmt.Sprintf(`{"resourceType":"Patient","id":"p%d"}`, i)).want(201)
	}
	a := s.post("/Patient/_search", manyIDs(2000, "p0", "p1", "p2")+"&_count=1&_total=none", "Content-Type", formType).want(200)
	next := s.get(a.relations()["next"]).want(200).relations()["next"]
	if got := s.get(next).want(200).ids(); len(got) != 1 {
		t.Errorf("the third page has %v", got)
	}
	s.do("HEAD", next, "").want(200)
}
