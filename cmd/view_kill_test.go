package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
	"kiln/server/view/table"
)

// Views 6, crashes: a server is killed while it builds a table, follows the change log, and rebuilds. The table equals a
// run afterwards, each acknowledged write is in it once, it is current again within 10 s, and no other table is left.
// KILN_TEST_VIEW_KILLS sets the number of rounds.
func TestTablesOutliveServers(t *testing.T) {
	t.Parallel()
	rounds := 6
	if text := os.Getenv("KILN_TEST_VIEW_KILLS"); text != "" {
		if _, err := fmt.Sscan(text, &rounds); err != nil {
			t.Fatal(err)
		}
	}
	database := storetest.New(t)
	s := startBulkServer(t, database, filepath.Join(t.TempDir(), "bulk"))
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	view := func(n int) string {
		return fmt.Sprintf(`{"resourceType":"ViewDefinition","id":"p","name":"p","status":"active","resource":"Patient","select":[{"column":[{"name":"id","path":"id"},{"name":"family","path":"name.family.first()"},{"name":"v%d","path":"gender"}]}]}`, n)
	}
	put := func(path, body string) {
		t.Helper()
		if code, _, answer := s.ask("PUT", "/fhir/"+path, "application/fhir+json", body); code != 200 && code != 201 {
			t.Fatalf("PUT %s is %d: %s", path, code, answer)
		}
	}
	const patients = 2000
	for first := 0; first < patients; first += 500 {
		var entries []string
		for i := first; i < first+500; i++ {
			entries = append(entries, fmt.Sprintf(`{"resource":{"resourceType":"Patient","id":"%d","name":[{"family":"f"}]},"request":{"method":"PUT","url":"Patient/%d"}}`, i, i))
		}
		if code, _, answer := s.ask("POST", "/fhir", "application/fhir+json", `{"resourceType":"Bundle","type":"batch","entry":[`+strings.Join(entries, ",")+`]}`); code != 200 {
			t.Fatalf("load is %d: %s", code, answer)
		}
	}
	put("ViewDefinition/p", view(0))
	version := 1
	for round := range rounds {
		switch round % 3 {
		case 0: // the build
			if code, _, answer := s.ask("DELETE", "/admin/views/p", "", ""); code != 204 && code != 404 {
				t.Fatalf("DELETE is %d: %s", code, answer)
			}
			if code, _, answer := s.ask("POST", "/admin/views", "application/json", `{"view":"ViewDefinition/p"}`); code != 202 {
				t.Fatalf("POST is %d: %s", code, answer)
			}
		case 2: // a rebuild
			put("ViewDefinition/p", view(round))
			version++
		}
		for i := range 5 + round%7 {
			put(fmt.Sprintf("Patient/%d", i), fmt.Sprintf(`{"resourceType":"Patient","id":"%d","name":[{"family":"r%d"}]}`, i, round))
		}
		if round%2 == 0 {
			time.Sleep(time.Duration(round*37%400) * time.Millisecond) // the kill hits another step each time
		}
		s.signal(syscall.SIGKILL)
		began := time.Now()
		s.start()
		up := time.Now()
		var now time.Time
		if err := conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now); err != nil {
			t.Fatal(err)
		}
		storetest.Await(t, database, "the table is current", func() bool {
			v, err := table.Get(t.Context(), conn, "p")
			return err == nil && v.State == table.Current && v.VersionID == fmt.Sprint(version) && v.CurrentTo != nil && !v.CurrentTo.Before(now)
		}, "view_generation")
		t.Logf("round %d: current %s after the start, which took %s", round, time.Since(up).Round(time.Millisecond), up.Sub(began).Round(time.Millisecond))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("round %d: current again after %s", round, took)
		}
		_, _, text := s.ask("GET", "/fhir/$sql-run?subjectReference=ViewDefinition/p", "", "")
		var want, got []string
		for line := range strings.Lines(text) {
			var b bytes.Buffer
			if err := json.Compact(&b, []byte(line)); err != nil {
				t.Fatal(err)
			}
			want = append(want, b.String())
		}
		rows, err := conn.Query(t.Context(), "SELECT row_to_json(r)::text FROM (SELECT id, family, (to_jsonb(p) ->> (SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = 'view.p'::regclass AND a.attname LIKE 'v%')) AS v FROM view.p p) r")
		if err != nil {
			t.Fatal(err)
		}
		if got, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			at := strings.Index(want[i], `,"v`)
			want[i] = want[i][:at] + `,"v":null}`
		}
		slices.Sort(want)
		slices.Sort(got)
		if len(got) != patients || !slices.Equal(got, want) {
			t.Fatalf("round %d: the table has %d rows, a run %d, and they differ", round, len(got), len(want))
		}
		var others int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'view'::regnamespace AND c.relkind = 'r' AND c.relname <> 'p'").Scan(&others); err != nil || others > 0 {
			t.Fatalf("round %d: %d other tables are left (%v)", round, others, err)
		}
	}
}
