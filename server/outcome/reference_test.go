package outcome

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/reference/errors.md")

// docs/reference/errors.md lists every issue code with its HTTP status. `go test ./server/outcome -update`
// writes it.
func TestErrorsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Errors

<!-- Written by ` + "`go test ./server/outcome -update`" + ` from the code. Do not edit. -->

An error is an OperationOutcome. Each issue has a severity, a code, diagnostics and, where the issue concerns an element, its
FHIRPath in ` + "`expression`" + `. The code of the first issue decides the HTTP status. The header ` + "`X-Request-Id`" + ` leads to the entry
in the server's log. The endpoints of OAuth answer errors by RFC 6749 instead.

| Code | HTTP status, unless [the contract](../contract.md) names another one |
|---|---|
`)
	for _, code := range slices.Sorted(maps.Keys(statusOf)) {
		fmt.Fprintf(&b, "| `%s` | %d |\n", code, statusOf[code])
	}
	const page = "../../docs/reference/errors.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != b.String() {
		t.Errorf("docs/reference/errors.md differs from the code (%v); run go test ./server/outcome -update", err)
	}
}
