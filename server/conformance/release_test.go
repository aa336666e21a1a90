package conformance

import (
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"kiln/server/store/storetest"
)

// go test ./server/conformance -run TestUpgradeOfReleases -release 0.1.0 writes the dump of a release.
var release = flag.String("release", "", "write the database of this release to testdata/releases")

// TestUpgradeOfReleases loads a dump of each release and serves from it: resources, versions, searches and Subscriptions
// are there as they were.
// Contract, Operations: upgrade.
func TestUpgradeOfReleases(t *testing.T) {
	if *release != "" {
		writeRelease(t, *release)
	}
	dumps, err := filepath.Glob("testdata/releases/*.sql.gz")
	if err != nil || len(dumps) == 0 {
		t.Fatalf("no dumps: %v", err)
	}
	for _, file := range dumps {
		t.Run(filepath.Base(file), func(t *testing.T) {
			url := storetest.New(t)
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(t.Context(), "DROP SCHEMA public, view CASCADE; CREATE SCHEMA public"); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			z, err := gzip.NewReader(f)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), string(text)); err != nil {
				t.Fatal(err)
			}
			s := startOn(t, url)
			s.get("/Patient/kept").want(200).equal("name.0.family", "Second").equal("meta.versionId", "2")
			s.get("/Patient/kept/_history/1").want(200).equal("name.0.family", "First")
			s.get("/Patient/gone").want(410)
			for _, query := range []string{"Patient?family=second", "Observation?subject=Patient/kept", "Observation?code=http://loinc.org|8302-2", "Observation?value-quantity=gt1.6|http://unitsofmeasure.org|m",
				"Observation?date=2024-05", "Observation?subject:Patient.family=second", "Patient?_text=narrative"} {
				s.get("/"+query).want(200).equal("total", "1")
			}
			s.get("/Subscription/follows").want(200).equal("criteria", "Observation?code=8302-2")
			s.put("/Patient/kept", `{"resourceType":"Patient","id":"kept","name":[{"family":"Third"}]}`).want(200).equal("meta.versionId", "3")
			if found := s.get("/Patient?family=third").want(200); found.len("entry") != 1 {
				t.Errorf("a write after the upgrade is not found: %s", found.body)
			}
		})
	}
}

// writeRelease writes the dump of a database that a server of this build has used.
func writeRelease(t *testing.T, version string) {
	t.Helper()
	url := storetest.New(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "DELETE FROM rid_next"); err != nil { // those of storetest begin elsewhere
		t.Fatal(err)
	}
	conn.Close(t.Context())
	s := startOn(t, url)
	s.put("/Patient/kept", `{"resourceType":"Patient","id":"kept","name":[{"family":"First"}]}`).want(201)
	s.put("/Patient/kept", `{"resourceType":"Patient","id":"kept","name":[{"family":"Second"}],
		"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\">a narrative</div>"}}`).want(200)
	s.put("/Patient/gone", `{"resourceType":"Patient","id":"gone"}`).want(201)
	s.do("DELETE", "/Patient/gone", "").want(204)
	s.put("/Observation/height", `{"resourceType":"Observation","id":"height","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"8302-2"}]},
		"subject":{"reference":"Patient/kept"},"effectiveDateTime":"2024-05-06","valueQuantity":{"value":172,"unit":"cm","system":"http://unitsofmeasure.org","code":"cm"}}`).want(201)
	s.put("/Subscription/follows", `{"resourceType":"Subscription","id":"follows","status":"off","reason":"test","criteria":"Observation?code=8302-2",
		"channel":{"type":"rest-hook","endpoint":"http://127.0.0.1:9/hook","payload":"application/fhir+json"}}`).want(201)
	s.stop()
	dump := exec.CommandContext(t.Context(), "pg_dump", "--no-owner", "--no-privileges", "--inserts", "--dbname", url)
	text, err := dump.Output()
	if err != nil {
		t.Fatal(err)
	}
	// Commands of psql are no SQL, and COMMENT ON EXTENSION needs its owner.
	text = regexp.MustCompile(`(?m)^(\\.*|COMMENT ON EXTENSION .*)\n`).ReplaceAll(text, nil)
	// The search path of the dump would stay with the connection.
	text = bytes.ReplaceAll(text, []byte("SELECT pg_catalog.set_config('search_path', '', false);"), nil)
	if strings.Contains(string(text), "CREATE SCHEMA public") {
		text = bytes.ReplaceAll(text, []byte("CREATE SCHEMA public;"), nil)
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("testdata/releases", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("testdata/releases/"+version+".sql.gz", z.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
