package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/fhir"
	"kiln/server/store/storetest"
)

// multiplyAuditEvents stores n old AuditEvents, copies of those that the server has stored. It writes
// into the tables directly, because requests would take an hour.
func multiplyAuditEvents(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	ctx := t.Context()
	type template struct {
		rid, ranges    int64
		typ            int16
		terms, targets []int64
		body           []byte
	}
	rows, err := conn.Query(ctx, `SELECT r.rid, r.ranges, r.typ, r.terms, r.targets, r.body FROM resource r JOIN resource_type t USING (typ) WHERE t.name = 'AuditEvent'`)
	if err != nil {
		t.Fatal(err)
	}
	templates, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r template, err error) {
		err = row.Scan(&r.rid, &r.ranges, &r.typ, &r.terms, &r.targets, &r.body)
		return r, err
	})
	if err != nil || len(templates) == 0 {
		t.Fatalf("%d templates, %v", len(templates), err)
	}
	typ := templates[0].typ
	var first int64
	if err := conn.QueryRow(ctx, `UPDATE rid_next SET next = next + $2 WHERE typ = $1 RETURNING next - $2`, typ, n).Scan(&first); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, `CREATE TEMPORARY TABLE copied (template bigint, rid bigint)`); err != nil {
		t.Fatal(err)
	}
	old := time.Now().AddDate(0, 0, -60)
	rid := func(i int) int64 { return int64(typ)<<48 | (first + int64(i)) }
	columns := []string{"rid", "ref", "last_updated", "ranges", "version", "typ", "shard", "method", "id", "terms", "targets", "body"}
	if _, err := conn.CopyFrom(ctx, pgx.Identifier{"resource"}, columns, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
		r, id := &templates[i%len(templates)], fmt.Sprintf("old-%d", i)
		ref := int64(fhir.ValueReference("AuditEvent", id))
		return []any{rid(i), ref, old.Add(time.Duration(i) * time.Millisecond), r.ranges, 1, typ, int16(ref & 255), "S", id, r.terms, r.targets, r.body}, nil
	})); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.CopyFrom(ctx, pgx.Identifier{"copied"}, []string{"template", "rid"}, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
		return []any{templates[i%len(templates)].rid, rid(i)}, nil
	})); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`INSERT INTO index_date (key, low, high, rid) SELECT x.key, x.low, x.high, c.rid FROM copied c JOIN index_date x ON x.rid = c.template`,
		`INSERT INTO index_string (key, rid, text, word) SELECT x.key, c.rid, x.text, x.word FROM copied c JOIN index_string x ON x.rid = c.template`,
		`DROP TABLE copied`,
		`VACUUM ANALYZE resource`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// latencies are the durations of the requests of one window, by kind of request.
type latencies map[string][]time.Duration

// quantile returns the q-th part of the durations of a kind.
func (l latencies) quantile(kind string, q float64) time.Duration {
	slices.Sort(l[kind])
	return l[kind][int(q*float64(len(l[kind])-1))]
}

// requestForAWhile sends 200 reads, searches and creates a second to a server.
func requestForAWhile(t *testing.T, base string, length time.Duration) latencies {
	t.Helper()
	const perSecond, clients = 200, 16
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	turns := make(chan int, perSecond)
	out := make(latencies)
	var mu sync.Mutex
	var work sync.WaitGroup
	for range clients {
		work.Go(func() {
			for i := range turns {
				kind, method, path, body := "read", "GET", fmt.Sprintf("/fhir/Patient/p%d", i%100), ""
				switch i % 4 {
				case 2:
					kind, path = "search", fmt.Sprintf("/fhir/Patient?family=f%d&_count=10", i%100)
				case 3:
					kind, method, path, body = "create", "POST", "/fhir/Patient", fmt.Sprintf(`{"resourceType":"Patient","name":[{"family":"f%d"}]}`, i%100)
				}
				r, err := http.NewRequest(method, base+path, strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Content-Type", "application/fhir+json")
				began := time.Now()
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				took := time.Since(began)
				if resp.StatusCode/100 != 2 {
					t.Errorf("%s %s: %s", method, path, resp.Status)
				}
				mu.Lock()
				out[kind] = append(out[kind], took)
				mu.Unlock()
			}
		})
	}
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-tick.C:
			turns <- i
		case <-ctx.Done():
		}
	}
	close(turns)
	work.Wait()
	return out
}

// Retention of many AuditEvents, with requests beside it and without, in turns: it prints the
// latencies of both. Three servers are killed in the middle. Each AuditEvent is removed and counted
// once.
//
//	KILN_TEST_RETENTION=1000000 go test ./cmd -run TestRetentionOfManyAuditEvents -v -timeout 2h
func TestRetentionOfManyAuditEvents(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv("KILN_TEST_RETENTION"))
	if err != nil {
		t.Skip("takes half an hour: set KILN_TEST_RETENTION to a number of AuditEvents, such as 1000000")
	}
	url := storetest.New(t)
	environment := []string{"KILN_DATABASE__URL=" + url, "KILN_AUDIT__RETENTION_DAYS=30"}
	s := startRetentionServer(t, environment...)
	const young = 500
	s.storeAuditEvents(young)
	for i := range 100 {
		if status, out := s.send("PUT", fmt.Sprintf("/fhir/Patient/p%d", i), fmt.Sprintf(`{"resourceType":"Patient","id":"p%d","name":[{"family":"f%d"}]}`, i, i)); status != 201 {
			t.Fatalf("%d %v", status, out)
		}
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	began := time.Now()
	multiplyAuditEvents(t, conn, n)
	t.Logf("%d AuditEvents stored in %s", n, time.Since(began).Round(time.Second))
	left := func() (old int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM resource r JOIN resource_type t USING (typ) WHERE t.name = 'AuditEvent' AND r.last_updated < now() - interval '30 days'`).Scan(&old); err != nil {
			t.Fatal(err)
		}
		return old
	}
	jobs := func() (list []map[string]any) {
		t.Helper()
		resp, err := http.Get(s.base + "/admin/jobs?type=retention")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	start := func() string {
		t.Helper()
		status, out := s.send("POST", "/admin/retention", "")
		if status != 202 {
			t.Fatalf("%d %v", status, out)
		}
		before := left()
		s.await("the beginning of the work", func() bool { return left() < before })
		return out["id"].(string)
	}

	const window, rounds = 15 * time.Second, 5
	requestForAWhile(t, s.base, window/3)
	var alone, beside []latencies
	for range rounds {
		alone = append(alone, requestForAWhile(t, s.base, window))
		id, before := start(), left()
		beside = append(beside, requestForAWhile(t, s.base, window))
		t.Logf("%.0f removed in a second", float64(before-left())/window.Seconds())
		if left() == 0 {
			t.Fatal("nothing is left: the windows prove nothing, take more AuditEvents")
		}
		if status, _ := s.send("DELETE", "/admin/jobs/"+id, ""); status/100 != 2 {
			t.Fatal(status)
		}
		s.await("the end of the job", func() bool {
			return !slices.ContainsFunc(jobs(), func(j map[string]any) bool { return j["finished"] == nil })
		})
	}
	median := func(windows []latencies, kind string, q float64) time.Duration {
		var list []time.Duration
		for _, w := range windows {
			list = append(list, w.quantile(kind, q))
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	for _, kind := range []string{"read", "search", "create"} {
		for _, q := range []float64{0.5, 0.95, 0.99} {
			a, b := median(alone, kind, q), median(beside, kind, q)
			t.Logf("%-6s p%.0f: alone %s, beside the job %s, %.2f", kind, q*100, a.Round(10*time.Microsecond), b.Round(10*time.Microsecond), float64(b)/float64(a))
		}
	}

	start()
	for range 3 {
		before := left()
		s.await("some of the work", func() bool { return left() < before-1000 })
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s = startRetentionServer(t, environment...)
	}
	s.awaitWithin(time.Hour, "the end of the job", func() bool {
		return !slices.ContainsFunc(jobs(), func(j map[string]any) bool { return j["finished"] == nil })
	})
	sum := 0.0
	for _, j := range jobs() {
		sum += j["done"].(float64)
	}
	if left() != 0 || sum != float64(n) {
		t.Errorf("%d of %d AuditEvents are left, and the jobs count %.0f removed", left(), n, sum)
	}
	// Each removal is in the change log once.
	var changes, distinct int
	if err := conn.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT x.ref) FROM change c CROSS JOIN unnest(c.refs) WITH ORDINALITY x (ref, i)
		WHERE substr(c.methods, x.i::integer, 1) = 'D'`).Scan(&changes, &distinct); err != nil {
		t.Fatal(err)
	}
	if changes != distinct {
		t.Errorf("the change log has %d removals of %d AuditEvents", changes, distinct)
	}
	if _, bundle := s.send("GET", "/fhir/AuditEvent?_summary=count&agent-name=n", ""); bundle["total"] != float64(young) {
		t.Errorf("%v AuditEvents are left, want the %d young ones", bundle["total"], young)
	}
}
