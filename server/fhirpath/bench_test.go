package fhirpath_test

import (
	"testing"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

const benchObservation = `{"resourceType":"Observation","id":"bmi","meta":{"profile":["http://hl7.org/fhir/StructureDefinition/bmi"]},
"text":{"status":"generated","div":"<div xmlns=\"http://www.w3.org/1999/xhtml\"><p><b>Body mass index</b> 16.2 kg/m2, measured by the practice nurse during the visit</p><table><tr><td>weight</td><td>46.2 kg</td></tr><tr><td>height</td><td>168.9 cm</td></tr></table></div>"},
"status":"final","category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-signs","display":"Vital Signs"}],"text":"Vital Signs"}],
"code":{"coding":[{"system":"http://loinc.org","code":"39156-5","display":"Body mass index (BMI) [Ratio]"}],"text":"BMI"},
"subject":{"reference":"Patient/example","display":"Example Person"},"encounter":{"reference":"Encounter/f001"},
"effectiveDateTime":"1999-07-02T10:00:00+02:00","issued":"1999-07-02T10:10:00.000+02:00","performer":[{"reference":"Practitioner/f005"}],
"valueQuantity":{"value":16.2,"unit":"kg/m2","system":"http://unitsofmeasure.org","code":"kg/m2"},
"referenceRange":[{"low":{"value":18.5,"unit":"kg/m2","system":"http://unitsofmeasure.org","code":"kg/m2"},"high":{"value":25,"unit":"kg/m2","system":"http://unitsofmeasure.org","code":"kg/m2"},"type":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/referencerange-meaning","code":"normal","display":"Normal Range"}]}}],
"component":[{"code":{"coding":[{"system":"http://loinc.org","code":"29463-7"}]},"valueQuantity":{"value":46.2,"unit":"kg","system":"http://unitsofmeasure.org","code":"kg"}},
{"code":{"coding":[{"system":"http://loinc.org","code":"8302-2"}]},"valueQuantity":{"value":168.9,"unit":"cm","system":"http://unitsofmeasure.org","code":"cm"}}]}`

func BenchmarkTest(b *testing.B) {
	r, err := fhir.Decode(r4.Model, []byte(benchObservation))
	if err != nil {
		b.Fatal(err)
	}
	node := fhir.NodeOf(r)
	for _, bb := range []struct{ name, expr string }{
		{"obs-6", "dataAbsentReason.empty() or value.empty()"},
		{"obs-7", "value.empty() or component.code.where(coding.intersect(%resource.code.coding).exists()).empty()"},
		{"dom-3", "contained.where((('#'+id in (%resource.descendants().reference | %resource.descendants().as(canonical) | %resource.descendants().as(uri) | %resource.descendants().as(url))) or descendants().where(reference = '#').exists() or descendants().where(as(canonical) = '#').exists()).not()).trace('unmatched', id).empty()"},
		{"where", "code.coding.where(system = 'http://loinc.org' and code = '39156-5').exists()"},
		{"quantity", "value.ofType(Quantity).value > 10.5 and referenceRange.all(low <= high)"},
		{"dates", "effective.ofType(dateTime) <= issued"},
		{"descendants", "descendants().count() > 50"},
		{"path", "category.coding.code"},
	} {
		p, err := fhirpath.Compile(bb.expr, fhirpath.Options{Model: r4.Model, Input: node.T, CollectionAs: true})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := &fhirpath.Context{}
			for b.Loop() {
				if bb.name == "path" {
					if _, err := p.Eval(ctx, node); err != nil {
						b.Fatal(err)
					}
				} else if ok, err := p.Test(ctx, node); err != nil || !ok {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := fhirpath.Compile("code.coding.where(system = 'http://loinc.org' and code = '39156-5').exists()",
			fhirpath.Options{Model: r4.Model, Input: (*r4.Observation)(nil).Type()}); err != nil {
			b.Fatal(err)
		}
	}
}
