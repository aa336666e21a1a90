package fhirpath_test

import (
	"testing"

	"kiln/server/fhirpath"
)

func TestCanonicalPath(t *testing.T) {
	for in, want := range map[string]string{
		"Observation.value as Quantity":                 "Observation.value.ofType(Quantity)",
		"Observation.value.as(Quantity)":                "Observation.value.ofType(Quantity)",
		"(Observation.value as Quantity).unit":          "Observation.value.ofType(Quantity).unit",
		"Patient.telecom.where(system = 'email')":       "Patient.telecom.where(system='email')",
		"Patient.extension('urn:x').value":              "Patient.extension('urn:x').value",
		"ValueSet.expansion.`contains`.code":            "ValueSet.expansion.contains.code",
		"Bundle.entry[0].resource":                      "Bundle.entry[0].resource",
		"(Bundle.entry[0].resource as Composition).id":  "Bundle.entry[0].resource.ofType(Composition).id",
		"DomainResource.extension('urn:x')":             "Patient.extension('urn:x')",
		"name.family":                                   "Patient.name.family",
		"%resource.id":                                  "%resource.id",
		"Patient.deceased.exists() and Patient.active":  "Patient.deceased.exists() and Patient.active",
		"Patient.link.where(resolve() is Patient).type": "Patient.link.where(resolve() is Patient).type",
	} {
		e, err := fhirpath.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		typ := fhirpath.RootOf(e.Root)
		if typ == "" || typ == "name" || typ == "DomainResource" {
			typ = "Patient"
		}
		if got := fhirpath.CanonicalPathFrom(typ, e.Root); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}
