package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// liveWorkload is the load of a server in use: reads, writes and searches of every kind at the same time, with values
// drawn uniformly from the data. Each kind is reported separately.
var liveWorkload = Workload{
	Name:   "live",
	About:  "45% read, 15% write (half of them updates), 40% searches of every kind, drawn uniformly",
	Writes: true,
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.searchSamples(ctx)
		if err != nil {
			return Task{}, err
		}
		var mu sync.Mutex
		var mine []string // ids created by the run
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
					w.Do("update", Request{Method: "PUT", Path: "Observation/" + id, Body: s.observation(w.Rand, `"id":"`+id+`",`)})
					return nil
				}
				if w.Do("create", Request{Method: "POST", Path: "Observation", Body: s.observation(w.Rand, "")}) {
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

// observation returns a new Observation like those of the data; id is a member or "".
func (s *Samples) observation(r *rand.Rand, id string) []byte {
	q := pick(r, s.Quantities)
	codeSystem, code, _ := strings.Cut(q.Code, "|")
	system, unit, _ := strings.Cut(q.Unit, "|")
	return fmt.Appendf(nil, `{"resourceType":"Observation",%s"status":"final","code":{"coding":[{"system":%q,"code":%q}]},"subject":{"reference":"Patient/%s"},"effectiveDateTime":%q,"valueQuantity":{"value":%s,"unit":%q,"system":%q,"code":%q}}`,
		id, codeSystem, code, pick(r, s.Patients), pick(r, s.Dates), q.Value, unit, system, unit)
}

// writeEvery is the pace of broadWorkload's writer.
const writeEvery = 20 * time.Millisecond

// broadWorkload is one client's broad searches, of which nearly none has been asked before,
// while another client writes 50 times a second, half of it updates. It is for two clients.
var broadWorkload = Workload{
	Name:   "broad",
	About:  "two clients: broad searches of each kind, nearly all never asked before, beside 50 writes a second",
	Writes: true,
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.searchSamples(ctx)
		if err != nil {
			return Task{}, err
		}
		var last string // id created by the writer
		next := time.Now()
		return Task{Op: func(ctx context.Context, w *Worker) error {
			if w.Number == 0 {
				kind, path := s.broad(w.Rand)
				w.Do(kind, Request{Method: "GET", Path: path})
				return nil
			}
			next = next.Add(writeEvery)
			if late := time.Until(next); late < 0 {
				next = time.Now()
			}
			select {
			case <-time.After(time.Until(next)):
			case <-ctx.Done():
				return nil
			}
			if last != "" {
				w.Do("update", Request{Method: "PUT", Path: "Observation/" + last, Body: s.observation(w.Rand, `"id":"`+last+`",`)})
				last = ""
			} else if w.Do("create", Request{Method: "POST", Path: "Observation", Body: s.observation(w.Rand, "")}) {
				last, _ = idFrom(w.X().Location, "Observation")
			}
			return nil
		}}, nil
	},
}

// broad draws a search that finds a large part of all observations, and its kind.
func (s *Samples) broad(r *rand.Rand) (kind, path string) {
	second := func(years int) string {
		return time.Date(2020-years, 1, 1, 0, 0, r.IntN(years*365*86400), 0, time.UTC).Format(time.RFC3339)
	}
	switch r.IntN(7) {
	case 0:
		return "code", query("Observation", "code", pick(r, s.Codes))
	case 1:
		return "code, newest first", query("Observation", "code", pick(r, s.Codes)) + "&_sort=-date"
	case 2:
		return "date from", query("Observation", "date", "ge"+second(10))
	case 3:
		return "date from to", query("Observation", "date", "ge"+second(10)) + "&date=lt" + second(2)
	case 4:
		q := pick(r, s.Quantities)
		return "quantity", query("Observation", "value-quantity", fmt.Sprintf("%s%s%04d||%s", pick(r, []string{"gt", "lt"}), decimalOf(q.Value), r.IntN(10000), code(q.Unit)))
	case 5:
		return "status and category", query("Observation", "date", "ge"+second(10)) + "&status=final&category=" + pick(r, []string{"laboratory", "vital-signs"})
	default:
		return "last updated", query("Observation", "_lastUpdated", "ge"+time.Now().Add(-time.Duration(r.Int64N(int64(2*time.Hour)))).UTC().Format("2006-01-02T15:04:05.000Z"))
	}
}

// firstWorkload measures broad searches of each kind that were never asked before: each is asked some times with other
// values, never twice, one after the other.
var firstWorkload = Workload{
	Name:   "first",
	About:  "one client, nobody writing: broad searches of each kind, none asked twice",
	Finite: true,
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		type search struct{ kind, path string }
		s, err := b.searchSamples(ctx)
		if err != nil {
			return Task{}, err
		}
		const draws = 60 // of each kind, and of all of Samples.broad
		r := rand.New(rand.NewPCG(b.Seed, 1))
		var searches []search
		for range draws {
			kind, path := s.broad(r)
			searches = append(searches, search{kind, path})
			for _, k := range firstKinds {
				searches = append(searches, search{k.name, k.query(s, r)})
			}
		}
		asked := make(map[string]bool)
		searches = slices.DeleteFunc(searches, func(q search) bool {
			again := asked[q.path]
			asked[q.path] = true
			return again
		})
		var taken atomic.Int64
		return Task{Op: func(_ context.Context, w *Worker) error {
			i := int(taken.Add(1)) - 1
			if i >= len(searches) {
				return io.EOF
			}
			w.Do(searches[i].kind, Request{Method: "GET", Path: searches[i].path})
			return nil
		}}, nil
	},
}

// firstKinds are those that firstWorkload asks beside Samples.broad.
var firstKinds = []struct {
	name  string
	query func(s *Samples, r *rand.Rand) string
}{
	{"code and quantity", func(s *Samples, r *rand.Rand) string {
		q := pick(r, s.Quantities)
		return query("Observation", "code-value-quantity", q.Code+"$"+pick(r, []string{"ge", "lt"})+q.Value)
	}},
	{"category and date", func(s *Samples, r *rand.Rand) string {
		return query("Observation", "category", pick(r, []string{"laboratory", "vital-signs", "survey"})) + "&date=" + pick(r, []string{"ge", "lt"}) + day(r)
	}},
	{"condition", func(s *Samples, r *rand.Rand) string { return query("Condition", "code", pick(r, s.Conditions)) }},
	{"condition and onset", func(_ *Samples, r *rand.Rand) string {
		return query("Condition", "clinical-status", pick(r, []string{"active", "resolved"})) + "&onset-date=ge" + day(r)
	}},
	{"class and date", func(_ *Samples, r *rand.Rand) string {
		return query("Encounter", "class", pick(r, []string{"AMB", "EMER", "WELLNESS"})) + "&date=ge" + day(r)
	}},
	{"gender and birthdate", func(_ *Samples, r *rand.Rand) string {
		return query("Patient", "gender", pick(r, []string{"male", "female"})) + "&birthdate=lt" + day(r)
	}},
	{":contains", func(_ *Samples, r *rand.Rand) string {
		letters := "abcdefghiklmnoprstuvw"
		return query("Patient", "family:contains", string([]byte{letters[r.IntN(len(letters))], letters[r.IntN(len(letters))]}))
	}},
	{"chained", func(s *Samples, r *rand.Rand) string {
		return query("Observation", "subject:Patient.family", pick(r, s.Families))
	}},
	{"_has", func(s *Samples, r *rand.Rand) string {
		return query("Patient", "_has:Condition:patient:code", pick(r, s.Conditions))
	}},
}

// day is one of those that the data are of.
func day(r *rand.Rand) string {
	return time.Date(2010, 1, 1+r.IntN(10*365), 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
}

// decimalOf is a decimal to which digits can be added.
func decimalOf(value string) string {
	if strings.Contains(value, ".") {
		return value
	}
	return value + "."
}

func code(systemAndCode string) string {
	_, code, _ := strings.Cut(systemAndCode, "|")
	return code
}

// importers are the clients of besideWorkload that import; the others search.
const importers = 4

// besideWorkload measures searches while other clients import as fast as they can. It needs more clients than importers.
var besideWorkload = Workload{
	Name:   "beside",
	About:  "four clients import copies of the corpus, the others search: one half broad, one half for a patient or a name",
	Writes: true,
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		s, err := b.searchSamples(ctx)
		if err != nil {
			return Task{}, err
		}
		bundles, err := b.Corpus.Load(ctx)
		if err != nil {
			return Task{}, err
		}
		var taken atomic.Int64
		first := int(time.Now().Unix()) // no earlier run has copied with it
		return Task{Op: func(_ context.Context, w *Worker) error {
			if w.Number < importers {
				i := int(taken.Add(1)) - 1
				bundle := bundles[i%len(bundles)]
				if w.Do("bundle", Request{Method: "POST", Path: "", Body: copyBundle(bundle.JSON, first+i/len(bundles)), Minimal: true}) {
					w.Moved(bundle.Entries)
				}
				return nil
			}
			kind, path := s.broad(w.Rand)
			switch w.Rand.IntN(4) {
			case 0:
				kind, path = "name", query("Patient", "family", prefixOf(pick(w.Rand, s.Families), 4))
			case 1:
				kind, path = "patient", query("Observation", "subject", "Patient/"+pick(w.Rand, s.Patients))
			}
			w.Do(kind, Request{Method: "GET", Path: path})
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
