package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kiln/server"
)

// Contract: Bulk data: a long import does not hold up the export of somebody else.
func TestLongImportLetsOthersWork(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Jobs.Workers, c.Jobs.MaxPerClient = 2, 10 })
	var lines strings.Builder
	for i := range 36_000 {
		fmt.Fprintf(&lines, `{"resourceType":"Basic","id":"%d","code":{"text":"%s"}}`+"\n", i, strings.Repeat("x", 1300))
	}
	long := s.startImport("/$import", "ndjson", lines.String())
	began := time.Now()
	s.bulk("GET", "/$export?_type=Patient", "").want()
	export := time.Since(began)
	if a := s.do("GET", long, ""); a.status != 202 {
		t.Skipf("the import ended within %s, before the export", export)
	}
	s.imported(long).want(36_000, 0, 0, 0)
	if all := time.Since(began); export > all*3/4 {
		t.Errorf("the export took %s of the %s of the import", export, all)
	}
}
