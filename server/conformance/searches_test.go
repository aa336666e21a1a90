package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kiln/server/store/storetest"
)

// Operations: GET /admin/searches and /admin/indexes/suggestions, from the searches
// that were really run; never a suggestion that was not proved; applying one is a job.
// Contract, Operations: `GET /admin/searches`, `GET /admin/indexes/suggestions`, `POST …/{id}/apply`.
func TestSearchesAndSuggestions(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	var entries []string
	for i := range 400 {
		entries = append(entries, entry("POST", "Patient", "", fmt.Sprintf(`{"resourceType":"Patient","name":[{"family":"%s%d"}]}`, []string{"anlika", "bertolt", "lisanne", "kunigun"}[i%4], i)))
	}
	a.post("/", bundle("transaction", entries...)).want(200)
	for range 6 {
		a.get("/Patient?name:contains=secretvalue&_sort=-birthdate").want(200)
		b.get("/Patient?gender=female").want(200)
		a.get("/Organization?name:contains=secretvalue").want(200)
	}
	find := func(list *answer, parameters string) string {
		for i := range len(list.json.([]any)) {
			at := fmt.Sprintf("%d.", i)
			if strings.Join(strings.Fields(fmt.Sprint(list.at(at+"parameters"))), " ") == parameters {
				return at
			}
		}
		return ""
	}
	var shapes *answer
	deadline := time.Now().Add(patience)
	for find(shapesOf(a, &shapes), "[gender]") == "" { // of the other server
		if time.Now().After(deadline) {
			t.Fatalf("no shape of the other server\n%s", shapes.body)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if strings.Contains(string(shapes.body), "secretvalue") {
		t.Error("the shapes have a value")
	}
	at := find(shapes, "[_sort=-birthdate name:contains]")
	if at == "" {
		t.Fatalf("no shape of the search\n%s", shapes.body)
	}
	shapes.equal(at+"resource_type", "Patient").equal(at+"calls", "6")
	for _, name := range []string{"mean_ms", "p95_ms", "p99_ms", "rows"} {
		if shapes.at(at+name) == nil {
			t.Errorf("a shape has no %s", name)
		}
	}
	last := -1.0
	for i := range len(shapes.json.([]any)) {
		var mean float64
		if _, err := fmt.Sscan(shapes.str(fmt.Sprintf("%d.mean_ms", i)), &mean); err != nil || last >= 0 && mean > last {
			t.Errorf("not the slowest first: %v after %v (%v)", mean, last, err)
		}
		last = mean
	}

	suggestions := a.get(a.root("/admin/indexes/suggestions")).want(200)
	if suggestions.at("suggestions") == nil {
		t.Fatalf("no array of suggestions\n%s", suggestions.body)
	}
	a.get(a.root("/admin/indexes/suggestions?resource_type=Claims")).issue(400, "invalid", "Claims", "Claim")
	if n := a.get(a.root("/admin/indexes/suggestions?resource_type=Claim")).want(200).len("suggestions"); n != 0 {
		t.Errorf("%d suggestions for a type that nobody searched", n)
	}
	a.post(a.root("/admin/indexes/suggestions/nonsense/apply"), "").issue(404, "not-found")
	if suggestions.len("suggestions") == 0 {
		t.Log("no index was proved to help here")
		return
	}
	// The index serves searches of both types: asked for one, it is told of as that one's.
	for _, typ := range []string{"Patient", "Organization"} {
		a.get(a.root("/admin/indexes/suggestions?resource_type="+typ)).want(200).
			equal("suggestions.0.resource_type", typ).equal("suggestions.0.parameters.0", "name:contains")
	}
	for _, name := range []string{"resource_type", "parameters", "reason", "calls", "mean_ms", "p95_ms", "rows_read", "estimated_improvement", "create_statement", "applied"} {
		if suggestions.at("suggestions.0."+name) == nil {
			t.Errorf("a suggestion has no %s\n%s", name, suggestions.body)
		}
	}
	job := a.post(a.root("/admin/indexes/suggestions/"+suggestions.str("suggestions.0.id")+"/apply"), "").want(202).equal("type", "index-build").str("id")
	for b.get(b.root("/admin/jobs/"+job)).want(200).str("state") != "done" {
		if time.Now().After(deadline.Add(10 * time.Second)) {
			t.Fatalf("the index is not built: %s", b.get(b.root("/admin/jobs/"+job)).body)
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.get(b.root("/admin/indexes/suggestions")).want(200).equal("suggestions.0.applied", "true")
	a.get("/Patient?name:contains=lika&_summary=count").want(200).equal("total", "100")
}

func shapesOf(s *service, into **answer) *answer {
	*into = s.get(s.root("/admin/searches")).want(200)
	return *into
}

// Operations: GET /admin/jobs[/{id}] and DELETE.
// Contract, Operations: `GET /admin/jobs[/{id}]`, `DELETE`.
func TestJobs(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	a.create(`{"resourceType":"Patient"}`)
	a.post("/$reindex?type=Patient", "").want(202)
	list := b.get(b.root("/admin/jobs")).want(200)
	id := ""
	for i := range len(list.json.([]any)) {
		at := fmt.Sprintf("%d.", i)
		for _, name := range []string{"id", "type", "state", "created", "total", "done", "rate", "parts", "parts_done", "attempts"} {
			if list.at(at+name) == nil {
				t.Errorf("a job has no %s\n%s", name, list.body)
			}
		}
		if list.str(at+"type") == "reindex" && list.str(at+"resource_type") == "Patient" {
			id = list.str(at + "id")
		}
	}
	if id == "" {
		t.Fatalf("the job is not listed\n%s", list.body)
	}
	b.get(b.root("/admin/jobs/nonsense")).issue(404, "not-found")
	b.do("DELETE", b.root("/admin/jobs/nonsense"), "").issue(404, "not-found")
	b.get(b.root("/admin/jobs/"+id)).want(200).equal("id", id)
	// It is cancelled, unless it has ended already: then it cannot be.
	if ended := b.do("DELETE", b.root("/admin/jobs/"+id), ""); ended.status == 409 {
		ended.issue(409, "conflict", "done")
	} else {
		ended.want(200).equal("state", "cancelled")
	}
	b.do("DELETE", b.root("/admin/jobs/"+id), "").issue(409, "conflict")

	// The work runs on the jobs core: it has parts, and counts in the metrics of jobs.
	again := a.post("/$reindex?type=Patient", "").want(202).str("parameter.0.part.0.valueString")
	for deadline := time.Now().Add(30 * time.Second); b.get(b.root("/admin/jobs/"+again)).want(200).str("state") != "done"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the job has not ended: %s", b.get(b.root("/admin/jobs/"+again)).body)
		}
	}
	b.get(b.root("/admin/jobs/"+again)).want(200).equal("parts", "1").equal("parts_done", "1").equal("total", "1").equal("done", "1")
	for _, name := range []string{`service_jobs{state="done",type="reindex"}`, `service_job_parts_total{outcome="done",type="reindex"}`, `service_job_resources_total{type="reindex"}`} {
		if all := string(a.get(a.root("/metrics")).body) + string(b.get(b.root("/metrics")).body); !strings.Contains(all, name) {
			t.Errorf("no metric %s", name)
		}
	}
}

// Operations: GET /admin/indexes/sort, PUT and DELETE /admin/indexes/sort/{type}/{parameter}.
// Contract, Operations: `GET /admin/indexes/sort`, `PUT …/{type}/{parameter}`, `DELETE`.
func TestSortIndex(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	a, b := startOn(t, url), startOn(t, url)
	var entries []string
	for i := range 60 {
		entries = append(entries, entry("POST", "Observation", "", fmt.Sprintf(`{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"http://s","code":"c%02d"}]},"subject":{"reference":"Patient/p%d"}}`, i*7%60, i%3)))
	}
	a.post("/", bundle("transaction", entries...)).want(200)
	if n := a.get(a.root("/admin/indexes/sort")).want(200).len("indexes"); n != 0 {
		t.Errorf("%d indexes before any was asked for", n)
	}
	for _, c := range []struct {
		path string
		said []string
	}{
		{"Observations/code", []string{"Observations", "Observation"}}, {"Observation/kode", []string{"kode", "code"}}, {"Observation/date", []string{"date", "needs no index"}},
		{"Observation/_id", []string{"_id", "needs no index"}}, {"Observation/code-value-quantity", []string{"composite", "no order"}},
	} {
		a.do("PUT", a.root("/admin/indexes/sort/"+c.path), "").issue(400, "invalid", c.said...)
	}
	a.do("DELETE", a.root("/admin/indexes/sort/Observation/code"), "").issue(404, "not-found", "Observation", "code")

	codes := func(s *service, query string) (codes []string) {
		for next := query; next != ""; {
			page := s.get(next).want(200)
			for i := range page.len("entry") {
				codes = append(codes, page.str(fmt.Sprintf("entry.%d.resource.code.coding.0.code", i)))
			}
			next = page.link("next")
		}
		return codes
	}
	queries := []string{"/Observation?_sort=code&_count=7", "/Observation?_sort=-code,_id&_count=11", "/?_type=Observation&_sort=code&_count=50", "/Observation?subject=Patient/p1&_sort=-code&_count=6"}
	before := make([][]string, len(queries))
	for i, q := range queries {
		before[i] = codes(a, q)
	}
	added := a.do("PUT", a.root("/admin/indexes/sort/Observation/code"), "").want(202).equal("type", "reindex").equal("resource_type", "Observation")
	if reason := added.str("reason"); !strings.Contains(reason, "order of Observation by code") {
		t.Errorf("the reason of the job is %q", reason)
	}
	if at := added.header.Get("Location"); !strings.HasSuffix(at, "/admin/jobs/"+added.str("id")) {
		t.Errorf("Location %q", at)
	}
	await := func(what string, done func() bool) {
		t.Helper()
		storetest.Await(t, url, what, done, "sort_index", "reindex_job", "search_registry")
	}
	await("the index is not ready", func() bool {
		return b.get(b.root("/admin/indexes/sort")).want(200).equal("indexes.0.resource_type", "Observation").equal("indexes.0.parameter", "code").str("indexes.0.state") == "ready"
	})
	b.get(b.root("/admin/jobs/"+added.str("id"))).want(200).equal("state", "done").equal("done", "60")
	a.do("PUT", a.root("/admin/indexes/sort/Observation/code"), "").want(200).equal("state", "ready")
	for _, s := range []*service{a, b} {
		for i, q := range queries {
			if got := codes(s, q); !slices.Equal(got, before[i]) {
				t.Errorf("%s has the order %v, in memory %v", q, got, before[i])
			}
		}
	}
	s := a.post("/Observation/_search", "_sort=code&_count=3", "Content-Type", "application/x-www-form-urlencoded").want(200)
	s.equal("entry.0.resource.code.coding.0.code", "c00").equal("entry.2.resource.code.coding.0.code", "c02")

	b.do("DELETE", b.root("/admin/indexes/sort/Observation/code"), "").want(202).equal("state", "removing")
	a.get(a.root("/admin/indexes/sort")).want(200).equal("indexes.0.state", "removing")
	for i, q := range queries {
		if got := codes(a, q); !slices.Equal(got, before[i]) {
			t.Errorf("%s without the index has the order %v, before %v", q, got, before[i])
		}
	}
	// Wanted again before its entries are gone, it is there at once.
	a.do("PUT", a.root("/admin/indexes/sort/Observation/code"), "").want(200).equal("state", "ready")

	// Of a type that has no resources there is nothing to wait for.
	a.do("PUT", a.root("/admin/indexes/sort/Account/identifier"), "")
	await("the index of nothing is not ready", func() bool {
		list := b.get(b.root("/admin/indexes/sort")).want(200)
		return strings.Contains(string(list.body), `"Account"`) && list.str("indexes.0.state") == "ready"
	})
}
