package interaction

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/target"
)

// BundleParams are the inputs of a batch or transaction.
type BundleParams struct {
	Body    []byte // must not change until Bundle returns
	Return  Return // representation sends written resources back
	Lenient bool   // handling=lenient, for the searches inside
	BaseURL string // of the service as the client sees it, without a trailing slash
	// Told is called with each entry that no write tells of, when it is answered and,
	// of a transaction, committed: reads, and writes that failed or found nothing to
	// do. Several goroutines call it; nil asks for none.
	Told func(Done)

	answered *answered
}

// answered bounds the size of all answers to the reads of a batch or transaction: a short
// request can ask for a very large answer.
type answered struct {
	bytes   atomic.Int64
	reading chan struct{} // has an element for each read under way
}

const (
	maxEntries  = 50_000
	maxAnswered = 64 << 20 // bytes; no read begins behind them
	maxReading  = 8
)

// size is the approximate size of an answer, in bytes.
func (r *Response) size() int64 {
	n := len(r.Version.Body) + len(r.Body)
	if r.Bundle != nil {
		for i := range r.Bundle.Entries {
			n += len(r.Bundle.Entries[i].Version.Body) + len(r.Bundle.Entries[i].Body)
		}
	}
	return int64(n)
}

// Done is an entry of a batch or transaction that is answered.
type Done struct {
	Method, URL string
	Interaction string // in the words of http://hl7.org/fhir/restful-interaction
	Resource    string // reference of its subject, "" for no single resource
	Status      int
	Read        *fhir.Version // the result of a read or vread
}

// doneOf is an entry with its answer.
func (j *job) doneOf(r Response, status int) Done {
	d := Done{Method: j.method, URL: j.entry.Request.URL.Text, Interaction: j.to.Interaction(j.method), Resource: j.to.Resource(), Status: status}
	if (d.Interaction == "read" || d.Interaction == "vread") && r.Version.Body != nil {
		d.Read = &r.Version
	}
	return d
}

// isWrite reports whether the entry is a write of a resource, of which the write itself
// tells where there is one.
func (j *job) isWrite() bool {
	return j.to.Operation == "" && !j.to.Search && j.method != http.MethodGet && j.method != http.MethodHead
}

// wrote reports whether there is a new version.
func (r *Response) wrote() bool { return r.Version.VersionID != 0 && !r.Existing }

// Bundle carries out a batch or a transaction, whichever its type says.
// Spec: https://hl7.org/fhir/R4/http.html#transaction.
func (s *Service) Bundle(ctx context.Context, p BundleParams) (Response, error) {
	if len(p.Body) == 0 {
		return Response{}, outcome.New(outcome.CodeStructure, "the request has no body; expected a Bundle of type batch or transaction as JSON")
	}
	p.answered = &answered{reading: make(chan struct{}, maxReading)}
	in, err := fhir.Read(s.Model, p.Body)
	if err != nil || len(in.Issues) > 0 {
		if parts, ok := s.batchParts(ctx, p); ok {
			if len(parts) > maxEntries {
				return Response{}, errEntries
			}
			return s.batch(ctx, p, parts)
		}
		if emptyTransaction(p.Body) {
			return Response{Status: http.StatusOK, Bundle: &Bundle{Type: "transaction-response", Total: -1}}, nil
		}
		if err == nil {
			err = outcome.Unprocessable(append(in.Issues, s.entryErrors(ctx, in, p.BaseURL)...))
		}
		return Response{}, err
	}
	b, ok := in.Resource.(*r4.Bundle)
	if !ok {
		return Response{}, outcome.Invalid("the base URL takes a Bundle, the body is a resource of type %s; POST it to /%[1]s", in.Resource.Type().Name)
	}
	if len(b.Entry) > maxEntries {
		return Response{}, errEntries
	}
	switch b.Type_.Text {
	case "batch":
		parts := make([]part, len(b.Entry))
		for i := range b.Entry {
			parts[i].entry = &b.Entry[i]
		}
		return s.batch(ctx, p, parts)
	case "transaction":
		return s.transaction(ctx, p, b)
	case "":
		return Response{}, outcome.New(outcome.CodeRequired, "the Bundle has no type; expected batch or transaction").At("Bundle.type")
	}
	return Response{}, outcome.Invalid("the base URL takes a Bundle of type batch or transaction, not %s; to store a Bundle, POST it to /Bundle", outcome.Clip(b.Type_.Text)).
		At("Bundle.type")
}

var errEntries = outcome.New(outcome.CodeTooCostly, "the Bundle has more than %d entries", maxEntries).At("Bundle.entry")

// entries are the texts of a Bundle's entries, one more than maxEntries at most.
type entries []json.RawMessage

// UnmarshalJSON reads an array.
func (e *entries) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() && len(*e) <= maxEntries {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		*e = append(*e, raw)
	}
	return nil
}

// part is one entry of a batch, or the reason why it cannot be read.
type part struct {
	entry *r4.BundleEntry
	err   error
}

// batchParts reads the entries of a batch one by one, so that a malformed one
// does not spoil the others. It gives up where not even that is possible.
func (s *Service) batchParts(ctx context.Context, p BundleParams) ([]part, bool) {
	var b struct {
		ResourceType string  `json:"resourceType"`
		Type         string  `json:"type"`
		Entry        entries `json:"entry"`
	}
	if err := json.Unmarshal(p.Body, &b); err != nil || b.ResourceType != "Bundle" || b.Type != "batch" {
		return nil, false
	}
	parts := make([]part, len(b.Entry))
	for i, raw := range b.Entry {
		in, err := fhir.Read(s.Model, fmt.Appendf(nil, `{"resourceType":"Bundle","type":"batch","entry":[%s]}`, raw))
		if err == nil && len(in.Issues) > 0 {
			err = outcome.Unprocessable(append(in.Issues, s.entryErrors(ctx, in, p.BaseURL)...))
		}
		if err != nil {
			parts[i].err = renumber(err, i)
			continue
		}
		parts[i].entry = &in.Resource.(*r4.Bundle).Entry[0]
	}
	return parts, true
}

// IsTransaction reports whether a body says that it is a transaction.
func IsTransaction(body []byte) bool {
	var b struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(body, &b) == nil && b.Type == "transaction"
}

// emptyTransaction reports whether a body is a transaction with an empty array of
// entries. JSON in FHIR has no empty arrays, but clients that found nothing to do
// send one, and there is only one thing it can mean.
// Spec: https://hl7.org/fhir/R4/json.html#primitive (arrays).
func emptyTransaction(body []byte) bool {
	var b struct {
		ResourceType string             `json:"resourceType"`
		Type         string             `json:"type"`
		Entry        *[]json.RawMessage `json:"entry"`
	}
	return json.Unmarshal(body, &b) == nil && b.ResourceType == "Bundle" && b.Type == "transaction" && b.Entry != nil && len(*b.Entry) == 0
}

// renumber says Bundle.entry[i] where an error says Bundle.entry[0].
func renumber(err error, i int) error {
	e, ok := outcome.From(err)
	if !ok {
		return err
	}
	e.Issues = append([]outcome.Issue(nil), e.Issues...)
	for n := range e.Issues {
		issue := &e.Issues[n]
		if rest, ok := strings.CutPrefix(issue.Expression, "Bundle.entry[0]"); ok {
			issue.Expression = entryPath(i) + rest
		}
		issue.Line, issue.Column = 0, 0
	}
	return e
}

func entryPath(i int) string { return fmt.Sprintf("Bundle.entry[%d]", i) }

// inEntry names the entry that an error is about, in every issue.
func inEntry(i int, err error) error {
	e, ok := outcome.From(err)
	if !ok {
		return fmt.Errorf("%s: %w", entryPath(i), err)
	}
	n := *e
	n.Issues = append([]outcome.Issue(nil), e.Issues...)
	for k := range n.Issues {
		issue := &n.Issues[k]
		switch typ, rest, ok := strings.Cut(issue.Expression, "."); {
		case strings.HasPrefix(issue.Expression, "Bundle.entry["):
		case ok && typ != "":
			issue.Expression = entryPath(i) + ".resource." + rest
		case typ != "" && typ[0] >= 'A' && typ[0] <= 'Z': // the resource itself
			issue.Expression = entryPath(i) + ".resource"
		default:
			issue.Expression = entryPath(i)
		}
	}
	return &n
}

// job is the request of one entry.
type job struct {
	i      int
	entry  *r4.BundleEntry
	method string
	to     target.Target
	// ifNoneExist is the search of a conditional create.
	ifNoneExist string

	// Of a write in a transaction.
	w        *store.Write
	cond     *condition
	existing *fhir.Version // what If-None-Exist matched
	twin     *job          // the entry before with the same If-None-Exist, which creates
	gone     bool          // a conditional delete that matched nothing
	late     []string      // its conditional references that wait for other writes
}

// preconditions are the preconditions in entry.request.
func (j *job) preconditions() Preconditions {
	return Preconditions{IfMatch: j.entry.Request.IfMatch.Text, IfNoneMatch: j.entry.Request.IfNoneMatch.Text}
}

// newJob reads entry.request and checks that it makes sense. base is the service's URL
// as the client sees it.
func (s *Service) newJob(i int, e *r4.BundleEntry, base string) (*job, error) {
	if e.Request == nil {
		return nil, outcome.New(outcome.CodeRequired, "the entry has no request").At(entryPath(i) + ".request")
	}
	j := &job{i: i, entry: e, method: e.Request.Method.Text}
	if e.Request.URL.Text == "" {
		return nil, outcome.New(outcome.CodeRequired, "the entry's request has no url").At(entryPath(i) + ".request.url")
	}
	var err error
	if j.to, err = s.parseTarget(e.Request.URL.Text, base); err != nil {
		if o, ok := outcome.From(err); ok {
			return nil, o.At(entryPath(i) + ".request.url")
		}
		return nil, err
	}
	plain := !j.to.History && !j.to.Search && j.to.Compartment == "" && j.to.Operation == ""
	switch j.method {
	case "GET", "HEAD":
		return j, nil
	case "POST":
		if j.to.Operation != "" || j.to.Search {
			return j, nil
		}
		plain = plain && j.to.Type != "" && j.to.ID == ""
		if plain && j.to.HasQuery {
			if err := NoCreateQuery(j.to.Query); err != nil {
				return nil, inEntry(i, err)
			}
		}
		j.ifNoneExist = s.relativeCriteria(base, j.to.Type, e.Request.IfNoneExist.Text)
	case "PUT", "PATCH", "DELETE":
		plain = plain && j.to.Type != "" && (j.to.ID != "" || j.to.HasQuery)
	case "":
		return nil, outcome.New(outcome.CodeRequired, "the entry's request has no method").At(entryPath(i) + ".request.method")
	default:
		return nil, outcome.Invalid("method %q is not one of GET, HEAD, POST, PUT, PATCH, DELETE", outcome.Clip(j.method)).At(entryPath(i) + ".request.method")
	}
	if !plain {
		return nil, outcome.Invalid("%s %s is not an interaction", j.method, outcome.Clip(e.Request.URL.Text)).At(entryPath(i) + ".request.url")
	}
	if j.method != "DELETE" && e.Resource == nil {
		return nil, outcome.New(outcome.CodeRequired, "%s needs a resource", j.method).At(entryPath(i) + ".resource")
	}
	if j.method == "POST" || j.method == "PUT" {
		if got := e.Resource.Type().Name; got != j.to.Type {
			return nil, outcome.Invalid("the resource is of type %s, request.url names %s", got, j.to.Type).At(entryPath(i) + ".resource")
		}
	}
	return j, nil
}

// patch reads the patch of an entry: a Parameters resource, or a Binary with a
// JSON Patch inside.
// Spec: https://hl7.org/fhir/R4/http.html#patch (patch in a batch).
func (j *job) patch() (contentType string, patch []byte, err error) {
	b, ok := j.entry.Resource.(*r4.Binary)
	if !ok {
		return "application/fhir+json", j.entry.Resource.Header().Raw, nil
	}
	patch, err = base64.StdEncoding.DecodeString(strings.Map(dropSpace, b.Data.Text))
	if err != nil {
		return "", nil, outcome.Invalid("Binary.data is not base64").At(entryPath(j.i) + ".resource.data")
	}
	contentType = b.ContentType.Text
	if t, _, err := mime.ParseMediaType(contentType); err == nil {
		contentType = t
	}
	return contentType, patch, nil
}

func dropSpace(r rune) rune {
	if r == ' ' || r == '\n' || r == '\r' || r == '\t' {
		return -1
	}
	return r
}

// runReadEntry carries out an entry that reads on from: a GET, an operation, or a search by POST,
// whose parameters are in its URL.
func (s *Service) runReadEntry(ctx context.Context, from Reader, j *job, p BundleParams) (Response, error) {
	select {
	case p.answered.reading <- struct{}{}:
		defer func() { <-p.answered.reading }()
	case <-ctx.Done():
		return Response{}, ctx.Err()
	}
	if p.answered.bytes.Load() > maxAnswered {
		return Response{}, outcome.New(outcome.CodeTooCostly, "the answers to the other entries exceed %d MB: ask in several Bundles", maxAnswered>>20)
	}
	r, err := s.getOne(ctx, from, j, p)
	p.answered.bytes.Add(r.size())
	return r, err
}

func (s *Service) getOne(ctx context.Context, from Reader, j *job, p BundleParams) (Response, error) {
	lenient, base := p.Lenient, p.BaseURL
	from, err := s.VisibleReader(ctx, from)
	if err != nil {
		return Response{}, err
	}
	q := j.entry.Request
	values, err := ParseQuery(j.to.Query)
	if err != nil {
		return Response{}, err
	}
	var since time.Time
	if text := q.IfModifiedSince.Text; text != "" {
		if since, err = ParseInstant("ifModifiedSince", text); err != nil {
			return Response{}, err
		}
	}
	t := j.to
	switch {
	case t.Operation == "metadata":
		return s.Capabilities(ctx, CapabilitiesParams{Values: values, BaseURL: base})
	case t.Operation != "":
		op := OperationParams{Name: t.Operation, ResourceType: t.Type, ID: t.ID, Values: values, Read: j.method != "POST", Bundled: true, From: from}
		if j.entry.Resource != nil {
			op.Body = j.entry.Resource.Header().Raw
		}
		return s.Operation(ctx, op)
	case t.Search && j.method != "POST":
		return Response{}, outcome.NotSupported("GET %s is not served: a search by GET has no _search", outcome.Clip(q.URL.Text))
	case t.Version != "":
		r, err := s.vread(ctx, from, VReadParams{ResourceType: t.Type, ID: t.ID, VersionID: t.Version, IfNoneMatch: q.IfNoneMatch.Text, IfModifiedSince: since})
		return s.cut(r, err, values)
	case t.History:
		return s.history(ctx, from, HistoryParams{ResourceType: t.Type, ID: t.ID, Values: values})
	case t.Compartment != "":
		return s.search(ctx, from, SearchParams{ResourceType: t.Compartment, Compartment: t.Type, CompartmentID: t.ID, Values: values, Lenient: lenient, BaseURL: base})
	case t.ID != "":
		r, err := s.read(ctx, from, ReadParams{ResourceType: t.Type, ID: t.ID, IfNoneMatch: q.IfNoneMatch.Text, IfModifiedSince: since})
		return s.cut(r, err, values)
	default:
		return s.search(ctx, from, SearchParams{ResourceType: t.Type, Values: values, Lenient: lenient, BaseURL: base})
	}
}

// cut is the answer to a read, cut down where _summary or _elements asks for it.
func (s *Service) cut(r Response, err error, values url.Values) (Response, error) {
	if err != nil || !values.Has("_summary") && !values.Has("_elements") {
		return r, err
	}
	return s.Subset(r, values)
}

// entryOf writes a response as an entry of a batch response.
func entryOf(r Response, p BundleParams, method string) Entry {
	e := Entry{Version: r.Version, Body: r.Body, Nested: r.Bundle, Answer: &Answer{Status: r.Status, Issues: r.Issues}}
	e.Answer.Located = r.Version.ResourceType != ""
	switch {
	case r.Written:
		e.NoResource = p.Return != ReturnRepresentation || r.Version.Body == nil
	case r.Version.Body == nil || method == "HEAD":
		e.NoResource = true
	}
	if method == "HEAD" {
		e.Body, e.Nested = nil, nil
	}
	if r.Written && p.Return == ReturnOutcome && e.Answer.Issues == nil {
		e.Answer.Issues = WriteIssues(r)
	}
	return e
}

// WriteIssues describes the result of a write, for Prefer: return=OperationOutcome.
func WriteIssues(r Response) []outcome.Issue {
	verb := "updated"
	switch {
	case r.Existing:
		verb = "found and left as it is"
	case r.Status == http.StatusCreated:
		verb = "created"
	case r.Status == http.StatusNoContent:
		verb = "deleted"
	}
	text := verb
	if r.Version.ResourceType != "" {
		text = fmt.Sprintf("%s/%s %s, version %d", r.Version.ResourceType, r.Version.ID, verb, r.Version.VersionID)
	}
	return []outcome.Issue{{Severity: outcome.Information, Code: outcome.CodeInformational, Diagnostics: text}}
}
