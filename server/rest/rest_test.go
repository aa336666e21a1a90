package rest

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/web"
)

func TestAppendBundle(t *testing.T) {
	at := time.Date(2024, 5, 6, 7, 8, 9, 123456789, time.UTC)
	v := fhir.Version{ResourceType: "Patient", ID: "1", VersionID: 2, LastUpdated: at, Method: fhir.PUT, Body: []byte(`{"resourceType":"Patient"}`)}
	for _, tt := range []struct {
		name string
		in   interaction.Bundle
		want string
	}{
		{"an empty searchset without total", interaction.Bundle{Type: "searchset", Total: -1}, `{"resourceType":"Bundle","type":"searchset"}`},
		{"a searchset", interaction.Bundle{Type: "searchset", Total: 1,
			Links:   []interaction.Link{{Relation: "self", URL: `Patient?name="`}, {Relation: "next", URL: "?_type=Patient"}},
			Entries: []interaction.Entry{{Version: v, Mode: "match"}, {Body: []byte(`{"resourceType":"OperationOutcome"}`), Mode: "outcome"}}},
			`{"resourceType":"Bundle","type":"searchset","total":1,"link":[{"relation":"self","url":"http://b/Patient?name=\""},{"relation":"next","url":"http://b/?_type=Patient"}],` +
				`"entry":[{"fullUrl":"http://b/Patient/1","resource":{"resourceType":"Patient"},"search":{"mode":"match"}},{"resource":{"resourceType":"OperationOutcome"},"search":{"mode":"outcome"}}]}`},
		{"a history", interaction.Bundle{Type: "history", Total: 2, Entries: []interaction.Entry{
			{Version: v, Request: interaction.RequestLine{Method: "PUT", URL: "Patient/1"}, Answer: &interaction.Answer{Status: 200, Located: true}}}},
			`{"resourceType":"Bundle","type":"history","total":2,"entry":[{"fullUrl":"http://b/Patient/1","resource":{"resourceType":"Patient"},"request":{"method":"PUT","url":"Patient/1"},` +
				`"response":{"status":"200 OK","location":"Patient/1/_history/2","etag":"W/\"2\"","lastModified":"2024-05-06T07:08:09.123Z"}}]}`},
		{"a batch response", interaction.Bundle{Type: "batch-response", Total: -1, Entries: []interaction.Entry{
			{Answer: &interaction.Answer{Status: 204}},
			{Answer: &interaction.Answer{Status: 404, Issues: outcome.NotFound("Patient", "2").Issues}},
			{Nested: &interaction.Bundle{Type: "searchset", Total: 0}, Answer: &interaction.Answer{Status: 200}},
			{Version: v, NoResource: true, Answer: &interaction.Answer{Status: 201, Located: true}}}},
			`{"resourceType":"Bundle","type":"batch-response","entry":[{"response":{"status":"204 No Content"}},` +
				`{"response":{"status":"404 Not Found","outcome":{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"not-found","diagnostics":"Patient/2 does not exist"}]}}},` +
				`{"resource":{"resourceType":"Bundle","type":"searchset","total":0},"response":{"status":"200 OK"}},` +
				`{"fullUrl":"http://b/Patient/1","response":{"status":"201 Created","location":"Patient/1/_history/2","etag":"W/\"2\"","lastModified":"2024-05-06T07:08:09.123Z"}}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(appendBundle(nil, "http://b", &tt.in)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestBase(t *testing.T) {
	proxies := web.Proxies{netip.MustParsePrefix("10.0.0.0/8")}
	forwarded := map[string]string{"X-Forwarded-Proto": "https", "X-Forwarded-Host": "fhir.example.org, inner", "X-Forwarded-Prefix": "/r4/"}
	for _, tt := range []struct {
		name, remote, prefix, configured string
		header                           map[string]string
		want                             string
	}{
		{name: "from the request", remote: "192.0.2.1:1", prefix: "/fhir", want: "http://kiln.test/fhir"},
		{name: "configured", remote: "10.0.0.1:1", prefix: "/fhir", configured: "https://base.test/x", header: forwarded, want: "https://base.test/x"},
		{name: "a trusted proxy", remote: "10.0.0.1:1", prefix: "/fhir", header: forwarded, want: "https://fhir.example.org/r4/fhir"},
		{name: "a trusted proxy over IPv6 notation", remote: "[::ffff:10.0.0.1]:1", header: forwarded, want: "https://fhir.example.org/r4"},
		{name: "a stranger", remote: "192.0.2.1:1", header: forwarded, want: "http://kiln.test"},
		{name: "a scheme that is none", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Proto": "javascript"}, want: "http://kiln.test"},
		{name: "a scheme in capitals", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Proto": "HTTPS"}, want: "https://kiln.test"},
		{name: "a host with a port", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": "[2001:db8::1]:8443"}, want: "http://[2001:db8::1]:8443"},
		{name: "a path in the place of a host", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": "evil.test/x"}, want: "http://kiln.test"},
		{name: "a user before the host", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": "kiln.test@evil.test"}, want: "http://kiln.test"},
		{name: "a quotation mark in the host", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": `a"b`}, want: "http://kiln.test"},
		{name: "a space in the host", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": "a b"}, want: "http://kiln.test"},
		{name: "a query in the host", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": "a?b"}, want: "http://kiln.test"},
		{name: "markup in the host", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": "<script>"}, want: "http://kiln.test"},
		{name: "a port without a host", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": ":80"}, want: "http://kiln.test"},
		{name: "a port that there is not", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": "a:99999"}, want: "http://kiln.test"},
		{name: "half an address", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Host": "[::1"}, want: "http://kiln.test"},
		{name: "a query in the prefix", remote: "10.0.0.1:1", header: map[string]string{"X-Forwarded-Prefix": "/a?b"}, want: "http://kiln.test"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "http://kiln.test/Patient", nil)
			r.RemoteAddr = tt.remote
			for k, v := range tt.header {
				r.Header.Set(k, v)
			}
			c := &call{Exchange: &web.Exchange{Prefix: tt.prefix}, h: &Handler{BaseURL: tt.configured, root: &web.Mux{Settings: func() *web.Settings { return &web.Settings{Proxies: proxies} }}}}
			if got := c.baseURL(r); got != tt.want {
				t.Errorf("base %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPreferences(t *testing.T) {
	for _, tt := range []struct {
		header string
		want   prefer
	}{
		{"", prefer{}},
		{"return=minimal", prefer{ret: interaction.ReturnMinimal}},
		{"return=representation; handling=lenient", prefer{ret: interaction.ReturnRepresentation, lenient: true}},
		{`handling="strict", return=OperationOutcome`, prefer{ret: interaction.ReturnOutcome}},
		{"respond-async", prefer{async: true}},
		{"return=all", prefer{}},
		{"handling=loose, return=minimal", prefer{ret: interaction.ReturnMinimal}},
	} {
		r := &http.Request{Header: http.Header{}}
		if tt.header != "" {
			r.Header.Set("Prefer", tt.header)
		}
		if got := preferences(r); got != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.header, got, tt.want)
		}
	}
}

// A page of twenty resources of 2 kB: writing it is copying.
func BenchmarkAppendBundle(b *testing.B) {
	body := append([]byte(`{"resourceType":"Observation","x":"`), make([]byte, 2000)...)
	page := interaction.Bundle{Type: "searchset", Total: 100}
	for range 20 {
		page.Entries = append(page.Entries, interaction.Entry{Mode: "match", Version: fhir.Version{ResourceType: "Observation", ID: "01a1f8e8-df09-710d-8395-fb40de33f83f", VersionID: 1, Body: body}})
	}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = appendBundle(dst[:0], "http://127.0.0.1:8080/fhir", &page)
	}
	b.SetBytes(int64(len(dst)))
}
