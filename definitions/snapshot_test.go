package definitions

import (
	"encoding/json"
	"strings"
	"testing"
)

// Every StructureDefinition that is served has in its snapshot what R4's invariants ask for.
// Spec: https://hl7.org/fhir/R4/structuredefinition.html#invs (sdf-3, sdf-8b), elementdefinition.html#invs (eld-18).
func TestSnapshotsAreComplete(t *testing.T) {
	l, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for entry, body := range l.All("StructureDefinition") {
		var d struct {
			Snapshot struct {
				Element []struct {
					ID, Path, Definition, Max, IsModifierReason string
					Min                                         *int
					IsModifier                                  bool
					Base                                        *struct{ Path string }
				}
			}
		}
		if err := json.Unmarshal(body, &d); err != nil {
			t.Fatal(err)
		}
		if len(d.Snapshot.Element) == 0 && !strings.HasPrefix(entry.ID, "example-") { // two of HL7's examples
			t.Errorf("%s has no snapshot", entry.URL)
		}
		for _, e := range d.Snapshot.Element {
			if e.Definition == "" || e.Min == nil || e.Max == "" {
				t.Errorf("sdf-3: %s of %s: definition %q, min %v, max %q", e.ID, entry.URL, e.Definition, e.Min, e.Max)
			}
			if e.Base == nil || e.Base.Path == "" {
				t.Errorf("sdf-8b: %s of %s has no base", e.ID, entry.URL)
			}
			if e.IsModifier && e.IsModifierReason == "" {
				t.Errorf("eld-18: %s of %s has no isModifierReason", e.ID, entry.URL)
			}
		}
		read++
	}
	if read < 650 {
		t.Errorf("%d definitions were read", read)
	}
}
