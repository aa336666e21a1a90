package store_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/store"
)

// bodyHeight returns the creation of an Observation of 0.8 kB with some thirty
// terms, as a server has it ready before BEGIN.
func bodyHeight(b *testing.B, n int) *store.Write {
	b.Helper()
	json := fmt.Appendf(nil, `{"resourceType":"Observation","status":"final",
		"category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-signs","display":"vital-signs"}]}],
		"code":{"coding":[{"system":"http://loinc.org","code":"8302-2","display":"Body Height"}],"text":"Body Height"},
		"subject":{"reference":"Patient/%s"},"encounter":{"reference":"Encounter/%s"},
		"effectiveDateTime":"2013-02-%02dT03:17:%02d-05:00","issued":"2013-02-10T03:17:02.543-05:00",
		"valueQuantity":{"value":%d.25,"unit":"cm","system":"http://unitsofmeasure.org","code":"cm"}}`,
		uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n/100)), uuid.NewSHA1(uuid.Nil, fmt.Append(nil, "e", n/10)), n%28+1, n%60, n%200)
	r, err := fhir.Decode(r4.Model, json)
	if err != nil {
		b.Fatal(err)
	}
	body, err := fhir.Splice(json, nil)
	if err != nil {
		b.Fatal(err)
	}
	w := &store.Write{Method: fhir.POST, ResourceType: "Observation", ID: uuid.NewString(), Body: body, Index: &fhir.Index{}}
	r.Header().ID.Text = w.ID
	index.Extract(w.Index, r)
	w.Index.Finish()
	return w
}

// BenchmarkWrite creates, then updates, single resources from 32 clients.
func BenchmarkWrite(b *testing.B) {
	for _, method := range []fhir.Method{fhir.POST, fhir.PUT} {
		b.Run(method.String(), func(b *testing.B) {
			s, _ := open(b)
			ctx := context.Background()
			ws := make([]*store.Write, b.N)
			for i := range ws {
				ws[i] = bodyHeight(b, i)
			}
			if method == fhir.PUT {
				if err := s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, ws) }); err != nil {
					b.Fatal(err)
				}
				for _, w := range ws {
					w.Method = fhir.PUT
				}
			}
			var next atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(16)
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if err := s.Write(ctx, ws[next.Add(1)-1]); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
		})
	}
}

// BenchmarkTransaction creates 300 resources at a time.
func BenchmarkTransaction(b *testing.B) {
	s, _ := open(b)
	ctx := context.Background()
	const size = 300
	b.ReportAllocs()
	for n := 0; b.Loop(); n += size {
		b.StopTimer()
		ws := make([]*store.Write, size)
		for i := range ws {
			ws[i] = bodyHeight(b, n+i)
		}
		b.StartTimer()
		if err := s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, ws) }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "resources/s")
}

// BenchmarkRead reads current versions by id.
func BenchmarkRead(b *testing.B) {
	s, _ := open(b)
	ctx := context.Background()
	ws := make([]*store.Write, 1000)
	for i := range ws {
		ws[i] = bodyHeight(b, i)
	}
	if err := s.InTx(ctx, func(tx *store.Tx) error { return tx.Write(ctx, ws) }); err != nil {
		b.Fatal(err)
	}
	var next atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(16)
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := s.Read(ctx, "Observation", ws[int(next.Add(1))%len(ws)].ID); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
}
