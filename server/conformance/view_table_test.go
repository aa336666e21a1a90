package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/store/storetest"
	"kiln/server/view/table"
)

// tables is a service with its database.
type tables struct {
	*service
	url string
	db  *pgx.Conn
}

func startTables(t *testing.T, change ...func(*server.Config)) *tables {
	t.Helper()
	url := storetest.New(t)
	return &tables{startOn(t, url, change...), url, connect(t, url)}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// strings are the first column of a query.
func (s *tables) strings(sql string, args ...any) []string {
	s.t.Helper()
	rows, err := s.db.Query(context.Background(), sql, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func (s *tables) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Exec(context.Background(), sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// table is a table as /admin/views tells of it.
func (s *tables) table(name string) (out table.Table) {
	s.t.Helper()
	if err := json.Unmarshal(s.do("GET", s.root("/admin/views/"+name), "").want(200).body, &out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// materialize makes a table of a view, and waits until it is current.
func (s *tables) materialize(view, name, indexes string) {
	s.t.Helper()
	a := s.do("POST", s.root("/admin/views"), `{"view":"ViewDefinition/`+view+`","indexes":`+indexes+`}`, "Content-Type", "application/json").want(202)
	if at := a.header.Get("Location"); at != "/admin/views/"+name {
		s.t.Errorf("Location is %q", at)
	}
	s.await(name, func(v table.Table) bool { return v.State == table.Current })
}

// await waits until a table is as it should be.
func (s *tables) await(name string, ok func(table.Table) bool) {
	s.t.Helper()
	storetest.Await(s.t, s.url, "view."+name, func() bool { return ok(s.table(name)) }, "view_generation")
}

// fresh waits until a table shows everything that was acknowledged before.
func (s *tables) fresh(name string) {
	s.t.Helper()
	var now time.Time
	if err := s.db.QueryRow(context.Background(), "SELECT clock_timestamp()").Scan(&now); err != nil {
		s.t.Fatal(err)
	}
	s.await(name, func(v table.Table) bool { return v.CurrentTo != nil && !v.CurrentTo.Before(now) })
}

// sameAsRun compares a table with a run of its view.
func (s *tables) sameAsRun(name, view string) int {
	s.t.Helper()
	want := s.strings("SELECT x::jsonb::text FROM unnest($1::text[]) AS x ORDER BY 1", rows(s.get("/$sql-run?subjectReference=ViewDefinition/"+view)))
	got := s.strings("SELECT (to_jsonb(t) - '_id')::text FROM view." + name + " t ORDER BY 1")
	if !slices.Equal(got, want) {
		s.t.Errorf("view.%s has %d rows, a run %d:\n%.2000s\n%.2000s", name, len(got), len(want), got, want)
	}
	if v := s.table(name); v.Rows != int64(len(got)) {
		s.t.Errorf("rows is %d, the table has %d", v.Rows, len(got))
	}
	return len(got)
}

// compact is JSON without white space.
func compact(body []byte) string {
	var b bytes.Buffer
	if err := json.Compact(&b, body); err != nil {
		return string(body)
	}
	return b.String()
}

// contract, Views 6
func TestTableOfAView(t *testing.T) {
	t.Parallel()
	s := startTables(t)
	s.put("/ViewDefinition/heights", strings.NewReplacer(`"name":"heights"`, `"name":"Heights"`, `"name":"cm"`, `"name":"CM"`).Replace(heights)).want(201)
	s.put("/Observation/h0", heightObservation("h0", "1", "8302-2", "170.50")).want(201)
	s.put("/Observation/w0", heightObservation("w0", "1", "29463-7", "70")).want(201)
	s.materialize("heights", "heights", `[["patient_id","CM"]]`)
	v := s.table("heights")
	if v.Table != "view.heights" || v.View != "ViewDefinition/heights" || v.VersionID != "1" || v.Rows != 1 || v.Bytes == 0 || v.Problems != 0 || v.CurrentTo == nil ||
		fmt.Sprint(v.Columns) != "[{id string text} {patient_id string text} {cm decimal numeric}]" && fmt.Sprint(v.Columns) != "[{id id text} {patient_id string text} {cm decimal numeric}]" || fmt.Sprint(v.Indexes) != "[[patient_id cm]]" {
		t.Errorf("the table is %+v", v)
	}
	if got := s.strings("SELECT concat_ws(' ', _id, id, patient_id, cm) FROM view.heights"); !slices.Equal(got, []string{"h0 h0 1 170.50"}) {
		t.Errorf("the rows are %q", got)
	}
	if got := s.strings("SELECT indexdef FROM pg_indexes WHERE schemaname = 'view' AND tablename = 'heights' ORDER BY indexname"); len(got) != 2 || !strings.HasSuffix(got[0], "(_id)") || !strings.HasSuffix(got[1], "(patient_id, cm)") {
		t.Errorf("the indexes are %q", got)
	}
	if got := s.strings("SELECT concat_ws(' ', name, state, rows, current_to > now() - interval '1 minute') FROM view._table"); !slices.Equal(got, []string{"heights current 1 t"}) {
		t.Errorf("view._table is %q", got)
	}
	t.Run("it follows creates, updates and deletions", func(t *testing.T) {
		s := &tables{s.in(t), s.url, s.db}
		s.put("/Observation/h1", heightObservation("h1", "2", "8302-2", "1.0E2")).want(201)
		s.put("/Observation/h0", heightObservation("h0", "1", "8302-2", "171")).want(200)
		s.put("/Observation/w0", heightObservation("w0", "1", "8302-2", "172")).want(200)
		s.fresh("heights")
		if got := s.strings("SELECT concat_ws(' ', id, cm) FROM view.heights ORDER BY 1"); !slices.Equal(got, []string{"h0 171", "h1 100", "w0 172"}) {
			t.Errorf("the rows are %q", got)
		}
		s.do("DELETE", "/Observation/h0", "").want(204)
		s.put("/Observation/w0", heightObservation("w0", "1", "29463-7", "70")).want(200)
		s.fresh("heights")
		if got := s.strings("SELECT concat_ws(' ', id, cm) FROM view.heights ORDER BY 1"); !slices.Equal(got, []string{"h1 100"}) {
			t.Errorf("the rows are %q", got)
		}
	})
	t.Run("a resource that would fail a run has no rows", func(t *testing.T) {
		s := &tables{s.in(t), s.url, s.db}
		s.put("/ViewDefinition/names", `{"resourceType":"ViewDefinition","id":"names","status":"active","name":"names","resource":"Patient","select":[{"column":[{"name":"id","path":"id"},{"name":"given","path":"name.given"}]}]}`).want(201)
		two, one := `{"resourceType":"Patient","id":"two","name":[{"given":["A","B"]}]}`, `{"resourceType":"Patient","id":"two","name":[{"given":["A"]}]}`
		s.put("/Patient/two", two).want(201)
		s.materialize("names", "names", "[]")
		problems := func(want int64, names string) {
			t.Helper()
			a := s.do("GET", s.root("/admin/views/names/problems"), "").want(200)
			if v := s.table("names"); v.Problems != want || !strings.Contains(compact(a.body), names) {
				t.Errorf("problems is %d: %s", v.Problems, a.body)
			}
		}
		problems(1, `"resource":"Patient/two","column":"given"`)
		s.put("/Patient/two", one).want(200)
		s.fresh("names")
		problems(0, `"problems":[]`)
		if s.sameAsRun("names", "names") != 1 {
			t.Error("the row is missing")
		}
		s.put("/Patient/two", two).want(200)
		s.fresh("names")
		problems(1, "Patient/two")
		if s.metric(`service_view_table_problems{view="names"}`) != "1" || s.metric(`service_view_table_rows{view="names"}`) != "0" || s.metric(`service_view_table_lag_seconds{view="names"}`) == "" {
			t.Error("the metrics differ")
		}
	})
	t.Run("a view with a table stays what it is", func(t *testing.T) {
		s := s.in(t)
		s.do("DELETE", "/ViewDefinition/heights", "").issue(409, "conflict")
		s.put("/ViewDefinition/heights", strings.Replace(heights, "code.coding.exists(system = %loinc and code = %c)", "issued < now()", 1)).issue(422, "invalid")
		s.put("/ViewDefinition/heights", strings.Replace(heights, `"name":"heights"`, `"name":"other"`, 1)).issue(422, "invalid")
	})
	t.Run("errors", func(t *testing.T) {
		s := s.in(t)
		def := func(id, name, columns string) {
			s.put("/ViewDefinition/"+id, `{"resourceType":"ViewDefinition","id":"`+id+`","status":"active",`+name+`"resource":"Patient","select":[{"column":[`+columns+`]}]}`).want(201)
		}
		id := `{"name":"id","path":"id"}`
		def("nameless", "", id)
		def("alike", `"name":"alike",`, id+`,{"name":"ID","path":"id"}`)
		def("long", `"name":"`+strings.Repeat("n", 64)+`",`, id)
		def("wide", `"name":"wide",`, `{"name":"`+strings.Repeat("c", 64)+`","path":"id"}`)
		def("clock", `"name":"clock",`, `{"name":"d","path":"today()"}`)
		def("system", `"name":"system",`, `{"name":"xmin","path":"id"}`)
		def("again", `"name":"HEIGHTS",`, id)
		def("fine", `"name":"fine",`, id)
		for _, tt := range []struct {
			body   string
			status int
			code   string
		}{
			{`{"view":"ViewDefinition/nameless"}`, 422, "invalid"}, {`{"view":"ViewDefinition/alike"}`, 422, "invalid"}, {`{"view":"ViewDefinition/long"}`, 422, "invalid"},
			{`{"view":"ViewDefinition/wide"}`, 422, "invalid"}, {`{"view":"ViewDefinition/clock"}`, 422, "invalid"}, {`{"view":"ViewDefinition/system"}`, 422, "invalid"},
			{`{"view":"ViewDefinition/fine","indexes":[["no"]]}`, 422, "invalid"},
			{`{"view":"ViewDefinition/again"}`, 409, "conflict"}, {`{"view":"ViewDefinition/heights"}`, 409, "conflict"}, {`{"view":"ViewDefinition/none"}`, 404, "not-found"},
			{`{"view":"Patient/1"}`, 400, "invalid"}, {`{}`, 400, "required"}, {`{`, 400, "structure"}, {`{"view":"ViewDefinition/fine","more":1}`, 400, "invalid"},
		} {
			s.do("POST", s.root("/admin/views"), tt.body, "Content-Type", "application/json").issue(tt.status, tt.code)
		}
		for _, path := range []string{"/admin/views/none", "/admin/views/none/problems"} {
			s.do("GET", s.root(path), "").issue(404, "not-found")
		}
		s.do("DELETE", s.root("/admin/views/none"), "").issue(404, "not-found")
	})
	t.Run("DELETE drops the table", func(t *testing.T) {
		s := &tables{s.in(t), s.url, s.db}
		s.do("DELETE", s.root("/admin/views/heights"), "").want(204)
		s.do("DELETE", s.root("/admin/views/names"), "").want(204)
		if got := s.strings("SELECT relname::text FROM pg_class WHERE relnamespace = 'view'::regnamespace"); !slices.Equal(got, []string{"_table"}) {
			t.Errorf("the schema view has %q", got)
		}
		if got := s.strings("SELECT name FROM change_reader WHERE name LIKE 'view %'"); len(got) > 0 {
			t.Errorf("readers are left: %q", got)
		}
		if got := compact(s.do("GET", s.root("/admin/views"), "").want(200).body); got != `{"views":[]}` {
			t.Errorf("the list is %s", got)
		}
		s.do("DELETE", "/ViewDefinition/heights", "").want(204)
	})
}

// The tables of several views over HL7's examples and over Synthea's data equal runs of them, after the
// build and after changes.
func TestTableEqualsARun(t *testing.T) {
	t.Parallel()
	t.Run("HL7's examples", func(t *testing.T) {
		t.Parallel()
		tableEqualsARun(t, exampleObservations(t))
	})
	t.Run("Synthea", func(t *testing.T) {
		t.Parallel()
		tableEqualsARun(t, syntheaObservations(t))
	})
}

func tableEqualsARun(t *testing.T, observations map[string]string) {
	t.Helper()
	s := startTables(t, func(c *server.Config) { c.Validation.Mode = "off" })
	put := func(some map[string]string) {
		var entries []string
		for id, body := range some {
			entries = append(entries, `{"resource":`+body+`,"request":{"method":"PUT","url":"Observation/`+id+`"}}`)
		}
		s.post("/", `{"resourceType":"Bundle","type":"batch","entry":[`+strings.Join(entries, ",")+`]}`).want(200)
	}
	first, later := make(map[string]string), make(map[string]string)
	for id, body := range observations {
		if len(first) < len(observations)/2 {
			first[id] = body
		} else {
			later[id] = body
		}
	}
	put(first)
	const columns = `{"name":"id","path":"id"},{"name":"amount","path":"value.ofType(Quantity).value"},{"name":"at","path":"effective.ofType(dateTime)"},{"name":"note","path":"code.text"},
		{"name":"final","path":"status = 'final'"},{"name":"codes","path":"code.coding.code","collection":true},{"name":"code","path":"code","type":"CodeableConcept"},
		{"name":"codings","path":"code.coding","type":"Coding","collection":true},{"name":"n","path":"component.count()"},{"name":"amounts","path":"component.value.ofType(Quantity).value","collection":true}`
	views := map[string]string{
		"one":  `"select":[{"column":[` + columns + `]}]`,
		"many": `"select":[{"column":[{"name":"id","path":"id"}]},{"forEachOrNull":"component","column":[{"name":"i","path":"%rowIndex"},{"name":"text","path":"code.coding.display.first()"}]}]`,
		"some": `"where":[{"path":"status = 'final'"}],"select":[{"forEach":"code.coding","column":[{"name":"system","path":"system"},{"name":"code","path":"code"}]}]`,
	}
	for name, body := range views {
		s.put("/ViewDefinition/"+name, `{"resourceType":"ViewDefinition","id":"`+name+`","status":"active","name":"`+name+`","resource":"Observation",`+body+`}`).want(201)
		s.materialize(name, name, "[]")
		if s.sameAsRun(name, name) == 0 {
			t.Errorf("view.%s has no rows", name)
		}
	}
	put(later)
	n := 0
	for id, body := range first {
		if n++; n%3 == 0 {
			s.do("DELETE", "/Observation/"+id, "").want(204)
		} else if n%3 == 1 {
			s.put("/Observation/"+id, strings.Replace(body, `"final"`, `"amended"`, 1)).want(200)
		}
	}
	for name := range views {
		s.fresh(name)
		s.sameAsRun(name, name)
	}
}

// torture is the number of reads or rounds: want, or TORTURE times as many by hand.
func torture(want int) int {
	if n, err := strconv.Atoi(os.Getenv("TORTURE")); err == nil {
		return want * n
	}
	return want
}

// Pairs are changed together by two servers: a reader of the table never sees half of a change, beside a transaction that
// stays open, and the last change of each server shows.
func TestTableShowsWholeTransactions(t *testing.T) {
	t.Parallel()
	s := startTables(t)
	second := startOn(t, s.url)
	pair := func(who string, n int) string {
		return fmt.Sprintf(`{"resourceType":"Bundle","type":"transaction","entry":[
			{"resource":{"resourceType":"Patient","id":"%[1]s-l","name":[{"family":"%[2]d"}]},"request":{"method":"PUT","url":"Patient/%[1]s-l"}},
			{"resource":{"resourceType":"Patient","id":"%[1]s-r","name":[{"family":"%[2]d"}]},"request":{"method":"PUT","url":"Patient/%[1]s-r"}}]}`, who, n)
	}
	s.put("/ViewDefinition/everyone", everyone).want(201)
	s.post("/", pair("a", 0)).want(200)
	s.post("/", pair("b", 0)).want(200)
	s.materialize("everyone", "everyone", "[]")
	open := connect(t, s.url)
	tx, err := open.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "SELECT pg_current_xact_id()"); err != nil { // holds back readers by transaction ids
		t.Fatal(err)
	}
	stop := make(chan struct{})
	last := make(chan [2]string, 2)
	for who, on := range map[string]*service{"a": s.service, "b": second} {
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					last <- [2]string{who, strconv.Itoa(n)}
					return
				default:
				}
				if a, err := on.try("POST", "/", pair(who, n+1)); err != nil || a.status != 200 {
					t.Errorf("write: %v", err)
					last <- [2]string{who, strconv.Itoa(n)}
					return
				}
				n++
			}
		}()
	}
	seen := make(map[string]bool)
	for range torture(10_000) {
		list := s.strings("SELECT family FROM view.everyone ORDER BY _id")
		if len(list) != 4 || list[0] != list[1] || list[2] != list[3] {
			t.Fatalf("a torn read: %q", list)
		}
		seen[list[0]] = true
	}
	close(stop)
	want := make([]string, 0, 4)
	ends := map[string]string{}
	for range 2 {
		l := <-last
		ends[l[0]] = l[1]
	}
	want = append(want, ends["a"], ends["a"], ends["b"], ends["b"])
	s.fresh("everyone")
	if got := s.strings("SELECT family FROM view.everyone ORDER BY _id"); !slices.Equal(got, want) {
		t.Errorf("the table has %q, acknowledged was %q", got, want)
	}
	if len(seen) < 2 {
		t.Error("the table did not follow")
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// A new version of the view builds a new table beside the old one. Readers of the old table see no error, no empty table
// The tables of a type share their rounds, unless one of them is held by somebody.
func TestTablesOfOneType(t *testing.T) {
	t.Parallel()
	s := startTables(t)
	patient := func(id, family string) {
		if a := s.put("/Patient/"+id, fmt.Sprintf(`{"resourceType":"Patient","id":%q,"name":[{"family":%q}]}`, id, family)); a.status != 200 {
			a.want(201)
		}
	}
	names := []string{"first", "second", "third"}
	for i, name := range names {
		patient(fmt.Sprintf("before-%d", i), name) // so that their positions differ
		s.put("/ViewDefinition/"+name, strings.ReplaceAll(everyone, "everyone", name)).want(201)
		s.materialize(name, name, "[]")
	}
	same := func(want int, names ...string) {
		t.Helper()
		for _, name := range names {
			s.fresh(name)
			if n := s.sameAsRun(name, name); n != want {
				t.Errorf("view.%s has %d rows, want %d", name, n, want)
			}
		}
	}
	s.post("/Patient", `{"resourceType":"Patient","name":[{"family":"created"}]}`).want(201)
	patient("before-0", "changed")
	s.do("DELETE", "/Patient/before-1", "").want(204)
	same(3, names...)

	holder := connect(t, s.url)
	tx, err := holder.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "LOCK TABLE view.second IN SHARE MODE"); err != nil { // readers pass
		t.Fatal(err)
	}
	patient("before-0", "changed again")
	patient("later", "later")
	same(4, "first", "third")
	if got := s.strings("SELECT family FROM view.second WHERE _id = 'before-0'"); !slices.Equal(got, []string{"changed"}) {
		t.Errorf("the table that is held has %q", got)
	}
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	same(4, names...)
}

// and no wait; a long reader delays the swap. Grants stay.
func TestTableIsRebuilt(t *testing.T) {
	t.Parallel()
	s := startTables(t)
	ctx := context.Background()
	for i := range 300 {
		s.put(fmt.Sprintf("/Patient/%d", i), fmt.Sprintf(`{"resourceType":"Patient","id":"%d","name":[{"family":"f%d"}]}`, i, i)).want(201)
	}
	role := fmt.Sprintf("kiln_reader_%d", os.Getpid())
	some := role + "_some"
	for _, r := range []string{role, some} {
		s.exec("DROP ROLE IF EXISTS " + r)
		s.exec("CREATE ROLE " + r)
		t.Cleanup(func() {
			s.exec("DROP OWNED BY " + r)
			s.exec("DROP ROLE " + r)
		})
	}
	s.put("/ViewDefinition/everyone", everyone).want(201)
	if err := table.Grant(ctx, s.db, role, nil); err != nil {
		t.Fatal(err)
	}
	s.materialize("everyone", "everyone", "[]")
	if err := table.Grant(ctx, s.db, some, []string{"everyone"}); err != nil {
		t.Fatal(err)
	}
	grants := func() string {
		return strings.Join(s.strings(`SELECT grantee || ' ' || privilege_type FROM information_schema.role_table_grants WHERE table_schema = 'view' AND table_name = 'everyone' AND grantee LIKE 'kiln_reader%' ORDER BY 1`), ",")
	}
	want := role + " SELECT," + some + " SELECT"
	if got := grants(); got != want {
		t.Errorf("the rights are %s", got)
	}

	long := connect(t, s.url)
	tx, err := long.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM view.everyone").Scan(&n); err != nil || n != 300 {
		t.Fatal(n, err)
	}
	s.put("/ViewDefinition/everyone", strings.Replace(everyone, `{"name":"family"`, `{"name":"gender","path":"gender"},{"name":"family"`, 1)).want(200)
	if v := s.table("everyone"); v.State != table.Rebuilding || v.VersionID != "1" {
		t.Errorf("after the write of the view the table is %+v", v)
	}
	storetest.Await(t, s.url, "the new table is built", func() bool {
		return slices.Equal(s.strings("SELECT state FROM view_generation ORDER BY id"), []string{"shown", "built"})
	}, "view_generation")
	if v := s.table("everyone"); v.State != table.Rebuilding || v.VersionID != "1" {
		t.Errorf("the table is %+v", v)
	}
	s.put("/Patient/300", `{"resourceType":"Patient","id":"300","name":[{"family":"late"}]}`).want(201)
	s.fresh("everyone") // the old table stays current
	var longest time.Duration
	reads := 0
	read := func() (columns int) {
		began := time.Now()
		rows, err := s.db.Query(ctx, "SELECT * FROM view.everyone", pgx.QueryExecModeExec)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for rows.Next() {
			n++
		}
		if err := rows.Err(); err != nil || n != 301 {
			t.Fatalf("a reader has %d rows: %v", n, err)
		}
		longest = max(longest, time.Since(began))
		reads++
		return len(rows.FieldDescriptions())
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if read() != 3 {
			t.Fatal("the swap passed a long reader")
		}
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	for read() != 4 {
	}
	if longest > time.Second {
		t.Errorf("a reader of %d waited for %s", reads, longest)
	}
	t.Logf("%d reads, the longest took %s", reads, longest)
	s.await("everyone", func(v table.Table) bool { return v.State == table.Current && v.VersionID == "2" })
	s.sameAsRun("everyone", "everyone")
	if got := grants(); got != want {
		t.Errorf("the rights after the rebuild are %s", got)
	}
	if got := s.strings("SELECT relname::text FROM pg_class WHERE relnamespace = 'view'::regnamespace AND relkind = 'r'"); !slices.Equal(got, []string{"everyone"}) {
		t.Errorf("the schema view has the tables %q", got)
	}
	for _, err := range []error{table.Revoke(ctx, s.db, some, []string{"everyone"}), table.Revoke(ctx, s.db, role, nil)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := grants(); got != "" {
		t.Errorf("the rights after revoking are %s", got)
	}
	var owner string
	if err := s.db.QueryRow(ctx, "SELECT current_user").Scan(&owner); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{owner, "nobody_here"} {
		if err := table.Grant(ctx, s.db, bad, nil); err == nil {
			t.Errorf("a grant to %s was not refused", bad)
		}
	}
}

// contract, Views 6
func TestRightsOfTables(t *testing.T) {
	t.Parallel()
	s := authorized(t)
	all := s.as(systemClient("system/*.cruds"))
	all.put("/ViewDefinition/everyone", everyone).want(201)
	admin := s.as(systemClient("system/*.cruds admin"))
	for method, path := range map[string]string{"POST": "/admin/views", "GET": "/admin/views", "DELETE": "/admin/views/everyone"} {
		all.do(method, s.root(path), `{"view":"ViewDefinition/everyone"}`).issue(403, "forbidden")
	}
	admin.do("POST", s.root("/admin/views"), `{"view":"ViewDefinition/everyone"}`, "Content-Type", "application/json").want(202)
	all.put("/ViewDefinition/everyone", strings.Replace(everyone, `"family"`, `"surname"`, 1)).issue(403, "forbidden")
	all.do("DELETE", "/ViewDefinition/everyone", "").issue(403, "forbidden")
	admin.put("/ViewDefinition/everyone", strings.Replace(everyone, `"family"`, `"surname"`, 1)).want(200)
}
