package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/tidwall/gjson"
)

var readWorkload = Workload{
	Name:  "read",
	About: "GET by logical id, of four resource types",
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.Samples(ctx)
		if err != nil {
			return Task{}, err
		}
		return Task{Op: func(_ context.Context, w *Worker) error {
			if w.Do("read", Request{Method: "GET", Path: pick(w.Rand, s.References)}) {
				w.Moved(1)
			}
			return nil
		}}, nil
	},
}

var everythingWorkload = Workload{
	Name:  "everything",
	About: "Patient/{id}/$everything, first page",
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.Samples(ctx)
		if err != nil {
			return Task{}, err
		}
		return Task{Op: func(_ context.Context, w *Worker) error {
			if w.Do("everything", Request{Method: "GET", Path: "Patient/" + pick(w.Rand, s.Patients) + "/$everything"}) {
				w.Moved(entries(w.X().Body))
			}
			return nil
		}}, nil
	},
}

var historyWorkload = Workload{
	Name:  "history",
	About: "history of a resource and of a type",
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.Samples(ctx)
		if err != nil {
			return Task{}, err
		}
		return Task{Op: func(_ context.Context, w *Worker) error {
			if w.Rand.IntN(4) == 0 {
				w.Do("type", Request{Method: "GET", Path: "Observation/_history?_count=20"})
			} else {
				w.Do("instance", Request{Method: "GET", Path: pick(w.Rand, s.References) + "/_history"})
			}
			return nil
		}}, nil
	},
}

// pagedTypes are walked through by page-all: the types of the Synthea bundles,
// the largest first, so that the walkers end together.
var pagedTypes = []string{
	"ExplanationOfBenefit", "Observation", "Claim", "Encounter", "Procedure", "Immunization", "DiagnosticReport",
	"MedicationRequest", "Condition", "CarePlan", "Goal", "Organization", "Practitioner", "Patient", "AllergyIntolerance", "ImagingStudy",
}

var pageAllWorkload = Workload{
	Name:   "page-all",
	About:  "every resource of every type through next links, pages of 1,000 or the server's maximum",
	Finite: true,
	Prepare: func(context.Context, *Bench) (Task, error) {
		var taken atomic.Int64
		seen := make([]atomic.Int64, len(pagedTypes))
		return Task{
			Op: func(ctx context.Context, w *Worker) error {
				i := int(taken.Add(1)) - 1
				if i >= len(pagedTypes) {
					return io.EOF
				}
				for path := pagedTypes[i] + "?_count=1000"; path != "" && ctx.Err() == nil; {
					if !w.Do("page", Request{Method: "GET", Path: path}) {
						break
					}
					n := entries(w.X().Body)
					w.Moved(n)
					seen[i].Add(int64(n))
					path = nextLink(w.X().Body)
				}
				return nil
			},
			// Nothing is missing and nothing comes twice, as far as a count can tell.
			Check: func(_ context.Context, b *Bench) error {
				x := b.Client.NewExchange()
				for i, typ := range pagedTypes {
					if err := x.Do(Request{Method: "GET", Path: typ + "?_summary=count"}); err != nil {
						return err
					}
					if total := gjson.GetBytes(x.Body, "total"); total.Exists() && total.Int() != seen[i].Load() {
						return fmt.Errorf("the pages of %s held %d resources, and its total is %d", typ, seen[i].Load(), total.Int())
					}
				}
				return nil
			},
		}, nil
	},
}

// entries counts the entries of a bundle without parsing it: a fullUrl each.
func entries(bundle []byte) int { return bytes.Count(bundle, []byte(`"fullUrl"`)) }

var mixWorkload = Workload{
	Name:  "mix",
	About: "45% read, 20% Patient page, 20% Observation by patient, 10% Condition by patient, 5% history",
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.Samples(ctx)
		if err != nil {
			return Task{}, err
		}
		if len(s.References) == 0 {
			return Task{}, fmt.Errorf("the server has no data to read")
		}
		return Task{Op: func(_ context.Context, w *Worker) error {
			switch n := w.Rand.IntN(100); {
			case n < 45:
				w.Do("read", Request{Method: "GET", Path: pick(w.Rand, s.References)})
			case n < 65:
				// Every client leafs through the patients, and begins again at the end.
				path, _ := w.State.(string)
				if path == "" {
					path = "Patient?_count=20"
				}
				w.State = ""
				if w.Do("page", Request{Method: "GET", Path: path}) {
					w.State = nextLink(w.X().Body)
				}
			case n < 85:
				w.Do("observations", Request{Method: "GET", Path: "Observation?patient=" + pick(w.Rand, s.Patients) + "&_count=20"})
			case n < 95:
				w.Do("conditions", Request{Method: "GET", Path: "Condition?patient=" + pick(w.Rand, s.Patients) + "&_count=20"})
			default:
				w.Do("history", Request{Method: "GET", Path: pick(w.Rand, s.References) + "/_history"})
			}
			return nil
		}}, nil
	},
}
