package conformance

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// server/conformance/promises/core.md: each numbered defect has a row, and each row names tests that exist.
func TestDefectsHaveTests(t *testing.T) {
	t.Parallel()
	const defects = 27
	text, err := os.ReadFile("promises/core.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testsOfTree(t, "../..")
	shown := make(map[string]bool)
	for _, s := range sectionsBelow(string(text), "# ", "## ") {
		for _, row := range s.bullets() {
			if !strings.HasPrefix(row, "|") {
				continue
			}
			cells := strings.Split(strings.Trim(row, "| "), " | ")
			if len(cells) != 2 {
				t.Errorf("a row of %d cells: %s", len(cells), row)
				continue
			}
			if number, _, ok := strings.Cut(cells[0], ". "); ok {
				shown[number] = true
			}
			named := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1)
			if len(named) == 0 {
				t.Errorf("no test of %q", cells[0])
			}
			for _, n := range named {
				if err := tests.find(n[1]); err != nil {
					t.Errorf("%q: %v", cells[0], err)
				}
			}
		}
	}
	for n := range defects {
		if !shown[strconv.Itoa(n+1)] {
			t.Errorf("defect %d has no row", n+1)
		}
	}
}
