package searchparam

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"kiln/definitions/examples"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/search"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// The index entries of HL7's examples must not change while the fingerprints stay the same: servers would search
// databases of the former build and miss differently indexed resources. The golden file has the fingerprint of all
// types and a hash of the entries, including those of orders that may be indexed.
func TestExtractionHasANumber(t *testing.T) {
	const golden = "testdata/extraction.txt"
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	svc := newService()
	svc.Extract = index.Extract
	base := svc.Base
	x := fhir.Index{Narrowed: base.Narrowed()}
	var orders []search.SortIndex // of all parameters that can have one
	for _, typ := range base.Types() {
		for _, p := range base.Parameters(typ) {
			orders = append(orders, search.SortIndex{ResourceType: typ, Code: p.Code})
		}
	}
	sorted := base.WithSortIndexes(orders, func(*search.SortIndex) bool { return true })
	n := 0
	for _, body := range all {
		r, err := fhir.Decode(r4.Model, body)
		if err != nil {
			continue // codec_test.go says which
		}
		x.Reset()
		index.Extract(&x, r)
		if err := svc.addContained(&x, base, 1, new(int)); err != nil {
			t.Fatal(err)
		}
		x.Finish()
		n += len(x.Terms)
		fmt.Fprintln(h, r.Header().ID.Text, x.Terms, x.Targets, x.Dates, x.Numbers, x.Quantities, x.Strings, x.Texts)
		orders := sorted.SortIndexes(x.ResourceType)
		by := make([]*fhir.Sorter, 0, 2*len(orders))
		for i := range orders {
			ascending, descending := orders[i].Sorters()
			by = append(by, ascending, descending)
		}
		x.Reset()
		x.Sorters = by
		index.Extract(&x, r)
		x.Reset()
		for i := range orders {
			x.Ordered(orders[i].Key, by[2*i], by[2*i+1])
		}
		fmt.Fprintln(h, x.Strings)
	}
	if n < 10_000 {
		t.Fatalf("the examples leave only %d terms", n)
	}
	fingerprint, entries := fmt.Sprintf("%x", newService().Base.Fingerprints().All), fmt.Sprintf("%x", binary.BigEndian.Uint64(h.Sum(nil)))
	if *update {
		if err := os.WriteFile(golden, []byte(fingerprint+" "+entries+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	wasFingerprint, wasEntries, _ := strings.Cut(strings.TrimSpace(string(was)), " ")
	switch {
	case fingerprint == wasFingerprint && entries != wasEntries:
		t.Errorf("the examples leave other entries than before: raise fhir.Extraction (%d), then go test ./server/searchparam -run Extraction -update", fhir.Extraction)
	case fingerprint != wasFingerprint:
		t.Error("the search parameters or fhir.Extraction are others than before: go test ./server/searchparam -run Extraction -update")
	}
}
