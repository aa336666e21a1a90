package operate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"

	"kiln/gen/r4"
	"kiln/server/bulk"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/rest"
	"kiln/server/search"
	"kiln/server/smart"
	"kiln/server/store"
	"kiln/server/view"
	"kiln/server/view/format"
	"kiln/server/web"
)

// Settings are what administrators choose; they can change at run time.
type Settings struct {
	ConcurrentRuns int           // of this server
	StallTimeout   time.Duration // a client that accepts no byte for so long is cut off
	Timeout        time.Duration // of a run
	MaxBodyBytes   int64
	SnapshotWait   time.Duration // for older transactions
	SQL            SQLSettings
}

// Service serves the operations. Its fields are set before Open.
type Service struct {
	*interaction.Service
	Bulk     *bulk.Service
	Settings func() Settings
	Enabled  func(ctx context.Context) bool
	// NoteRuns is told how many runs begin, or with a negative number end.
	NoteRuns func(n int)

	places places
	runs   *prometheus.CounterVec
	rows   prometheus.Counter
	read   prometheus.Counter
}

// runWait is how long a run waits for a place.
const runWait = 5 * time.Second

// Open prepares the service and registers its metrics.
func (s *Service) Open(metrics prometheus.Registerer) {
	s.runs = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "service_view_runs_total", Help: "Runs of views."}, []string{"format", "outcome"})
	s.rows = prometheus.NewCounter(prometheus.CounterOpts{Name: "service_view_rows_total", Help: "Rows that runs of views have written."})
	s.read = prometheus.NewCounter(prometheus.CounterOpts{Name: "service_view_resources_read_total", Help: "Resources that runs of views have decoded."})
	metrics.MustRegister(s.runs, s.rows, s.read)
}

// Serves reports whether an operation is one of this package's.
func (s *Service) Serves(name, typ, id string) bool {
	switch name {
	case "$sql-run":
		return typ == "" && id == ""
	case "$viewdefinition-run":
		return typ == "" || typ == "ViewDefinition"
	case "$sqlquery-run":
		return typ == "" || typ == "Library"
	case "$sql-export":
		return typ == "" && id == ""
	case "$viewdefinition-export":
		return (typ == "" || typ == "ViewDefinition") && id == ""
	}
	return false
}

// Answer answers a run. An error before the first 64 KiB has a status; a later one cuts the connection.
func (s *Service) Answer(ctx context.Context, x *web.Exchange, r *http.Request, k rest.KickOff) {
	if strings.HasSuffix(k.Operation, "-export") {
		s.export(ctx, x, r, k)
		return
	}
	x.Route = "sql-run"
	a := &answer{x: x, r: r, stall: s.Settings().StallTimeout}
	err := s.run(ctx, a, r, k)
	if err == nil {
		err = a.finish()
	}
	name := a.name()
	if err == nil {
		s.runs.WithLabelValues(name, "done").Inc()
		return
	}
	s.runs.WithLabelValues(name, "failed").Inc()
	if a.begun {
		panic(http.ErrAbortHandler) // the sent bytes look complete unless the connection ends
	}
	var fault *view.Error
	switch {
	case errors.As(err, &fault):
		at := fault.Resource
		err = outcome.Unprocessable([]outcome.Issue{{Severity: outcome.Failure, Code: outcome.CodeInvalid, Diagnostics: fault.Error(), Expression: at}})
	case errors.Is(err, context.DeadlineExceeded):
		err = outcome.New(outcome.CodeTimeout, "the run takes longer than views.timeout")
	}
	if e, ok := outcome.From(err); ok && e.Issues[0].Code == outcome.CodeThrottled {
		x.Header().Set("Retry-After", strconv.Itoa(int(runWait/time.Second)))
	}
	x.Fail(r, err)
}

// run parses a request, checks its rights and writes the rows.
func (s *Service) run(ctx context.Context, a *answer, r *http.Request, k rest.KickOff) error {
	if !s.Enabled(ctx) {
		return outcome.NotImplemented("views are switched off (views.enabled)")
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodPost {
		return outcome.MethodNotAllowed("%s is called by GET and POST", k.Operation)
	}
	q, err := s.readRun(r, k)
	if err != nil {
		return err
	}
	if err := a.choose(q.format, r); err != nil {
		return err
	}
	body, err := s.subjectBody(ctx, q, k.Base)
	if err != nil {
		return err
	}
	if typ := resourceTypeOf(body); typ == "Library" {
		return s.runQuery(ctx, a, r, k, q, body)
	} else if k.Operation == "$sqlquery-run" {
		return outcome.UnprocessableContent(outcome.CodeInvalid, "%s is a %s: expected a Library", q.parameter, outcome.Clip(typ)).At(q.parameter)
	}
	if q.values != nil {
		return outcome.Invalid("parameters belongs to SQL queries: a view has no parameters").At("parameters")
	}
	v, err := s.compile(body, q.parameter)
	if err != nil {
		return err
	}
	if !q.inline {
		if err := s.checkRights(ctx, v.Resource); err != nil {
			return err
		}
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if k.Note != nil {
		k.Note([]byte("view=" + url.QueryEscape(cmp.Or(v.URL, v.Name, "inline"))))
	}
	ctx, cancel := context.WithTimeout(ctx, s.Settings().Timeout)
	defer cancel()
	defer context.AfterFunc(r.Context(), cancel)() // the client has left
	w := a.form.Open(a, v.Columns, format.Options{NoHeader: !q.header})
	if err := s.writeRows(ctx, w, v, q, k.Base); err != nil {
		if cause := r.Context().Err(); cause != nil {
			return cause
		}
		return err
	}
	return w.Close()
}

// enter waits for a place among the runs of this server.
func (s *Service) enter(ctx context.Context) (leave func(), err error) {
	wait := time.NewTimer(runWait)
	defer wait.Stop()
	for {
		most := s.Settings().ConcurrentRuns
		left, ok := s.places.take(most)
		if ok {
			s.NoteRuns(1)
			return func() { s.NoteRuns(-1); s.places.leave() }, nil
		}
		select {
		case <-left:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait.C:
			return nil, outcome.AtCapacity("%d runs of views are under way, which is as many as views.concurrent_runs allows; try again", most)
		}
	}
}

// places counts the runs of a server. The zero value has none.
type places struct {
	mu      sync.Mutex
	running int
	left    chan struct{} // closed when a run ends
}

// take takes a place where there are fewer than most runs; else left is closed when a run ends.
func (p *places) take(most int) (left <-chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running < most {
		p.running++
		return nil, true
	}
	if p.left == nil {
		p.left = make(chan struct{})
	}
	return p.left, false
}

func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if p.left != nil {
		close(p.left)
		p.left = nil
	}
}

// checkRights fails with forbidden, 403, where the token may not read and search a type.
func (s *Service) checkRights(ctx context.Context, typ string) error {
	rights, err := s.Access.Rights(ctx)
	if err != nil || rights == nil {
		return err
	}
	for _, permission := range []smart.Permissions{smart.Read, smart.Search} {
		if err := rights.Check(permission, typ); err != nil {
			return err
		}
	}
	return nil
}

// subjectBody is the JSON of the view of a request.
func (s *Service) subjectBody(ctx context.Context, q *runRequest, base string) ([]byte, error) {
	if q.body != nil {
		return q.body, nil
	}
	return s.storedView(ctx, q, base)
}

// compile reads and compiles a view.
func (s *Service) compile(body []byte, parameter string) (*view.View, error) {
	resource, err := fhir.Decode(s.Model, body)
	if err != nil {
		return nil, err
	}
	d, ok := resource.(*r4.ViewDefinition)
	if !ok {
		return nil, s.otherSubject(resource.Type().Name, parameter)
	}
	return view.Compile(s.Model, d)
}

// otherSubject is the error of a subject that is no view.
func (s *Service) otherSubject(typ, parameter string) error {
	if typ == "Library" {
		return outcome.RefusedParameter("%s is a Library: SQL queries are not served here", parameter).At(parameter)
	}
	return outcome.UnprocessableContent(outcome.CodeInvalid, "%s is a %s: expected a ViewDefinition", parameter, outcome.Clip(typ)).At(parameter)
}

// storedView returns the JSON of the view that a request names.
func (s *Service) storedView(ctx context.Context, q *runRequest, base string) ([]byte, error) {
	from, err := s.SeenBy(ctx, s.Store, smart.Read)
	if err != nil {
		return nil, err
	}
	if q.canonical != "" {
		if q.parameter == "queryReference" {
			return s.byCanonical(ctx, from, q, "Library")
		}
		body, err := s.byCanonical(ctx, from, q, "ViewDefinition")
		if q.parameter == "subjectCanonical" && s.Settings().SQL.URL != "" && outcome.Is(err, outcome.CodeNotFound, outcome.CodeForbidden) {
			if query, other := s.byCanonical(ctx, from, q, "Library"); other == nil {
				return query, nil
			}
		}
		return body, err
	}
	typ, id, ok := strings.Cut(s.relative(q.reference, base), "/")
	if strings.Contains(q.reference, "://") && !s.isLocal(q.reference, base) {
		return nil, outcome.New(outcome.CodeNotFound, "%s is no resource of this server", outcome.Clip(q.reference)).At(q.parameter)
	}
	if !ok || s.Model.Resources[typ] == nil || !fhir.ValidID(id) {
		return nil, outcome.Invalid("%s is %q: expected ViewDefinition/id", q.parameter, outcome.Clip(q.reference)).At(q.parameter)
	}
	if typ != "ViewDefinition" && (typ != "Library" || s.Settings().SQL.URL == "") {
		return nil, s.otherSubject(typ, q.parameter)
	}
	if err := s.mayRead(ctx, typ); err != nil {
		return nil, err
	}
	v, err := from.Read(ctx, typ, id)
	if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted) {
		return nil, outcome.NotFound(typ, id).At(q.parameter)
	}
	return v.Body, err
}

func (s *Service) mayRead(ctx context.Context, typ string) error {
	rights, err := s.Access.Rights(ctx)
	if err != nil || rights == nil {
		return err
	}
	return rights.Check(smart.Read, typ)
}

// byCanonical returns the view or the query with a canonical URL: the version that it names, else the newest,
// active ones first.
func (s *Service) byCanonical(ctx context.Context, from interaction.Reader, q *runRequest, typ string) ([]byte, error) {
	if err := s.mayRead(ctx, typ); err != nil {
		return nil, err
	}
	values, version := findValues(q.canonical)
	options := s.SearchOptions(ctx, true, nil)
	options.MaxCount = 200
	query, err := search.Parse(s.Parameters.Current(), typ, values, options)
	if err != nil {
		return nil, err
	}
	found, err := from.Search(ctx, query)
	if err != nil {
		return nil, err
	}
	defer found.Release()
	type candidate struct {
		body    []byte
		active  bool
		version string
		updated time.Time
	}
	var list []candidate
	for _, m := range found.Matches {
		body := bytes.Clone(m.Body)
		var d struct{ Status, Version string }
		if err := json.Unmarshal(body, &d); err != nil {
			return nil, err
		}
		if version == "" || d.Version == version {
			list = append(list, candidate{body, d.Status == "active", d.Version, m.LastUpdated})
		}
	}
	if len(list) == 0 {
		return nil, outcome.New(outcome.CodeNotFound, "there is no %s %s", typ, outcome.Clip(q.canonical)).At(q.parameter)
	}
	slices.SortFunc(list, func(a, b candidate) int {
		switch {
		case a.active != b.active && a.active:
			return -1
		case a.active != b.active:
			return 1
		}
		if c := compareVersions(b.version, a.version); c != 0 {
			return c
		}
		return b.updated.Compare(a.updated)
	})
	return list[0].body, nil
}

// compareVersions orders business versions: numbers between dots by value, everything else as text.
func compareVersions(a, b string) int {
	as, bs := strings.FieldsFunc(a, isSeparator), strings.FieldsFunc(b, isSeparator)
	for i := range max(len(as), len(bs)) {
		if i >= len(as) || i >= len(bs) {
			return len(as) - len(bs)
		}
		x, xerr := strconv.Atoi(as[i])
		y, yerr := strconv.Atoi(bs[i])
		switch {
		case xerr == nil && yerr == nil && x != y:
			return x - y
		case (xerr != nil || yerr != nil) && as[i] != bs[i]:
			return strings.Compare(as[i], bs[i])
		}
	}
	return 0
}

func isSeparator(c rune) bool { return c == '.' || c == '-' }

// Batches of resources between the goroutine that reads and the one that evaluates.
const (
	batchResources = 200
	batchBytes     = 256 << 10 // of JSON; decoded resources take several times as much
	batchesAhead   = 2
)

// writeRows writes the rows of a view.
func (s *Service) writeRows(ctx context.Context, w format.Writer, v *view.View, q *runRequest, base string) error {
	bases := append(slices.Clone(s.BaseURLs), base)
	e := v.NewEvaluator(ctx, bases, s.Now())
	left := q.limit
	evaluate := func(r fhir.Resource) error {
		if left == 0 {
			return view.ErrStop
		}
		rows := 0
		err := e.Eval(r, func(row view.Row) error {
			if err := w.Write(row); err != nil {
				return format.AsViewError(err, r.Type().Name+"/"+r.Header().ID.Text)
			}
			rows++
			if left--; left == 0 {
				return view.ErrStop
			}
			return nil
		})
		s.rows.Add(float64(rows))
		s.read.Inc()
		return err
	}
	if left == 0 {
		return nil
	}
	var err error
	if q.inline {
		for _, r := range q.resources {
			if r.Type().Name == v.Resource {
				if err = evaluate(r); err != nil {
					break
				}
			}
		}
	} else {
		err = s.eachStored(ctx, v, q, evaluate)
	}
	if errors.Is(err, view.ErrStop) {
		return nil
	}
	return err
}

// eachStored calls each with the resources that a run reads, as they are at one moment.
func (s *Service) eachStored(ctx context.Context, v *view.View, q *runRequest, each func(fhir.Resource) error) error {
	moment, err := s.Store.FixMoment(ctx, s.Settings().SnapshotWait)
	if err != nil {
		return err
	}
	spec := bulk.ReadingSpec{ResourceType: v.Resource, Since: q.since, Patients: q.patients, Groups: q.groups, Terms: s.terms(v)}
	reading, err := s.Bulk.NewReading(ctx, spec, moment)
	if err != nil {
		return err
	}
	return readAhead(ctx, reading, s.Model, each)
}

// terms are the terms of the index that the resources of a view have; nil where all are read.
func (s *Service) terms(v *view.View) []int64 {
	if len(v.Wheres) == 0 {
		return nil
	}
	table := view.NewIndexTable(s.Model, v.Resource, s.Parameters.Current().Parameters(v.Resource))
	var best view.Candidates
	found := false
	for i := range v.Wheres {
		if c, ok := table.Candidates(v, &v.Wheres[i]); ok && (!found || c.Better(best)) {
			best, found = c, true
		}
	}
	if !found {
		return nil
	}
	return []int64{best.Term}
}

// readAhead reads and decodes resources in a goroutine, and calls each with them.
func readAhead(ctx context.Context, reading *bulk.Reading, model *fhir.Model, each func(fhir.Resource) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches := make(chan []fhir.Resource, batchesAhead)
	failed := make(chan error, 1)
	go func() {
		defer close(batches)
		var batch []fhir.Resource
		size := 0
		send := func() error {
			select {
			case batches <- batch:
				batch, size = make([]fhir.Resource, 0, batchResources), 0
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		err := reading.Each(ctx, func(v *store.Stored) error {
			in, err := fhir.Read(model, bytes.Clone(v.Body))
			if err != nil {
				return fmt.Errorf("%s/%s: %w", v.ResourceType, v.ID, err)
			}
			batch = append(batch, in.Resource)
			if size += len(v.Body); len(batch) < batchResources && size < batchBytes {
				return nil
			}
			return send()
		})
		if err == nil && len(batch) > 0 {
			err = send()
		}
		failed <- err
	}()
	for batch := range batches {
		for _, r := range batch {
			if err := each(r); err != nil {
				return err
			}
		}
	}
	return <-failed
}

// readBody reads the body of a request.
func (s *Service) readBody(r *http.Request) ([]byte, error) {
	most := s.Settings().MaxBodyBytes
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil {
		return nil, outcome.Invalid("the body cannot be read: %v", err)
	}
	if int64(len(body)) > most {
		return nil, outcome.New(outcome.CodeTooLong, "the body has at most %d bytes (server.max_body_bytes)", most)
	}
	return body, nil
}

// headBytes are held back, so that an error in them can be answered with a status.
const headBytes = 64 << 10

// answer is the stream of a run.
type answer struct {
	x      *web.Exchange
	r      *http.Request
	stall  time.Duration
	form   *format.Format
	binary bool // as a Binary resource

	begun   bool
	head    bytes.Buffer
	out     io.Writer // behind the head
	closers []func() error
	control *http.ResponseController
}

func (a *answer) name() string {
	if a.form == nil {
		return "none"
	}
	return a.form.Name
}

// choose picks the format by _format, else by Accept.
func (a *answer) choose(name string, r *http.Request) error {
	if name != "" {
		typ, _, _ := strings.Cut(strings.ReplaceAll(name, " ", "+"), ";")
		form, ok := format.Find(strings.TrimSpace(typ))
		if !ok {
			return outcome.RefusedParameter("_format is %q: expected ndjson, csv, json or parquet", outcome.Clip(name)).At("_format")
		}
		a.form = form
	}
	accepted := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accepted) == "" {
		accepted = "*/*"
	}
	for _, typ := range acceptedTypes(accepted) {
		switch {
		case typ == "application/fhir+json":
			a.binary = true
			if a.form == nil {
				a.form = format.NDJSON
			}
			return nil
		case a.form != nil:
			return nil
		case typ == "*/*" || typ == "application/*":
			a.form = format.NDJSON
			return nil
		case typ == "text/*":
			a.form = format.CSV
			return nil
		}
		if form, ok := format.Find(typ); ok && strings.Contains(typ, "/") {
			a.form = form
			return nil
		}
	}
	if a.form != nil {
		return nil
	}
	return outcome.NotAcceptable("Accept asks for a format that is not served: application/x-ndjson, text/csv, application/json, application/vnd.apache.parquet and application/fhir+json are")
}

// acceptedTypes are the media types of Accept, the preferred ones first.
func acceptedTypes(text string) []string {
	type item struct {
		typ string
		q   float64
	}
	var list []item
	for part := range strings.SplitSeq(text, ",") {
		typ, arguments, _ := strings.Cut(part, ";")
		i := item{strings.ToLower(strings.TrimSpace(typ)), 1}
		for argument := range strings.SplitSeq(arguments, ";") {
			if v, ok := strings.CutPrefix(strings.TrimSpace(argument), "q="); ok {
				if q, err := strconv.ParseFloat(v, 64); err == nil {
					i.q = q
				}
			}
		}
		if i.typ != "" && i.q > 0 {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(a, b item) int {
		switch {
		case a.q > b.q:
			return -1
		case a.q < b.q:
			return 1
		}
		return 0
	})
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].typ
	}
	return out
}

// Write holds the first bytes back, and streams the others.
func (a *answer) Write(b []byte) (int, error) {
	if !a.begun {
		a.head.Write(b)
		if a.head.Len() < headBytes {
			return len(b), nil
		}
		return len(b), a.begin()
	}
	return a.out.Write(b)
}

// begin sends the header and the bytes that were held back.
func (a *answer) begin() error {
	a.begun = true
	h := a.x.Header()
	h.Set("Cache-Control", "no-store")
	a.control = http.NewResponseController(a.x)
	a.out = (*pacedWriter)(a)
	contentType := a.form.ContentType
	if a.binary {
		contentType = "application/fhir+json; charset=utf-8"
	} else if a.form != format.Parquet {
		contentType += "; charset=utf-8"
	}
	h.Set("Content-Type", contentType)
	if a.form.Compressible || a.binary {
		h.Add("Vary", "Accept-Encoding")
		if web.WantsGzip(a.r) {
			h.Set("Content-Encoding", "gzip")
			z, err := gzip.NewWriterLevel(a.out, gzip.BestSpeed)
			if err != nil {
				return err
			}
			a.out = z
			a.closers = append(a.closers, z.Close)
		}
	}
	a.x.WriteHeader(http.StatusOK)
	if a.binary {
		if _, err := io.WriteString(a.out, `{"resourceType":"Binary","contentType":"`+a.form.ContentType+`","data":"`); err != nil {
			return err
		}
		under := a.out
		e := base64.NewEncoder(base64.StdEncoding, under)
		a.out = e
		a.closers = append(a.closers, func() error {
			if err := e.Close(); err != nil {
				return err
			}
			_, err := io.WriteString(under, "\"}\n")
			return err
		})
	}
	_, err := a.out.Write(a.head.Bytes())
	a.head = bytes.Buffer{}
	return err
}

// finish ends the answer.
func (a *answer) finish() error {
	if !a.begun {
		if a.binary && a.head.Len() == 0 {
			// A Binary without data: FHIR has no empty strings.
			a.begun = true
			a.x.Header().Set("Cache-Control", "no-store")
			a.x.Send(a.r, http.StatusOK, "application/fhir+json; charset=utf-8", []byte(`{"resourceType":"Binary","contentType":"`+a.form.ContentType+`"}`), false)
			return nil
		}
		if err := a.begin(); err != nil {
			return err
		}
	}
	for _, f := range slices.Backward(a.closers) {
		if err := f(); err != nil {
			return err
		}
	}
	// The connection may serve another request.
	if err := a.control.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// pacedWriter writes to the client, with the deadline a.stall for each write.
type pacedWriter answer

func (p *pacedWriter) Write(b []byte) (int, error) {
	// Short writes, so that a slow client that still reads is not cut off.
	total := 0
	for len(b) > 0 {
		n := min(len(b), 32<<10)
		if err := p.control.SetWriteDeadline(time.Now().Add(p.stall)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return total, err
		}
		written, err := p.x.Write(b[:n])
		total += written
		if err != nil {
			return total, err
		}
		b = b[n:]
	}
	return total, nil
}
