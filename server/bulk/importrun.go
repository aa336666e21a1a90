package bulk

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/outbound"
	"kiln/server/outcome"
	"kiln/server/store"
	"kiln/server/web"
)

// ImportSettings are the settings of imports.
type ImportSettings struct {
	// Sources are prefixes of the URLs that may be read; none allows every https URL.
	Sources   []string
	Outbound  outbound.Rules
	MaxErrors int   // lines of a file of errors
	MaxLine   int64 // bytes
	S3        bool  // s3: URLs can be read
}

// importPart is the work of one part of an import.
type importPart struct {
	Do    string `json:"do"`
	Input int    `json:"input,omitempty"`
	Path  string `json:"path,omitempty"` // of the lines
}

// The kinds of parts of an import.
const (
	fetchInput   = "fetch"  // reads an input and stores its lines for later parts
	storeLines   = "lines"  // stores the resources of some lines
	reportImport = "report" // makes the files of errors
)

const (
	batchLines = 500     // lines of a transaction, at most
	batchBytes = 2 << 20 // bytes of a transaction, about
)

// importData is the result of a part, for the report.
type importData struct {
	Input int `json:"input"`
	importCounts
	Failure string `json:"failure,omitempty"` // why the input could not be read
}

// importCounts are numbers of lines, by what became of them.
type importCounts struct {
	Created   int64 `json:"created"`
	Updated   int64 `json:"updated"`
	Unchanged int64 `json:"unchanged"`
	Failed    int64 `json:"failed,omitempty"`
}

func (c importCounts) stored() int64 { return c.Created + c.Updated + c.Unchanged }

func (c *importCounts) add(o importCounts) {
	c.Created, c.Updated, c.Unchanged, c.Failed = c.Created+o.Created, c.Updated+o.Updated, c.Unchanged+o.Unchanged, c.Failed+o.Failed
}

// importOutput is an entry of output in the manifest of an import.
type importOutput struct {
	InputURL  string          `json:"inputUrl,omitempty"`
	Count     int64           `json:"count"`
	Extension importExtension `json:"extension"`
}

type importExtension struct {
	Created   int64 `json:"created"`
	Updated   int64 `json:"updated"`
	Unchanged int64 `json:"unchanged"`
}

// uploads counts the uploads that arrive, by client.
type uploads struct {
	mu sync.Mutex
	of map[string]int
}

// enter counts an upload, unless the client has too many.
func (u *uploads) enter(client string, most int) (leave func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of[client] >= most {
		return nil, false
	}
	if u.of == nil {
		u.of = make(map[string]int)
	}
	u.of[client]++
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.of[client]--; u.of[client] <= 0 {
			delete(u.of, client)
		}
	}, true
}

// upload stores the lines of the body of a request, and makes the job that works on them.
func (p *importReader) upload(ctx context.Context, x *web.Exchange, r *http.Request) (*jobs.Job, []jobs.Part, error) {
	s := p.s
	values, err := p.query(r, "inputSource")
	if err != nil {
		return nil, nil, err
	}
	switch list := values["inputSource"]; len(list) {
	case 0:
	case 1:
		if p.spec.Source = list[0]; p.spec.Source == "" {
			return nil, nil, outcome.Invalid("inputSource is empty: expected a URI that names the origin of the data")
		}
	default:
		return nil, nil, outcome.Invalid("inputSource is given more than once")
	}
	if err := checkSource(p.spec.Source); err != nil {
		return nil, nil, err
	}
	switch encoding := strings.ToLower(r.Header.Get("Content-Encoding")); encoding {
	case "", "identity", "gzip", "x-gzip":
	default:
		return nil, nil, outcome.UnsupportedMediaType("Content-Encoding %q is not served; gzip is", outcome.Clip(encoding))
	}
	p.spec.Inputs = []importInput{{}}
	if err := p.checkRights(ctx); err != nil {
		return nil, nil, err
	}
	client := s.clientOfRequest(ctx, r)
	if err := s.Jobs.CheckClient(ctx, client); err != nil {
		return nil, nil, err
	}
	leave, ok := s.uploads.enter(client, s.Jobs.Settings().MaxPerClient)
	if !ok {
		return nil, nil, outcome.New(outcome.CodeThrottled, "this client sends as many uploads as jobs.max_per_client allows")
	}
	defer leave()
	// The body has its own limit of speed; the answer comes when all of it is stored.
	_ = http.NewResponseController(x).SetWriteDeadline(time.Time{})
	j := &jobs.Job{ID: s.Jobs.NewID(), Type: "import", Reason: "an import of an upload"}
	c := &chunks{ctx: ctx, storage: s.Storage, prefix: j.ID + "/upload", maxLine: p.settings.Import.MaxLine, room: s.room(p.settings.QuotaBytes)}
	body := &countingReader{r: s.Jobs.NewPacer().Reader(ctx, r.Body)}
	if err = c.split(body); err != nil {
		bad, unreadable := errors.AsType[errInput](err)
		if !unreadable {
			s.dropFiles(j.ID)
			if body.err != nil && body.err != io.EOF {
				err = outcome.New(outcome.CodeStructure, "the body could not be read to its end").Because(body.err)
			}
			return nil, nil, err
		}
		p.spec.Failure, c.files = bad.reason, nil
	}
	if j.Spec, err = json.Marshal(p.spec); err != nil {
		return nil, nil, err
	}
	if j.Files = c.files; p.spec.Failure == "" {
		j.Total = c.lines
	}
	return j, append(c.lineParts(0), jobs.Part{Stage: 1, Spec: importPart{Do: reportImport}}), nil
}

// dropFiles removes the files of a job that was not added.
func (s *Service) dropFiles(job string) {
	if job == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Storage.RemoveJob(ctx, job); err != nil {
		s.Log.Warn("remove the files of an upload", "error", err)
	}
}

// runImport works on one part of an import.
func (s *Service) runImport(ctx context.Context, t *jobs.Task) (jobs.Result, error) {
	var spec importSpec
	var part importPart
	if err := json.Unmarshal(t.Job.Spec, &spec); err != nil {
		return jobs.Result{}, err
	}
	if err := json.Unmarshal(t.Spec, &part); err != nil {
		return jobs.Result{}, err
	}
	switch part.Do {
	case fetchInput:
		return s.fetchInput(ctx, t, &spec, part.Input)
	case storeLines:
		return s.storeLines(ctx, t, &spec, &part)
	case reportImport:
		return s.reportImport(ctx, t, &spec)
	}
	return jobs.Result{}, fmt.Errorf("bulk: a part of an import does %q", part.Do)
}

// fetchInput reads an input, and stores its lines for further parts.
func (s *Service) fetchInput(ctx context.Context, t *jobs.Task, spec *importSpec, input int) (jobs.Result, error) {
	if err := t.Wait(); err != nil {
		return jobs.Result{}, err
	}
	settings := s.Settings()
	f := &fetcher{client: s.sourceClient(), settings: settings.Import, idle: time.Minute, pause: time.Second, s3: s.OpenObject}
	var c *chunks
	err := f.fetch(ctx, spec.Inputs[input].URL, func(in io.Reader) error {
		c = &chunks{ctx: ctx, storage: s.Storage, prefix: jobPath(t), maxLine: settings.Import.MaxLine, typ: spec.Inputs[input].Type, room: s.room(settings.QuotaBytes)}
		return c.split(t.NewPacer().Reader(ctx, in))
	})
	if bad, ok := errors.AsType[errInput](err); ok {
		return jobs.Result{Data: importData{Input: input, Failure: bad.reason}, Failed: 1}, nil
	}
	if err != nil {
		return jobs.Result{}, err
	}
	return jobs.Result{Parts: c.lineParts(input), Files: c.files, Total: c.lines, Data: importData{Input: input}}, nil
}

// sourceClient is the HTTP client for the sources of imports.
func (s *Service) sourceClient() *http.Client {
	s.sourcesOnce.Do(func() { s.sources = outbound.Client(func() outbound.Rules { return s.Settings().Import.Outbound }) })
	return s.sources
}

// linesKept is how far a part that stores lines is.
type linesKept struct {
	Offset int64 `json:"offset"`
	importCounts
}

// lineBatch is the lines of one transaction, up to an offset of the file of lines.
type lineBatch struct {
	writes []*store.Write
	lines  []int64 // numbers, by write
	failed []jobs.LineError
	end    int64
	err    error
}

// storeLines stores the resources of a file of lines. It commits each resource together with the place
// in the file, so a line is stored once, whatever happens to the server.
func (s *Service) storeLines(ctx context.Context, t *jobs.Task, spec *importSpec, part *importPart) (jobs.Result, error) {
	owned, err := asOwner(ctx, t.Job.Principal)
	if err != nil {
		return jobs.Result{}, err
	}
	var kept linesKept
	if err := json.Unmarshal(t.Kept, &kept); err != nil {
		return jobs.Result{}, err
	}
	t.Progress(kept.stored())
	file, err := s.Storage.Open(ctx, part.Path)
	if err != nil {
		return jobs.Result{}, fmt.Errorf("open the lines of an import: %w", err)
	}
	defer file.Close()
	l := &lineReader{s: s, ctx: owned, base: t.Job.Base, input: spec.Inputs[part.Input], source: spec.Source, reading: t.NewPacer(), writing: t.NewPacer()}
	for {
		if _, err := file.Seek(kept.Offset, io.SeekStart); err != nil {
			return jobs.Result{}, err
		}
		l.in, l.offset, l.held = bufio.NewReaderSize(file, lineBuffer), kept.Offset, nil
		err := s.storeBatches(ctx, t, l, part.Input, &kept)
		bad, refused := errors.AsType[errBatch](err)
		switch {
		case refused: // one of the lines, by PostgreSQL: each is written alone, to find it
			l.aloneUntil = bad.end
		case err != nil:
			return jobs.Result{}, err
		default:
			return jobs.Result{Done: kept.stored(), Failed: kept.Failed, Data: importData{Input: part.Input, importCounts: kept.importCounts}}, nil
		}
	}
}

// errBatch is the refusal of a batch for a reason in one of its lines.
type errBatch struct {
	end int64 // of the batch
	err error
}

func (e errBatch) Error() string { return e.err.Error() }

// storeBatches stores the batches of a reader to its end.
func (s *Service) storeBatches(ctx context.Context, t *jobs.Task, l *lineReader, input int, kept *linesKept) error {
	// The next batch is made ready while one is written.
	under, stop := context.WithCancel(ctx)
	defer stop()
	batches := make(chan lineBatch)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	reading.Go(func() {
		defer close(batches)
		for {
			var b lineBatch
			most := min(l.reading.Size(batchLines), l.writing.Size(batchLines))
			if l.reading.Slice(under, most, func() error { b = l.next(most); return nil }) != nil {
				return
			}
			select {
			case batches <- b:
			case <-under.Done():
				return
			}
			if b.err != nil {
				return
			}
		}
	})
	for b := range batches {
		if b.end > kept.Offset {
			err := l.writing.Slice(ctx, len(b.writes)+len(b.failed), func() error { return s.storeBatch(l.ctx, t, input, kept, b) })
			if err != nil {
				return err
			}
			t.Progress(kept.stored())
		}
		if b.err == io.EOF {
			return nil
		}
		if b.err != nil {
			return b.err
		}
	}
	return ctx.Err()
}

// lineReader makes the writes of the lines of a file.
type lineReader struct {
	s      *Service
	ctx    context.Context // of the owner
	in     *bufio.Reader
	offset int64
	base   string
	input  importInput
	source string
	held   *record // begins the next batch
	// aloneUntil is the offset up to which each line is a batch.
	aloneUntil int64
	// reading and writing pace the making of batches and their transactions.
	reading, writing *jobs.Pacer
}

// next returns the next batch, of at most some lines; its err is io.EOF with the last one.
func (l *lineReader) next(most int) lineBatch {
	b := lineBatch{end: l.offset}
	seen := make(map[int64]bool)
	size := 0
	for {
		var r record
		var err error
		if l.held != nil {
			r, l.held = *l.held, nil
		} else if r, err = readRecord(l.in, l.offset); err != nil {
			b.err = err
			return b
		}
		if len(b.lines)+len(b.failed) > 0 && (len(b.lines)+len(b.failed) >= most || size+len(r.text) > batchBytes) {
			l.held = &r
			return b
		}
		w, err := l.prepare(&r)
		switch {
		case err != nil && outcome.Ours(err):
			b.err = err
			return b
		case err != nil:
			b.failed = append(b.failed, lineError(r.number, err))
		default:
			ref := int64(fhir.ValueReference(w.ResourceType, w.ID))
			alone := l.s.Store.Hooked(w.ResourceType) || l.offset < l.aloneUntil
			if len(b.lines) > 0 && (seen[ref] || alone) {
				l.s.RecycleLine(w)
				l.held = &r
				return b
			}
			seen[ref] = true
			b.writes, b.lines = append(b.writes, w), append(b.lines, r.number)
			if alone {
				b.end, l.offset = r.end, r.end
				return b
			}
		}
		size += len(r.text)
		b.end, l.offset = r.end, r.end
	}
}

func (l *lineReader) prepare(r *record) (*store.Write, error) {
	if r.long {
		return nil, outcome.New(outcome.CodeTooLong, "the line is larger than %d bytes (server.max_body_bytes)", l.s.Settings().Import.MaxLine)
	}
	return l.s.PrepareLine(l.ctx, interaction.Line{JSON: r.text, ResourceType: l.input.Type, Source: l.source, BaseURL: l.base})
}

// lineError is the error of a line as an OperationOutcome. Line 0 is the input as a whole.
func lineError(number int64, err error) jobs.LineError {
	e, ok := outcome.From(err)
	if !ok {
		e = outcome.New(outcome.CodeException, "%v", err)
	}
	issues := append([]outcome.Issue(nil), e.Issues...)
	if number > 0 {
		issues[0].Diagnostics = fmt.Sprintf("line %d: %s", number, issues[0].Diagnostics)
	}
	return jobs.LineError{Line: number, Outcome: string(outcome.JSON(issues))}
}

// storeBatch stores a batch in one transaction, with the place behind it.
func (s *Service) storeBatch(ctx context.Context, t *jobs.Task, input int, kept *linesKept, b lineBatch) error {
	for {
		var next linesKept
		err := s.Store.InTx(ctx, func(tx *store.Tx) error {
			next = linesKept{b.end, kept.importCounts}
			// A server that is frozen in the transaction must not hold the lines for longer than its lease.
			if err := tx.EndWhenIdle(ctx, s.Jobs.Settings().Lease); err != nil {
				return err
			}
			failed := append([]jobs.LineError(nil), b.failed...)
			refused := make(map[int]bool)
			var internal error
			if len(b.writes) > 0 {
				err := tx.WriteEach(ctx, b.writes, func(i int, err error) {
					if outcome.Ours(err) {
						internal = errors.Join(internal, err)
						return
					}
					refused[i] = true
					failed = append(failed, lineError(b.lines[i], s.LineError(b.writes[i], err)))
				})
				if err = errors.Join(err, internal); err != nil {
					return err
				}
			}
			for i, w := range b.writes {
				switch {
				case refused[i]:
				case w.Equal:
					next.Unchanged++
				case w.Created:
					next.Created++
				default:
					next.Updated++
				}
			}
			next.Failed += int64(len(failed))
			numbers, outcomes := make([]int64, len(failed)), make([]string, len(failed))
			for i, f := range failed {
				numbers[i], outcomes[i] = f.Line, f.Outcome
			}
			if err := t.AddErrors(ctx, tx.Conn(), input, numbers, outcomes, s.Settings().Import.MaxErrors); err != nil {
				return err
			}
			return t.Keep(ctx, tx.Conn(), next, next.stored())
		})
		if w, ok := errors.AsType[*store.WriteError](err); ok && !outcome.Ours(w.Err) {
			// A hook, or the index, refuses one of them.
			b.failed = append(b.failed, lineError(b.lines[w.Index], s.LineError(b.writes[w.Index], w.Err)))
			b.writes = append(append([]*store.Write(nil), b.writes[:w.Index]...), b.writes[w.Index+1:]...)
			b.lines = append(append([]int64(nil), b.lines[:w.Index]...), b.lines[w.Index+1:]...)
			continue
		}
		if refusesLine(err) && len(b.writes) > 0 {
			if len(b.writes) > 1 {
				return errBatch{b.end, err}
			}
			b.failed = append(b.failed, lineError(b.lines[0], err))
			b.writes, b.lines = nil, nil
			continue
		}
		if err != nil {
			return err
		}
		*kept = next
		for _, w := range b.writes {
			s.RecycleLine(w)
		}
		return nil
	}
}

// refusesLine reports whether a transaction failed for a reason in one of its lines: another attempt would
// fail in the same way.
func refusesLine(err error) bool {
	return outcome.Theirs(err) && !outcome.Is(err, outcome.CodeConflict, outcome.CodeTimeout, outcome.CodeThrottled)
}

// reportImport makes the files of errors and the entries of the manifest.
func (s *Service) reportImport(ctx context.Context, t *jobs.Task, spec *importSpec) (jobs.Result, error) {
	results, err := s.Jobs.Results(ctx, t.Job.ID)
	if err != nil {
		return jobs.Result{}, err
	}
	counts := make([]importCounts, len(spec.Inputs))
	failures := make(map[int]string)
	if spec.Failure != "" {
		failures[0] = spec.Failure
	}
	for _, text := range results {
		var d importData
		if err := json.Unmarshal(text, &d); err != nil {
			return jobs.Result{}, err
		}
		counts[d.Input].add(d.importCounts)
		if d.Failure != "" {
			failures[d.Input] = d.Failure
		}
	}
	var files []jobs.File
	write := func(name string, input importInput, count int64, each func(add func(line []byte) error) error) error {
		out := s.newLines(ctx, t)
		out.prefix += "-" + name
		out.max = 1 << 62 // the file is bounded by its lines
		defer out.abort()
		if err := each(func(line []byte) error { return out.addLine(jobs.Errors, "OperationOutcome", line) }); err != nil {
			return err
		}
		made, err := out.close()
		for i := range made {
			made[i].Input = input.URL
			if count > 0 {
				made[i].Lines = count
			}
		}
		files = append(files, made...)
		return err
	}
	outputs := make([]importOutput, len(spec.Inputs))
	for i, input := range spec.Inputs {
		c := counts[i]
		outputs[i] = importOutput{InputURL: input.URL, Count: c.stored(), Extension: importExtension{c.Created, c.Updated, c.Unchanged}}
		failure, failed := failures[i]
		switch {
		case failed:
			err = write(fmt.Sprintf("errors-%d", i), input, 0, func(add func([]byte) error) error {
				return add([]byte(lineError(0, outcome.New(outcome.CodeIncomplete, "%s", failure)).Outcome))
			})
		case c.Failed > 0:
			err = write(fmt.Sprintf("errors-%d", i), input, c.Failed, func(add func([]byte) error) error { return s.eachLineError(ctx, t.Job.ID, i, add) })
		}
		if err != nil {
			return jobs.Result{}, err
		}
	}
	if len(spec.Warnings) > 0 {
		err = write("warnings", importInput{}, 0, func(add func([]byte) error) error {
			for _, w := range spec.Warnings {
				if err := add(w); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return jobs.Result{}, err
		}
	}
	return jobs.Result{Files: files, Shared: map[string]any{"moment": s.Now(), "outputs": outputs}, Data: importData{}}, nil
}

// eachLineError calls add with each error of an input that is stored.
func (s *Service) eachLineError(ctx context.Context, job string, input int, add func([]byte) error) error {
	const count = 1000
	for after := int64(-1); ; {
		list, err := s.Jobs.LineErrors(ctx, job, input, after, count)
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := add([]byte(e.Outcome)); err != nil {
				return err
			}
			after = e.Line
		}
		if len(list) < count {
			return nil
		}
	}
}

// dropInputs removes the lines of an import that has ended.
func (s *Service) dropInputs(ctx context.Context, j *jobs.Job) {
	files, err := s.Jobs.Files(ctx, j.ID)
	for i := 0; err == nil && i < len(files); i++ {
		if files[i].Kind == jobs.Input {
			err = s.Storage.Remove(ctx, files[i].Path)
		}
	}
	if err == nil {
		err = s.Jobs.DropInput(ctx, j.ID)
	}
	if err != nil {
		s.Log.Warn("remove the lines of an import", "job", j.ID, "error", err)
	}
}
