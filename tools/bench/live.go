package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
)

// liveWorkload is what a server in use gets: reads, writes and searches of every kind
// at the same time, with values drawn uniformly from the data. Each kind is told by
// itself.
var liveWorkload = Workload{
	Name:   "live",
	About:  "45% read, 15% write (half of them updates), 40% searches of every kind, drawn uniformly",
	Writes: true,
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.Samples(ctx)
		if err != nil {
			return Task{}, err
		}
		if err := s.enough(); err != nil {
			return Task{}, err
		}
		var mu sync.Mutex
		var mine []string // ids of what the run has created
		observation := func(r *rand.Rand, id string) []byte {
			q := pick(r, s.Quantities)
			codeSystem, code, _ := strings.Cut(q.Code, "|")
			system, unit, _ := strings.Cut(q.Unit, "|")
			return fmt.Appendf(nil, `{"resourceType":"Observation",%s"status":"final","code":{"coding":[{"system":%q,"code":%q}]},"subject":{"reference":"Patient/%s"},"effectiveDateTime":%q,"valueQuantity":{"value":%s,"unit":%q,"system":%q,"code":%q}}`,
				id, codeSystem, code, pick(r, s.Patients), pick(r, s.Dates), q.Value, unit, system, unit)
		}
		return Task{Op: func(_ context.Context, w *Worker) error {
			switch draw := w.Rand.IntN(200); {
			case draw < 90:
				if w.Do("read", Request{Method: "GET", Path: pick(w.Rand, s.References)}) {
					w.Moved(1)
				}
			case draw < 120:
				mu.Lock()
				id := ""
				if draw%2 == 0 && len(mine) > 0 {
					id = pick(w.Rand, mine)
				}
				mu.Unlock()
				if id != "" {
					w.Do("update", Request{Method: "PUT", Path: "Observation/" + id, Body: observation(w.Rand, `"id":"`+id+`",`)})
					return nil
				}
				if w.Do("create", Request{Method: "POST", Path: "Observation", Body: observation(w.Rand, "")}) {
					if id, ok := idFrom(w.X().Location, "Observation"); ok {
						mu.Lock()
						mine = append(mine, id)
						mu.Unlock()
					}
				}
			default:
				category, path := pick(w.Rand, searchCategories).query(s, w.Rand)
				w.Do(category, Request{Method: "GET", Path: path})
			}
			return nil
		}}, nil
	},
}

// behindWorkload shows whether searches for one patient wait behind somebody's broad
// ones, which nobody has asked before.
var behindWorkload = searching("behind", "searches for one patient, a name or an identifier beside broad ones never asked before", func(s *Samples, r *rand.Rand) (string, string) {
	switch r.IntN(8) {
	case 0:
		at := fmt.Sprintf("%sT%02d:%02d:%02dZ", "2010-01-01", r.IntN(24), r.IntN(60), r.IntN(60))
		return "broad", query("Observation", "date", pick(r, []string{"ge", "lt"})+at)
	case 1, 2:
		return "name", query("Patient", "family", prefixOf(pick(r, s.Families), 4))
	case 3, 4:
		return "identifier", query("Patient", "identifier", pick(r, s.Identifiers))
	default:
		return "patient", query("Observation", "subject", "Patient/"+pick(r, s.Patients))
	}
})
