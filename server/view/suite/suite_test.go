package suite_test

import (
	"os"
	"path/filepath"
	"testing"

	"kiln/gen/r4"
	"kiln/server/view/suite"
)

// TestOfficialTests runs the official tests of SQL on FHIR.
func TestOfficialTests(t *testing.T) {
	data := os.Getenv("KILN_SHARED_DATA")
	if data == "" {
		t.Skip("set KILN_SHARED_DATA to the folder with sql-on-fhir/tests")
	}
	report, err := suite.Run(t.Context(), r4.Model, []string{filepath.Join(data, "sql-on-fhir", "tests")})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range report {
		for _, test := range f.Tests {
			if !test.Result.Passed {
				t.Errorf("%s, %s: %s", name, test.Name, test.Result.Error)
			}
		}
	}
	if passed, all := report.Count(); passed != 134 || all != 134 {
		t.Errorf("%d of %d tests passed, want 134 of 134", passed, all)
	}
}
