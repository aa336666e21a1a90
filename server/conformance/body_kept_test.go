package conformance

import (
	"context"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"kiln/server"
	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/store/storetest"
)

// The texts of a resource are parts of the body of its Bundle. After the answer, no data of the server (search cache,
// dictionaries, events) may refer to them: a body has megabytes, and thousands of resources are cached.
func TestNothingKeepsBodies(t *testing.T) {
	t.Parallel()
	c := server.Default()
	c.Database.URL = storetest.New(t)
	s, err := server.New(context.Background(), c, server.Options{Version: "test", Logger: failureLog(t), Sandbox: sandboxCommand()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	ctx, number := access.WithPrincipal(t.Context(), access.Open), 0
	post := func(patients int) weak.Pointer[byte] {
		t.Helper()
		var b strings.Builder
		b.WriteString(`{"resourceType":"Bundle","type":"transaction","entry":[`)
		for i := range patients {
			number++
			fmt.Fprintf(&b, `%s{"fullUrl":"urn:p%[2]d","request":{"method":"PUT","url":"Patient/p%[2]d"},"resource":{"resourceType":"Patient","id":"p%[2]d","gender":"female",
				"name":[{"family":"Family%[2]d","given":["Given%[2]d"]}],"identifier":[{"system":"http://x/%[2]d","value":"v%[2]d"}],"birthDate":"1980-01-02"}},
				{"request":{"method":"POST","url":"Observation"},"resource":{"resourceType":"Observation","status":"final","subject":{"reference":"urn:p%[2]d"},
				"code":{"coding":[{"system":"http://x/codes%[2]d","code":"c%[2]d","display":"Display %[2]d"}]},
				"valueQuantity":{"value":1.%[2]d,"unit":"u%[2]d","system":"http://x/units","code":"u%[2]d"}}}`, strings.Repeat(",", min(i, 1)), number)
		}
		b.WriteString(`]}`)
		body := []byte(b.String())
		if _, err := s.Service.Bundle(ctx, interaction.BundleParams{Body: body, BaseURL: "http://x/fhir"}); err != nil {
			t.Fatal(err)
		}
		return weak.Make(&body[0])
	}
	search := func(typ, query string) {
		t.Helper()
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.Search(ctx, interaction.SearchParams{ResourceType: typ, Values: values}); err != nil {
			t.Fatal(err)
		}
	}
	searchAll := func() {
		t.Helper()
		for _, q := range []string{"gender=female", "name=family", "birthdate=ge1970", "_count=1"} {
			search("Patient", q)
		}
		for _, q := range []string{"status=final", "value-quantity=ge1", "patient.name=family"} {
			search("Observation", q)
		}
	}
	post(300) // broad enough to be remembered
	for range 3 {
		searchAll()
	}
	var bodies []weak.Pointer[byte]
	for range 30 {
		bodies = append(bodies, post(1))
		searchAll()
	}
	bodies = append(bodies, post(2), post(1)) // types that no search has used yet
	kept := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		runtime.GC()
		kept = 0
		for _, b := range bodies {
			if b.Value() != nil {
				kept++
			}
		}
		if kept == 0 {
			return
		}
		search("Patient", "_count=1")
	}
	t.Errorf("%d of %d bodies are kept", kept, len(bodies))
}
