package validate_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/validate"
)

// syntheaObservation is one as Synthea writes them.
const syntheaObservation = `{"resourceType":"Observation","id":"2f4c8d7e-3b1a-9c55-8a6d-0e9f1b2c3d4e","meta":{"profile":["http://hl7.org/fhir/us/core/StructureDefinition/us-core-vital-signs"]},` +
	`"status":"final","category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-signs","display":"Vital signs"}]}],` +
	`"code":{"coding":[{"system":"http://loinc.org","code":"85354-9","display":"Blood pressure panel with all children optional"}],"text":"Blood pressure panel with all children optional"},` +
	`"subject":{"reference":"Patient/e925b0f3-8006-43f6-aa31-94bd215e55e7"},"encounter":{"reference":"Encounter/0b1f4c2a-7d3e-4f56-9a8b-1c2d3e4f5a6b"},` +
	`"effectiveDateTime":"2014-04-07T05:42:13+02:00","issued":"2014-04-07T05:42:13.111+02:00",` +
	`"component":[{"code":{"coding":[{"system":"http://loinc.org","code":"8462-4","display":"Diastolic Blood Pressure"}],"text":"Diastolic Blood Pressure"},"valueQuantity":{"value":84,"unit":"mm[Hg]","system":"http://unitsofmeasure.org","code":"mm[Hg]"}},` +
	`{"code":{"coding":[{"system":"http://loinc.org","code":"8480-6","display":"Systolic Blood Pressure"}],"text":"Systolic Blood Pressure"},"valueQuantity":{"value":122,"unit":"mm[Hg]","system":"http://unitsofmeasure.org","code":"mm[Hg]"}}]}`

func BenchmarkObservation(b *testing.B) {
	v := newValidator(b)
	data := []byte(syntheaObservation)
	r, err := fhir.Decode(r4.Model, data)
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if issues := v.Validate(ctx, r, validate.Options{}); len(issues) > 0 {
		b.Fatal(issues)
	}
	b.Run("validate", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			v.Validate(ctx, r, validate.Options{})
		}
	})
	b.Run("decode and validate", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			r, err := fhir.Decode(r4.Model, data)
			if err != nil {
				b.Fatal(err)
			}
			v.Validate(ctx, r, validate.Options{})
		}
	})
}

// BenchmarkCorpus validates the JSON files of the folder KILN_CORPUS.
func BenchmarkCorpus(b *testing.B) {
	dir := os.Getenv("KILN_CORPUS")
	if dir == "" {
		b.Skip("KILN_CORPUS does not name a folder with Bundles")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		b.Fatal("no JSON files in KILN_CORPUS", err)
	}
	files = files[:min(len(files), 40)]
	var data [][]byte
	size := 0
	for _, f := range files {
		d, err := os.ReadFile(f)
		if err != nil {
			b.Fatal(err)
		}
		data = append(data, d)
		size += len(d)
	}
	v := newValidator(b)
	ctx := context.Background()
	issues := map[string]int{}
	b.SetBytes(int64(size))
	for b.Loop() {
		clear(issues)
		for _, d := range data {
			r, err := fhir.Decode(r4.Model, d)
			if err != nil {
				b.Fatal(err)
			}
			for _, i := range v.Validate(ctx, r, validate.Options{}) {
				issues[i.Diagnostics]++
			}
		}
	}
	for text, n := range issues {
		b.Logf("%d %s", n, text)
	}
}
