package store

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"kiln/server/store/storetest"
)

// TestBody has the JSON come back from Go and from SQL.
func TestBody(t *testing.T) {
	ctx := context.Background()
	var conn *pgx.Conn
	if os.Getenv("TEST_DATABASE_URL") != "" {
		var err error
		if conn, err = pgx.Connect(ctx, storetest.New(t)); err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
	}
	check := func(t interface{ Fatalf(string, ...any) }, json string) {
		stored := appendBody([]byte("before"), []byte(json))
		if !bytes.HasPrefix(stored, []byte("before")) {
			t.Fatalf("what stood before is %q", stored)
		}
		stored = stored[len("before"):]
		if got, err := decodeBody(stored); err != nil || string(got) != json {
			t.Fatalf("%q came back as %q, %v", json, got, err)
		}
		if conn == nil {
			return
		}
		var got string
		if err := conn.QueryRow(ctx, "SELECT resource_body($1)", stored).Scan(&got); err != nil || got != json {
			t.Fatalf("%q came back from SQL as %q, %v", json, got, err)
		}
	}
	const observation = `{"resourceType":"Observation","id":"1","meta":{"versionId":"1","lastUpdated":"2026-01-01T00:00:00.000Z"},"status":"final",` +
		`"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-signs"}]}],` +
		`"code":{"coding":[{"system":"http://loinc.org","code":"8302-2","display":"Body Height"}]}}`
	for _, json := range []string{
		`{}`, `{"a":"b"}`, observation, `{"text":"Grüße 你好"}`,
		`{"a":"` + strings.Repeat("x", 70) + `"}`, `{"a":"` + strings.Repeat("xyz", 30000) + `"}`, `{"a":"` + strings.Repeat("ab", 20000) + `"}`,
		strings.Repeat(observation, 100),
	} {
		check(t, json)
	}
	if n := len(appendBody(nil, []byte(observation))); n > len(observation)/3 {
		t.Errorf("an Observation of %d bytes takes %d", len(observation), n)
	}
	piece := rapid.OneOf(rapid.StringMatching(`[a-z]{1,300}`), rapid.SampledFrom([]string{observation, `"system":"http://loinc.org"`, "\t", "ü", strings.Repeat("0", 300)}))
	rapid.Check(t, func(t *rapid.T) {
		check(t, "{"+strings.Join(rapid.SliceOf(piece).Draw(t, "pieces"), ""))
	})
	for _, stored := range []string{"\x02abc", "\x01\xff\xff\xff\xff\xff", "\x01\x10\x01"} {
		if _, err := decodeBody([]byte(stored)); err == nil {
			t.Errorf("%q was taken for a body", stored)
		}
	}
}

// TestBodiesOfPages fills the memory of a page again and again: no body of a page
// may touch another of the same page.
func TestBodiesOfPages(t *testing.T) {
	size := rapid.OneOf(rapid.IntRange(2, 300), rapid.IntRange(1000, 3*mostPiece))
	memory := new(bodies)
	rapid.Check(t, func(t *rapid.T) {
		var want, got []string
		var kept [][]byte
		for i, n := range rapid.SliceOfN(size, 0, 40).Draw(t, "sizes") {
			json := `{"a":"` + strings.Repeat(string(rune('a'+i%26)), n) + `"}`
			stored := []byte(json)
			if i%3 > 0 {
				stored = appendBody(nil, stored)
			}
			body, err := memory.Decode(stored)
			if err != nil {
				t.Fatal(err)
			}
			want, kept = append(want, json), append(kept, body)
		}
		for _, body := range kept {
			_ = append(body, "overwritten"...)
		}
		for _, body := range kept {
			got = append(got, string(body))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("bodies of %d lengths are not what they were", len(want))
		}
		memory.clear()
	})
}

func BenchmarkBody(b *testing.B) {
	json := []byte(`{"resourceType":"Observation","id":"0c0c5a0e-7c0f-4a5e-8a55-9d1b6e5d8f0a","meta":{"versionId":"1","lastUpdated":"2026-01-01T00:00:00.000Z"},"status":"final",` +
		`"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-signs","display":"vital-signs"}]}],` +
		`"code":{"coding":[{"system":"http://loinc.org","code":"8302-2","display":"Body Height"}],"text":"Body Height"},` +
		`"subject":{"reference":"Patient/5c1b4a7d-2f0e-4a5e-8a55-9d1b6e5d8f0a"},"encounter":{"reference":"Encounter/1f6c7b9e-0d5a-4d6e-8a55-9d1b6e5d8f0a"},` +
		`"effectiveDateTime":"2013-02-10T03:17:02-05:00","issued":"2013-02-10T03:17:02.543-05:00","valueQuantity":{"value":175.3,"unit":"cm","system":"http://unitsofmeasure.org","code":"cm"}}`)
	stored := appendBody(nil, json)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		b.ReportMetric(float64(len(stored))/float64(len(json)), "ratio")
		var dst []byte
		for b.Loop() {
			dst = appendBody(dst[:0], json)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decodeBody(stored); err != nil {
				b.Fatal(err)
			}
		}
	})
}
