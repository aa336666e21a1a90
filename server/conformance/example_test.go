package conformance

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kiln/definitions/examples"
	"kiln/server"
)

// Every example of HL7's R4 package goes in by POST and comes back unchanged but
// for id and meta, decimals to the digit. Whether the examples keep R4's own rules
// is another question, which server/validate answers.
func TestExamplesComeBackUnchanged(t *testing.T) {
	s := start(t, func(c *server.Config) { c.Validation.Mode = "structure" })
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	stored := make(map[string]int)
	for _, example := range all {
		want := decodeExact(t, example)
		typ, _ := want["resourceType"].(string)
		name, _ := want["id"].(string)
		if typ == "SearchParameter" {
			continue // it would change the search parameters
		}
		a := s.post("/"+typ, string(example))
		if a.status != 201 {
			t.Errorf("%s/%s: status %d\n%s", typ, name, a.status, clip(a.body))
			continue
		}
		stored[typ]++
		got := decodeExact(t, s.get("/"+typ+"/"+a.str("id"), "Accept", "application/fhir+json").want(200).body)
		for _, r := range []map[string]any{got, want} {
			delete(r, "id")
			if meta, ok := r["meta"].(map[string]any); ok {
				delete(meta, "versionId")
				delete(meta, "lastUpdated")
				if len(meta) == 0 {
					delete(r, "meta")
				}
			}
			if typ == "Subscription" { // its status, and the error with it, are the server's
				delete(r, "status")
				delete(r, "error")
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s/%s (-want +got):\n%s", typ, name, diff)
		}
	}
	if len(stored) < 100 {
		t.Errorf("examples of %d types, want most of R4's", len(stored))
	}
	for typ, n := range stored {
		a := s.get("/" + typ + "?_summary=count").want(200)
		if a.str("total") != strconv.Itoa(n) {
			t.Errorf("%s: total %s, want %d", typ, a.str("total"), n)
		}
	}
}

// decodeExact keeps numbers as they are written.
func decodeExact(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var out map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}
