package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server"
	"kiln/server/store/storetest"
)

// The index of a database is made by the search parameters that the server is
// compiled with, contract 3 (`go generate`, then build: other parameters). What
// another build has left is made here by hand: entries are taken away, and the
// fingerprint is changed that tells by which build they were made.

// onDatabase connects to the database of a service.
func onDatabase(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func sql(t testing.TB, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := conn.Exec(context.Background(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func number(t testing.TB, conn *pgx.Conn, query string) (n int) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// otherBuild makes the index of type Patient one of another build, that knew of
// none of its parameters.
var otherBuild = []string{
	`DELETE FROM index_string x USING resource r JOIN resource_type t ON t.typ = r.typ WHERE x.rid = r.rid AND t.name = 'Patient'`,
	`UPDATE resource r SET terms = '{}', targets = '{}' FROM resource_type t WHERE t.typ = r.typ AND t.name = 'Patient'`,
	`UPDATE index_fingerprint SET fingerprint = fingerprint + 1 WHERE resource_type = 'Patient'`,
	takeOver,
}

// takeOver is the statement of a starting server of another build.
const takeOver = `UPDATE search_registry SET fingerprint = fingerprint + 1, version = version + 1`

func TestIndexOfAnotherBuildIsNotSearchedSilently(t *testing.T) {
	url := storetest.New(t)
	on := func(c *server.Config) { c.Database.URL = url }
	old := start(t, on)
	old.put("/Practitioner/dr", `{"resourceType":"Practitioner","id":"dr"}`).want(201)
	old.put("/Patient/p", `{"resourceType":"Patient","id":"p","name":[{"family":"Chalmers"}],"gender":"male","birthDate":"1970-01-01",
		"generalPractitioner":[{"reference":"Practitioner/dr"}]}`).want(201)
	old.put("/Observation/o", `{"resourceType":"Observation","id":"o","status":"final","code":{"coding":[{"code":"x"}]},"subject":{"reference":"Patient/p"}}`).want(201)
	old.put("/SearchParameter/own", parameter("own", "own", "token", "Patient", "Patient.maritalStatus")).want(201)
	old.indexed("/Patient?own=x")
	old.stop()

	conn := onDatabase(t, url)
	sql(t, conn, otherBuild...)
	// The work waits for transactions that may have used the other parameters.
	older := onDatabase(t, url)
	sql(t, older, "BEGIN", "SELECT pg_current_xact_id()")
	s := start(t, on)

	for _, path := range []string{"/Patient?name=chalmers", "/Patient?birthdate=1970", "/Patient?own=x", "/Patient?_tag=x", "/Observation?subject:Patient.name=chalmers",
		"/Practitioner?_has:Patient:general-practitioner:gender=male", "/Practitioner?_id=dr&_revinclude=Patient:general-practitioner",
		"/Practitioner?_id=dr&_revinclude=*", "/Practitioner/dr/Patient", "/Patient/p/*", "/Patient/p/$everything",
		"/Patient?_filter=gender%20eq%20male", "/?_type=Patient,Observation&_profile=x"} {
		if got := s.get(path).want(200).warning(); !strings.Contains(got, "of Patient is still being built") {
			t.Errorf("%s warns of %q", path, got)
		}
	}
	for _, path := range []string{"/Observation?code=x", "/Patient?_id=p", "/Patient", "/Patient/p/Observation", "/Observation?_include=Observation:subject"} {
		if got := s.get(path).want(200).warning(); got != "" {
			t.Errorf("%s, which asks for nothing that another build has indexed, warns of %q", path, got)
		}
	}
	s.post("/Patient", `{"resourceType":"Patient"}`, "If-None-Exist", "name=chalmers").issue(409, "incomplete", "still being built")
	s.put("/Patient/q", `{"resourceType":"Patient","id":"q","name":[{"family":"Chalmers"}]}`).want(201)
	s.finds("/Patient?name=chalmers", "q")

	a := s.get("/$reindex").want(200)
	job := ""
	for i := range a.len("parameter") {
		text := fmt.Sprint(a.at(fmt.Sprintf("parameter.%d", i)))
		if strings.Contains(text, "another build of the server") {
			job += text
		}
	}
	if strings.Count(job, "another build") != 1 || !strings.Contains(job, "valueCode:Patient") || !strings.Contains(job, "valueCode:waiting") {
		t.Errorf("the jobs of the build are %s", job)
	}

	sql(t, older, "COMMIT")
	s.indexed("/Patient?name=chalmers")
	s.finds("/Patient?name=chalmers", "p", "q")
	s.finds("/Observation?subject:Patient.name=chalmers", "o")
	s.finds("/Practitioner?_has:Patient:general-practitioner:gender=male", "dr")
	s.finds("/Practitioner/dr/Patient", "p")
	s.get("/Patient/p").want(200).equal("meta.versionId", "1")

	// The same build again has nothing to do.
	before := number(t, conn, "SELECT version FROM search_registry")
	if got := start(t, on).get("/Patient?name=chalmers").want(200).warning(); got != "" {
		t.Errorf("after another start of the same build a search warns of %q", got)
	}
	if now := number(t, conn, "SELECT version FROM search_registry"); now != before {
		t.Errorf("the version of the registry was %d and is %d", before, now)
	}
}

// A patient's app is told that resources may be missing while the index of her compartment is being built, and cannot
// create a second resource.
func TestCompartmentWhileItsIndexIsBuilt(t *testing.T) {
	url := storetest.New(t)
	old := authorizedOn(t, url)
	twoPatients(old)
	old.stop()
	conn, older := onDatabase(t, url), onDatabase(t, url)
	sql(t, conn, `UPDATE resource r SET terms = '{}', targets = '{}' FROM resource_type t WHERE t.typ = r.typ AND t.name = 'Observation'`,
		`UPDATE index_fingerprint SET fingerprint = fingerprint + 1 WHERE resource_type = 'Observation'`, takeOver)
	sql(t, older, "BEGIN", "SELECT pg_current_xact_id()") // the work waits for it
	s := authorizedOn(t, url)

	app := s.as(patientApp("a", "patient/*.cruds"))
	if a := app.get("/Observation").want(200); slices.Contains(a.ids(), "obs-a") || !strings.Contains(a.warning(), "of Observation is still being built") {
		t.Errorf("the app finds %v, and is warned of %q", a.ids(), a.warning())
	}
	if got := s.as(systemClient("system/*.rs")).get("/Observation").want(200).warning(); got != "" {
		t.Errorf("a client that nothing is hidden from is warned of %q", got)
	}
	app.post("/Observation", `{"resourceType":"Observation","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/a"}}`, "If-None-Exist", "_id=x").
		issue(409, "incomplete", "still being built")

	sql(t, older, "COMMIT")
	app.indexed("/Observation")
	app.finds("/Observation", "obs-a", "vital-a")
}

// Builds before 13 of fhir.Extraction stored all entries of a key in one part: the index of their resources is split
// into parts.
func TestIndexWithoutPartsIsBroughtIntoParts(t *testing.T) {
	url := storetest.New(t)
	on := func(c *server.Config) { c.Database.URL = url }
	old := start(t, on)
	const many = 60 // more than there are before the second part (storetest)
	for i := range many {
		old.put(fmt.Sprintf("/Observation/o%d", i), fmt.Sprintf(`{"resourceType":"Observation","id":"o%d","status":"final","code":{"text":"x"},"effectiveDateTime":"2020-01-%02d",
			"valueQuantity":{"value":%d,"system":"http://unitsofmeasure.org","code":"cm"}}`, i, i%28+1, i)).want(201)
	}
	old.stop()
	conn := onDatabase(t, url)
	entries := func() (sum int) {
		t.Helper()
		return number(t, conn, `SELECT sum(hashint8extended(key, rid) >> 20)::bigint FROM (SELECT key, rid FROM index_date UNION ALL SELECT key, rid FROM index_quantity) x`)
	}
	parted := entries()
	sql(t, conn, `UPDATE index_date SET key = key - (rid >> 20 & 268435455)`, `UPDATE index_quantity SET key = key - (rid >> 20 & 268435455)`,
		`UPDATE index_fingerprint SET fingerprint = fingerprint + 1`, takeOver)
	if entries() == parted {
		t.Fatal("nothing lies in the second part")
	}
	s := start(t, on)
	for _, path := range []string{"/Observation?date=ge2020", "/Observation?value-quantity=ge0", "/Observation?date=ge2020&_sort=-date", "/Observation?date=ge2020&_sort=value-quantity"} {
		s.indexed(path)
		if got := s.get(path + "&_total=accurate").want(200).at("total"); fmt.Sprint(got) != fmt.Sprint(many) {
			t.Errorf("%s finds %v of %d", path, got, many)
		}
	}
	if entries() != parted {
		t.Error("the entries are not those that were there")
	}
}

func TestNewDatabaseIsNotIndexedAgain(t *testing.T) {
	url := storetest.New(t)
	on := func(c *server.Config) { c.Database.URL = url }
	conn := onDatabase(t, url)
	s := start(t, on)
	types := number(t, conn, "SELECT count(*) FROM index_fingerprint")
	if types < 140 || number(t, conn, "SELECT version FROM search_registry") != 1 {
		t.Errorf("%d types have a fingerprint", types)
	}
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","gender":"male"}`).want(201)
	if n := number(t, conn, "SELECT count(*) FROM reindex_job"); n != 0 {
		t.Errorf("there are %d jobs", n)
	}
	start(t, on).finds("/Patient?gender=male", "p")
	if n := number(t, conn, "SELECT count(*) FROM reindex_job"); n != 0 {
		t.Errorf("after the second start there are %d jobs", n)
	}
}

// A database that is older than fingerprints was indexed by nobody knows which
// build.
func TestDatabaseWithoutFingerprintsIsIndexedAgain(t *testing.T) {
	url := storetest.New(t)
	on := func(c *server.Config) { c.Database.URL = url }
	s := start(t, on)
	s.put("/Patient/p", `{"resourceType":"Patient","id":"p","gender":"male"}`).want(201)
	s.put("/Basic/b", `{"resourceType":"Basic","id":"b","code":{"text":"x"}}`).want(201)
	s.do("DELETE", "/Basic/b", "").want(204)
	s.stop()
	conn := onDatabase(t, url)
	sql(t, conn, append(otherBuild, "DELETE FROM index_fingerprint", "UPDATE search_registry SET fingerprint = 0")...)
	s = start(t, on)
	s.indexed("/Patient?gender=male")
	s.finds("/Patient?gender=male", "p")
	if n := number(t, conn, "SELECT count(*) FROM reindex_job WHERE resource_type = 'Patient' AND changed = 1"); n != 1 {
		t.Errorf("%d jobs have indexed the patient", n)
	}
	eventually(t, "a job without resources is forgotten", func() bool {
		return number(t, conn, "SELECT count(*) FROM reindex_job WHERE resource_type <> 'Patient'") == 0
	})
}

func TestStartsAtOnceMakeOneJob(t *testing.T) {
	url := storetest.New(t)
	on := func(c *server.Config) { c.Database.URL = url }
	old := start(t, on)
	old.put("/Patient/p", `{"resourceType":"Patient","id":"p","gender":"male"}`).want(201)
	old.put("/Group/g", `{"resourceType":"Group","id":"g","type":"person","actual":true}`).want(201)
	old.stop()
	conn := onDatabase(t, url)
	sql(t, conn, append(otherBuild, "UPDATE index_fingerprint SET fingerprint = 1 WHERE resource_type IN ('Group', 'Task')")...)
	version := number(t, conn, "SELECT version FROM search_registry")
	var together sync.WaitGroup
	services := make([]*service, 3)
	for i := range services {
		together.Go(func() { services[i] = start(t, on) })
	}
	together.Wait()
	for _, s := range services {
		s.indexed("/Patient?gender=male")
		s.finds("/Patient?gender=male", "p")
	}
	if n := number(t, conn, "SELECT count(*) FROM reindex_job"); n != 2 {
		t.Errorf("there are %d jobs, want one for Patient and one for Group", n)
	}
	if n := number(t, conn, "SELECT version FROM search_registry"); n != version+1 {
		t.Errorf("the version rose from %d to %d", version, n)
	}
	if n := number(t, conn, "SELECT count(*) FROM index_fingerprint WHERE fingerprint = 1"); n != 0 {
		t.Errorf("%d fingerprints are still the other build's", n)
	}
}

func TestServerOfAnotherBuildRefuses(t *testing.T) {
	url := storetest.New(t)
	on := func(c *server.Config) { c.Database.URL = url }
	old := start(t, on)
	old.put("/Patient/p", `{"resourceType":"Patient","id":"p","gender":"male"}`).want(201)
	conn := onDatabase(t, url)
	state := func() int {
		return number(t, conn, "SELECT (SELECT count(*) FROM resource) + (SELECT count(*) FROM resource_history) + (SELECT count(*) FROM change) + (SELECT count(*) FROM index_date)")
	}
	before := state()
	sql(t, conn, takeOver)

	// Writes are fenced: not even the first one after that gets in.
	const words = "another build"
	patient := `{"resourceType":"Patient","id":"p","gender":"female","birthDate":"1970-01-01"}`
	old.put("/Patient/p", patient).issue(503, "exception", words)
	old.post("/Patient", `{"resourceType":"Patient","birthDate":"1970-01-01"}`).issue(503, "exception", words)
	old.do("PATCH", "/Patient/p", `[{"op":"replace","path":"/gender","value":"female"}]`, "Content-Type", "application/json-patch+json").issue(503, "exception", words)
	old.do("DELETE", "/Patient/p", "").issue(503, "exception", words)
	old.post("/", `{"resourceType":"Bundle","type":"transaction","entry":[{"resource":`+patient+`,"request":{"method":"PUT","url":"Patient/p"}},
		{"request":{"method":"DELETE","url":"Patient/x"}}]}`).issue(503, "exception", words)
	old.post("/", `{"resourceType":"Bundle","type":"batch","entry":[{"resource":`+patient+`,"request":{"method":"PUT","url":"Patient/p"}}]}`).want(200).
		equal("entry.0.response.status", "503 Service Unavailable")
	old.put("/SearchParameter/own", parameter("own", "own", "token", "Patient", "Patient.maritalStatus")).issue(503, "exception", words)
	eventually(t, "searches are refused", func() bool { return old.get("/Patient?gender=male").status == 503 })
	for _, path := range []string{"/Patient?gender=male", "/Patient", "/Patient/p/Observation", "/Patient/p/$everything", "/metadata"} {
		old.get(path).issue(503, "exception", words)
	}
	old.get("/health/ready").issue(503, "timeout", words)
	old.get("/health/live").want(200)
	old.get("/Patient/p").want(200).equal("gender", "male")
	old.get("/Patient/p/_history").want(200)
	if after := state(); after != before {
		t.Errorf("rows were %d and are %d", before, after)
	}

	// Its build comes back: so does it.
	s := start(t, on)
	eventually(t, "the server answers again", func() bool { return old.get("/Patient?gender=male").status == 200 })
	old.put("/Patient/p", patient).want(200)
	s.finds("/Patient?gender=female", "p")
}
