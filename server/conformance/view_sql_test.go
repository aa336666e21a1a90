package conformance

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/store/storetest"
	"kiln/server/view/table"
)

// sqlLogin makes a login of PostgreSQL, and returns its URL.
func sqlLogin(t *testing.T, url, name string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, url)
	for _, sql := range []string{"DROP ROLE IF EXISTS " + name, "CREATE ROLE " + name + " LOGIN"} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			t.Error(err)
		}
	})
	return fmt.Sprintf("postgres:///%s?host=%s&port=%d&user=%s", config.Database, config.Host, config.Port, name)
}

// sqlLibrary is a SQLQuery over the tables of the views everyone and heights.
func sqlLibrary(sql string) string {
	return `{"resourceType":"Library","id":"q","url":"http://example.org/q","status":"active","type":{"coding":[{"system":"http://sql-on-fhir.org/CodeSystem/library-types","code":"sql-query"}]},
		"relatedArtifact":[{"type":"depends-on","label":"people","resource":"http://example.org/everyone"}],
		"parameter":[{"name":"id","use":"in","type":"string"},{"name":"n","use":"in","type":"integer"}],
		"content":[{"contentType":"application/sql","data":"` + base64.StdEncoding.EncodeToString([]byte("SELECT wrong")) + `"},{"contentType":"application/sql;dialect=postgresql","data":"` + base64.StdEncoding.EncodeToString([]byte(sql)) + `"}]}`
}

// contract, Views 6
func TestSQLQuery(t *testing.T) {
	t.Parallel()
	url := storetest.New(t)
	login := sqlLogin(t, url, fmt.Sprintf("kiln_sql_%d", os.Getpid()))
	s := authorizedOn(t, url, func(c *server.Config) {
		c.Views.SQL.DatabaseURL, c.Views.SQL.MaxRows, c.Views.SQL.Timeout = login, 50, "2s"
	})
	admin := &tables{s.as(systemClient("system/*.cruds admin")), url, connect(t, url)}
	admin.put("/ViewDefinition/everyone", everyone).want(201)
	admin.put("/ViewDefinition/heights", heights).want(201)
	admin.put("/Patient/1", `{"resourceType":"Patient","id":"1","name":[{"family":"One"}]}`).want(201)
	admin.put("/Patient/2", `{"resourceType":"Patient","id":"2"}`).want(201)
	admin.put("/Observation/h0", heightObservation("h0", "1", "8302-2", "170.50")).want(201)
	if err := table.Grant(context.Background(), admin.db, fmt.Sprintf("kiln_sql_%d", os.Getpid()), nil); err != nil {
		t.Fatal(err)
	}
	query := func(sql string, more ...string) string {
		return inParameters(append(more, `{"name":"subjectResource","resource":`+sqlLibrary(sql)+`}`)...)
	}
	a := admin.in(t)
	a.post("/$sql-run", query("SELECT 1 AS n")).issue(422, "invalid", "http://example.org/everyone")
	admin.materialize("everyone", "everyone", "[]")
	admin.materialize("heights", "heights", "[]")
	const all = "SELECT id, family, 1.50 AS n, length(id) = 1 AS short FROM people ORDER BY id -- the end"
	one, two := `{"id":"1","family":"One","n":1.50,"short":true}`, `{"id":"2","family":null,"n":1.50,"short":true}`
	wantRows(t, a.post("/$sql-run", query(all)), one, two)
	wantRows(t, a.post("/$sql-run", query(all, `{"name":"_limit","valueInteger":1}`)), one)
	if got := string(a.post("/$sql-run", query("SELECT id, to_jsonb(ARRAY[1,2]) AS j, ARRAY['a'] AS l FROM people WHERE id = '1'", `{"name":"_format","valueCode":"csv"}`)).want(200).body); got != "id,j,l\r\n1,\"[1, 2]\",\"[\"\"a\"\"]\"\r\n" {
		t.Errorf("CSV is %q", got)
	}
	a.put("/Library/q", sqlLibrary("SELECT id FROM people WHERE (id = :id OR :id IS NULL) AND length(id) <= coalesce(:n, 9) AND family || '::x :id' <> ''")).want(201)
	values := func(parts string) string {
		return `{"name":"parameters","resource":{"resourceType":"Parameters","parameter":[` + parts + `]}}`
	}
	for _, path := range []string{"/$sqlquery-run", "/Library/$sqlquery-run"} {
		wantRows(t, a.post(path, inParameters(`{"name":"queryReference","valueReference":{"reference":"Library/q"}}`)), `{"id":"1"}`)
		wantRows(t, a.post(path, inParameters(`{"name":"queryResource","resource":`+sqlLibrary("SELECT 1 AS n")+`}`)), `{"n":1}`)
	}
	wantRows(t, a.get("/Library/q/$sqlquery-run"), `{"id":"1"}`)
	a.get("/OperationDefinition/sqlquery-run").want(200).equal("base", "http://hl7.org/fhir/uv/sql-on-fhir/OperationDefinition/SQLRun")
	if body := string(a.get("/metadata").want(200).body); !strings.Contains(body, "http://kiln/fhir/OperationDefinition/sqlquery-run") {
		t.Error("/metadata does not list $sqlquery-run")
	}
	wantRows(t, a.get("/$sql-run?subjectReference=Library/q"), `{"id":"1"}`)
	wantRows(t, a.get("/$sql-run?subjectCanonical=http://example.org/q"), `{"id":"1"}`)
	wantRows(t, a.post("/Library/q/$sqlquery-run", inParameters(values(`{"name":"id","valueString":"2"}`))))
	wantRows(t, a.post("/Library/q/$sqlquery-run", inParameters(values(`{"name":"id","valueString":"1"},{"name":"n","valueInteger":1}`))), `{"id":"1"}`)
	for parts, code := range map[string]string{`{"name":"none","valueString":"1"}`: "invalid", `{"name":"n","valueString":"1"}`: "invalid"} {
		a.post("/Library/q/$sqlquery-run", inParameters(values(parts))).issue(400, code)
	}
	for _, more := range []string{`{"name":"patient","valueReference":{"reference":"Patient/1"}}`, `{"name":"_since","valueInstant":"2026-01-01T00:00:00Z"}`, `{"name":"context","valueString":"x"}`} {
		a.post("/$sql-run", query("SELECT 1 AS n", more)).want(400)
	}
	for sql, code := range map[string]string{
		"SELECT nothing FROM people": "invalid", "DELETE FROM people": "invalid", "SELECT 1; SELECT 2": "invalid", "SELECT 1 / 0 AS n": "invalid",
		"SELECT * FROM public.resource": "invalid", "SELECT pg_read_file('/etc/passwd') AS f": "invalid", "SELECT set_config('role', '" + admin.strings("SELECT current_user::text")[0] + "', false) AS r": "invalid",
		"SELECT query_to_xml('SELECT * FROM public.resource', true, false, '')::text AS x": "invalid",
		"SELECT n FROM generate_series(1, 51) AS n":                                        "too-costly", "SELECT pg_sleep(9)::text AS n": "too-costly",
	} {
		a.post("/$sql-run", query(sql)).issue(422, code)
	}
	a.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":{"resourceType":"Library","status":"active","type":{"coding":[{"code":"sql-view"}]}}}`)).issue(422, "invalid")

	// A token needs all resources of each table that the query can read.
	patients := s.as(systemClient("system/Patient.rs")).in(t)
	wantRows(t, patients.post("/$sql-run", query("SELECT count(*) AS n FROM people")), `{"n":2}`)
	for _, sql := range []string{"SELECT * FROM view.heights", `SELECT * FROM "view".heights`, "SELECT query_to_xml('SELECT * FROM ' || 'vi' || 'ew.heights', true, false, '')::text AS x",
		`SELECT "query_to_xml"('SELECT * FROM view.heights', true, false, '')::text AS x`, "SELECT pg_catalog.query_to_xml/**/('x', true, false, '')::text AS x", `SELECT E'\' , query_to_xml(''x'', true, false, '''') --' AS x`} {
		patients.post("/$sql-run", query(sql)).issue(403, "forbidden")
	}
	s.as(systemClient("system/Observation.rs")).in(t).post("/$sql-run", query("SELECT 1 AS n")).issue(403, "forbidden", "Patient")
	s.as(patientApp("1", "patient/*.rs")).in(t).post("/$sql-run", query("SELECT 1 AS n")).issue(403, "forbidden", "Patient")
}

// Without a login, or with one that may do more than read tables, a Library is 400.
func TestSQLQueryNeedsALogin(t *testing.T) {
	t.Parallel()
	without := start(t)
	if body := string(without.get("/metadata").want(200).body); strings.Contains(body, "sqlquery-run") {
		t.Error("/metadata lists $sqlquery-run, although there is no login")
	}
	without.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+sqlLibrary("SELECT 1 AS n")+`}`)).issue(400, "not-supported")
	url := storetest.New(t)
	s := &tables{startOn(t, url, func(c *server.Config) { c.Views.SQL.DatabaseURL = url }), url, connect(t, url)}
	s.put("/ViewDefinition/everyone", everyone).want(201)
	s.materialize("everyone", "everyone", "[]")
	s.post("/$sql-run", inParameters(`{"name":"subjectResource","resource":`+sqlLibrary("SELECT 1 AS n")+`}`)).issue(400, "not-supported")
}
