package searchshape

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"kiln/server/fhir"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
)

// Advisor finds indexes that the searches that were run would gain by. Its fields are
// set before use.
type Advisor struct {
	Recorder *Recorder
	Store    *store.Store
	Registry func() *search.Registry
	Now      func() time.Time
	Jobs     *jobs.Core // that builds indexes
	Logger   *slog.Logger
}

// Suggestion is an index that searches would gain by, as administrators see it.
// Times are in milliseconds.
type Suggestion struct {
	ID           string   `json:"id"`
	ResourceType string   `json:"resource_type"`
	Parameters   []string `json:"parameters"`
	Reason       string   `json:"reason"`
	Calls        int64    `json:"calls"`
	Mean         float64  `json:"mean_ms"`
	P95          float64  `json:"p95_ms"`
	Rows         int64    `json:"rows_read"`
	Improvement  float64  `json:"estimated_improvement"` // part of the work that is saved, 0 to 1
	Statement    string   `json:"create_statement"`
	Applied      bool     `json:"applied"`
	Proof        string   `json:"proof"` // hypothetical or sample
}

const (
	// worthIt is the least part of the work that an index must save.
	worthIt = 0.2
	// leastCalls is from how many searches on a shape is looked at.
	leastCalls = 5
	// proofHolds is the time for which a proof or a refutation is not repeated.
	proofHolds = time.Hour
	// maxProofs is the largest number of proofs of one request.
	maxProofs = 4
	// sampleValues is how many values of the index a candidate is proved with.
	sampleValues = 5
)

// candidate is an index that one parameter might gain by.
type candidate struct {
	store.IndexCandidate
	name, why string
	typ       string
	keys      []fhir.Key
	code      string
	parameter string // as it was written
	// value makes the value of a search from one of the index.
	sample func(ctx context.Context, keys []fhir.Key, n int) ([]string, error)
	value  func(of string) string
}

// statement returns the SQL that builds the index while others read and write.
func (c *candidate) statement() string {
	return "CREATE INDEX CONCURRENTLY IF NOT EXISTS " + c.name + " ON " + c.Table + " " + c.Columns
}

// id names a suggestion by its statement.
func (c *candidate) id() string {
	sum := sha256.Sum256([]byte(c.statement()))
	return hex.EncodeToString(sum[:8])
}

// candidateOf is the index that a parameter of a search might gain by, nil for none.
func (a *Advisor) candidateOf(typ, parameter string) *candidate {
	code, modifier, _ := strings.Cut(parameter, ":")
	if typ == "" || strings.ContainsAny(parameter, ".=") || strings.HasPrefix(code, "_") {
		return nil
	}
	for _, p := range a.Registry().Parameters(typ) {
		if p.Code != code {
			continue
		}
		c := &candidate{typ: typ, keys: p.Keys, code: code, parameter: parameter}
		switch {
		case p.Type == fhir.SearchString && modifier == "contains":
			c.IndexCandidate = store.IndexCandidate{Table: "index_string", Columns: "USING gin (key, text gin_trgm_ops) WHERE NOT word", Extension: "btree_gin"}
			c.name, c.sample = "index_string_key_contains", a.Store.SampleTexts
			c.why = "parts of texts are searched for in the texts of all parameters: the index separates them by parameter"
			c.value = func(of string) string {
				text := []rune(of)
				return searchEscape.Replace(string(text[len(text)/4 : min(len(text), len(text)/4+4)]))
			}
		case p.Type == fhir.SearchQuantity && modifier == "":
			c.IndexCandidate = store.IndexCandidate{Table: "index_quantity", Columns: "(key, low, unit, rid)"}
			c.name, c.sample = "index_quantity_any_unit", a.Store.SampleQuantities
			c.why = "quantities without a unit are looked for unit by unit: the index has all units of a parameter in one order"
			c.value = func(of string) string { return "gt" + of }
		default:
			return nil
		}
		return c
	}
	return nil
}

// searchEscape writes a text as one value of a search parameter.
// Spec: https://hl7.org/fhir/R4/search.html#escaping.
var searchEscape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `$`, `\$`, `|`, `\|`)

// Suggestions are the indexes that were proved, those that save most first: of a
// resource type, of all with ""; a type that there is not is invalid. It proves a few candidates that nobody has looked at
// for an hour; the rest is for the next call.
func (a *Advisor) Suggestions(ctx context.Context, resourceType string) ([]Suggestion, error) {
	if r := a.Registry(); resourceType != "" && !r.Has(resourceType) {
		return nil, outcome.Invalid("resource_type: there is no resource type %q in FHIR R4%s", outcome.Clip(resourceType), r.NearestType(resourceType))
	}
	if err := a.Recorder.Flush(ctx); err != nil {
		return nil, err
	}
	shapes, err := a.Store.SearchShapes(ctx)
	if err != nil {
		return nil, err
	}
	list, err := a.loadSuggestions(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.proveCandidates(ctx, list, shapes); err != nil {
		return nil, err
	}
	out := []Suggestion{}
	for id := range list.known {
		if list.isOffered(id, resourceType) {
			out = append(out, a.describe(list, id, resourceType))
		}
	}
	slices.SortFunc(out, func(x, y Suggestion) int {
		return cmp.Or(cmp.Compare(y.Improvement, x.Improvement), strings.Compare(x.ID, y.ID))
	})
	return out, nil
}

// suggestions are the stored suggestions, by id.
type suggestions struct {
	known   map[string]store.IndexSuggestion
	served  map[string][]store.SearchShape // the searches that each of them helps
	applied map[string]bool                // by the name of the index
}

func (a *Advisor) loadSuggestions(ctx context.Context) (*suggestions, error) {
	known, err := a.Store.IndexSuggestions(ctx)
	if err != nil {
		return nil, err
	}
	l := &suggestions{known: make(map[string]store.IndexSuggestion, len(known)), served: make(map[string][]store.SearchShape)}
	var names []string
	for _, k := range known {
		l.known[k.ID] = k
		names = append(names, k.Name)
	}
	l.applied, err = a.Store.ValidIndexes(ctx, names)
	return l, err
}

// proveCandidates assigns the frequent shapes to the suggestions that help them, and
// proves at most maxProofs candidates.
func (a *Advisor) proveCandidates(ctx context.Context, l *suggestions, shapes []store.SearchShape) error {
	proofs := 0
	for _, s := range shapes {
		if s.Calls < leastCalls {
			continue
		}
		for _, parameter := range s.Parameters {
			c := a.candidateOf(s.ResourceType, parameter)
			if c == nil {
				continue
			}
			id := c.id()
			l.served[id] = append(l.served[id], s)
			if proofs >= maxProofs || !a.isProofDue(l, id, parameter) {
				continue
			}
			proofs++
			if err := a.proveCandidate(ctx, l, c, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// isProofDue reports whether a candidate needs a proof by searches with parameter. A recent
// proof is enough if it showed a gain, or was made with the same parameter.
func (a *Advisor) isProofDue(l *suggestions, id, parameter string) bool {
	k, ok := l.known[id]
	switch {
	case !ok:
		return true
	case l.applied[k.Name]:
		return false
	}
	return !a.isRecent(k) || k.Proof.Improvement <= 0 && !slices.Contains(k.Parameters, parameter)
}

// isRecent reports whether the proof of a suggestion is still valid.
func (a *Advisor) isRecent(k store.IndexSuggestion) bool { return a.Now().Sub(k.Proved) < proofHolds }

// proveCandidate proves a candidate and stores the result, unless a recent proof showed a
// larger gain. A failed proof is logged.
func (a *Advisor) proveCandidate(ctx context.Context, l *suggestions, c *candidate, s store.SearchShape) error {
	next, err := a.prove(ctx, c, s)
	if err != nil {
		a.Logger.Warn("an index cannot be proved", slog.String("index", c.name), slog.Any("error", err))
		return nil
	}
	if k, ok := l.known[next.ID]; ok && a.isRecent(k) && next.Proof.Improvement < k.Proof.Improvement {
		return nil
	}
	if err := a.Store.PutIndexSuggestion(ctx, next); err != nil {
		return err
	}
	l.known[next.ID] = next
	return nil
}

// isOffered reports whether a suggestion is applied or worth it, and helps searches of a
// resource type, or of any with "".
func (l *suggestions) isOffered(id, resourceType string) bool {
	k := l.known[id]
	if !l.applied[k.Name] && k.Proof.Improvement < worthIt {
		return false
	}
	return resourceType == "" || k.ResourceType == resourceType ||
		slices.ContainsFunc(l.served[id], func(s store.SearchShape) bool { return s.ResourceType == resourceType })
}

// describe returns a suggestion with the statistics of the searches that it helps. If a
// search of another resource type proved it, the searches of resourceType alone count.
func (a *Advisor) describe(l *suggestions, id, resourceType string) Suggestion {
	k, shapes := l.known[id], l.served[id]
	if resourceType != "" && k.ResourceType != resourceType {
		shapes = slices.DeleteFunc(slices.Clone(shapes), func(s store.SearchShape) bool { return s.ResourceType != resourceType })
		k.ResourceType, k.Parameters = resourceType, a.parametersOf(id, shapes)
	}
	return suggestion(k, shapes, l.applied[k.Name])
}

// parametersOf are the parameters of shapes that gain by a suggestion.
func (a *Advisor) parametersOf(id string, shapes []store.SearchShape) []string {
	var out []string
	for _, s := range shapes {
		for _, parameter := range s.Parameters {
			if c := a.candidateOf(s.ResourceType, parameter); c != nil && c.id() == id && !slices.Contains(out, parameter) {
				out = append(out, parameter)
			}
		}
	}
	return out
}

// suggestion returns a suggestion with the statistics of the searches that it helps.
func suggestion(k store.IndexSuggestion, shapes []store.SearchShape, applied bool) Suggestion {
	x := Suggestion{ID: k.ID, ResourceType: k.ResourceType, Parameters: k.Parameters, Reason: k.Reason, Improvement: k.Proof.Improvement,
		Statement: k.Statement, Applied: applied, Proof: k.Proof.Method}
	var total time.Duration
	counts := make([]int64, buckets)
	for _, s := range shapes {
		x.Calls, x.Rows, total = x.Calls+s.Calls, x.Rows+s.Rows, total+s.Total
		for i, n := range s.Buckets[:min(len(s.Buckets), buckets)] {
			counts[i] += n
		}
	}
	if x.Calls > 0 {
		x.Mean, x.P95 = milliseconds(total)/float64(x.Calls), milliseconds(quantile(counts, .95))
	}
	return x
}

// prove measures the effect of a candidate on searches by its parameter, with values from the index.
func (a *Advisor) prove(ctx context.Context, c *candidate, s store.SearchShape) (store.IndexSuggestion, error) {
	out := store.IndexSuggestion{ID: c.id(), ResourceType: c.typ, Parameters: []string{c.parameter}, Shapes: []string{s.Shape}, Name: c.name,
		Statement: c.statement(), Reason: c.why, Proof: store.Proof{Method: "none"}, Proved: a.Now()}
	if c.Extension != "" {
		if ok, err := a.Store.CanCreateExtension(ctx, c.Extension); err != nil || !ok {
			return out, err
		}
	}
	values, err := c.sample(ctx, c.keys, sampleValues)
	if err != nil || len(values) == 0 {
		return out, err
	}
	var queries []*search.Query
	for _, v := range values {
		q, err := search.Parse(a.Registry(), c.typ, url.Values{c.parameter: {c.value(v)}}, search.Options{Now: a.Now()})
		if err != nil {
			continue // a value that cannot be searched for
		}
		queries = append(queries, q)
	}
	if len(queries) == 0 {
		return out, nil
	}
	out.Proof, err = a.Store.ProveIndex(ctx, c.IndexCandidate, queries)
	out.Reason = fmt.Sprintf("%s; proved with %d values of the index", c.why, len(queries))
	return out, err
}

// Apply has an index built that was suggested, and returns the job. It fails with
// not-found for a suggestion that there is not, and conflict for one that is applied.
func (a *Advisor) Apply(ctx context.Context, id string) (job string, err error) {
	known, err := a.Store.IndexSuggestions(ctx)
	if err != nil {
		return "", err
	}
	for _, k := range known {
		if k.ID != id || k.Proof.Improvement < worthIt {
			continue
		}
		applied, err := a.Store.ValidIndexes(ctx, []string{k.Name})
		if err != nil {
			return "", err
		}
		if applied[k.Name] {
			return "", outcome.New(outcome.CodeConflict, "the index %s is there already", k.Name)
		}
		builds, err := a.Jobs.List(ctx)
		if err != nil {
			return "", err
		}
		for _, j := range builds {
			if j.Type != BuildType || !j.Finished.IsZero() {
				continue
			}
			if b, err := ReadBuild(&j); err != nil {
				return "", err
			} else if b.Name == k.Name {
				return "", outcome.New(outcome.CodeConflict, "the index %s is being built already, by job %s", k.Name, j.ID)
			}
		}
		if strings.Contains(k.Statement, "USING gin (key,") {
			if err := a.Store.EnsureExtension(ctx, "btree_gin"); err != nil {
				return "", err
			}
		}
		spec, err := json.Marshal(Build{Name: k.Name, Statement: k.Statement})
		if err != nil {
			return "", err
		}
		j := jobs.Job{Type: BuildType, Reason: k.Reason, Spec: spec, Principal: []byte("{}")}
		err = a.Jobs.Add(ctx, &j, jobs.Part{Spec: struct{}{}})
		return j.ID, err
	}
	return "", outcome.New(outcome.CodeNotFound, "there is no index suggestion %q", clip(id))
}
