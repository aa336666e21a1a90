package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
)

// load is `kiln load`.
func load() *cobra.Command {
	var o loadOptions
	c := &cobra.Command{
		Use:   "load PATH…",
		Short: "Load files into a running server",
		Long: `Load files through the server's ordinary REST interface. Bundles of type transaction
and batch are sent as they are. The resources of a searchset or collection, the lines
of .ndjson and single resources are stored by PUT if they have an id, else by POST. A
document or message is stored as a Bundle; another type of Bundle is refused.

PATH is a file or a folder: .json, .ndjson, each also .gz or .zst, and .tar, .tar.gz,
.tar.zst of them. Hospitals, practitioners and organizations come first, as others
refer to them. A file that cannot be read fails alone.

The state file records requests and answers. After Ctrl-C, load waits for the pending
answers; run again, it continues. It looks up requests without an answer before it
sends them again, so that nothing is stored twice. It can continue at another server of
the same database; a server of another database is refused. The file is removed when
all is loaded. Failures are written to the error file, and the exit status is not zero
then.`,
		Example: `  kiln load examples/patients
  kiln load synthea.tar.zst --parallel 8
  kiln load export.ndjson.gz --server https://fhir.example.org/fhir --token "$TOKEN"`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, paths []string) error {
			if o.parallel < 1 || o.parallel > maxParallel {
				return fmt.Errorf("--parallel is %d: expected 1 to %d", o.parallel, maxParallel)
			}
			if o.server == "" {
				cfg, err := loadConfig(c)
				if err != nil {
					return err
				}
				if o.server = cfg.Server.BaseURL; o.server == "" {
					o.server = "http://" + cfg.Server.Listen
				}
			}
			if u, err := url.Parse(o.server); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				return fmt.Errorf("--server is %q: expected a URL that starts with http:// or https://", o.server)
			}
			o.server = strings.TrimRight(o.server, "/")
			return runLoad(c, o, paths)
		},
	}
	f := c.Flags()
	f.StringVar(&o.server, "server", "", "base URL of the server (default the configured one)")
	f.StringVar(&o.token, "token", "", "bearer token")
	f.IntVar(&o.parallel, "parallel", max(4, 2*runtime.NumCPU()), "requests at the same time")
	f.StringVar(&o.state, "state", "kiln-load.state", "file of requests and answers")
	f.StringVar(&o.errors, "errors", "kiln-load.errors.ndjson", "file that failures are written to")
	f.DurationVar(&o.settle, "settle", 10*time.Second, "how long a request that was cut off may still be at work in the server")
	f.BoolVar(&o.quiet, "quiet", false, "no progress bar")
	return c
}

// maxParallel bounds the requests at the same time.
const maxParallel = 256

type loadOptions struct {
	server, token string
	parallel      int
	state, errors string
	settle        time.Duration
	quiet         bool
}

// loadResult is the summary of a load.
type loadResult struct {
	Requests  int     `json:"requests"`
	Skipped   int     `json:"skipped"` // requests that an earlier run had acknowledged
	Found     int     `json:"found"`   // resources that it had stored without learning of it
	Resources int     `json:"resources"`
	Failed    int     `json:"failed"`
	Bytes     int64   `json:"bytes"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"resourcesPerSecond"`
}

func runLoad(c *cobra.Command, o loadOptions, paths []string) error {
	files, total, err := findSources(paths)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("nothing to load in %s: expected .json, .ndjson, .gz, .zst, .tar, .tar.gz or .tar.zst", strings.Join(paths, ", "))
	}

	// 1. The first signal stops new requests, the second one those under way.
	taking, giveUp := context.WithCancelCause(c.Context())
	defer giveUp(nil)
	working, cut := context.WithCancel(context.WithoutCancel(c.Context()))
	defer cut()
	p := newPoster(o)
	p.stopping, p.giveUp = taking, func(err error) { giveUp(err) }
	if err := p.awaitServer(taking); err != nil {
		return err
	}

	// 2. What earlier runs did.
	if p.journal, err = openJournal(o.state, o.server, func(location string) (bool, error) { return p.hasResource(working, location) }); err != nil {
		return err
	}
	defer p.journal.close()
	if done, unsure := p.journal.counts(); done+unsure > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "going on after an earlier load: %d requests were acknowledged, %d have no answer and are looked up (%s)\n", done, unsure, o.state)
	}
	l := &loading{journal: p.journal, start: time.Now(), bar: progress(c.ErrOrStderr(), o.quiet || wantsJSON(c), total)}
	l.fails.path = o.errors
	stopped := l.listen(c, taking, cut)
	defer stopped()

	// 3. The work.
	loadAll(taking, files, o.parallel, handlers{
		skip: l.skip,
		post: func(it item) {
			l.began()
			l.done(it, p.postItem(working, it))
		},
		broken: l.broken,
	})
	l.bar.Finish()

	// 4. What came of it.
	result := l.result()
	if wantsJSON(c) {
		if err := printJSON(c.OutOrStdout(), result); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(c.OutOrStdout(), "%d resources in %d requests, %.1f s, %.0f resources/s; %d failed, %d requests skipped\n",
			result.Resources, result.Requests, result.Seconds, result.Rate, result.Failed, result.Skipped)
		if result.Found > 0 {
			fmt.Fprintf(c.OutOrStdout(), "%d resources were stored already by requests that had no answer\n", result.Found)
		}
	}
	if err := l.fails.close(); err != nil {
		return fmt.Errorf("error file: %w", err)
	}
	switch cause := context.Cause(taking); {
	case cause == nil:
	case errors.Is(cause, context.Canceled):
		return errors.New("interrupted: the same command goes on where this one stopped")
	default:
		return fmt.Errorf("%w; the same command goes on where this one stopped", cause)
	}
	if result.Failed > 0 {
		return fmt.Errorf("%d failed: see %s", result.Failed, o.errors)
	}
	return p.journal.remove()
}

// loading counts the results of a load so far.
type loading struct {
	journal *journal
	start   time.Time
	bar     *progressbar.ProgressBar

	mu       sync.Mutex
	counts   loadResult
	inFlight int
	fails    errorFile
}

// listen says that a signal came, and cuts the requests off at the second one. The
// function that it returns ends it.
func (l *loading) listen(c *cobra.Command, taking context.Context, cut func()) func() {
	over := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		select {
		case <-over:
			return
		case <-taking.Done():
		}
		if !errors.Is(context.Cause(taking), context.Canceled) {
			return // it is said at the end
		}
		again := make(chan os.Signal, 1)
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(again)
		l.mu.Lock()
		n := l.inFlight
		l.mu.Unlock()
		fmt.Fprintf(c.ErrOrStderr(), "\nstopping: waiting for %d answers; again to stop at once\n", n)
		select {
		case <-over:
		case <-again:
			cut()
		}
	})
	return func() { close(over); done.Wait() }
}

func (l *loading) began() {
	l.mu.Lock()
	l.inFlight++
	l.mu.Unlock()
}

// done counts an item that was sent.
func (l *loading) done(it item, a posted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	l.counts.Found += a.found
	if a.notSent {
		return
	}
	l.counts.Requests++
	l.counts.Resources += a.resources
	l.counts.Bytes += int64(a.bytes)
	l.fail(a.failures...)
	l.bar.Describe(fmt.Sprintf("%d resources, %.0f/s, %d failed", l.counts.Resources, l.rate(), l.counts.Failed))
	l.bar.Add64(it.weight)
}

// skip reports whether an earlier run has stored an item.
func (l *loading) skip(it item) bool {
	if !l.journal.recordOf(it.key).done {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Skipped++
	l.bar.Add64(it.weight)
	return true
}

// broken notes a file that cannot be read, or not to its end.
func (l *loading) broken(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(failure{Source: name, Error: err.Error()})
}

func (l *loading) fail(list ...failure) {
	l.counts.Failed += len(list)
	for _, f := range list {
		l.fails.add(f)
	}
}

func (l *loading) rate() float64 { return float64(l.counts.Resources) / time.Since(l.start).Seconds() }

func (l *loading) result() loadResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.counts
	r.Rate, r.Seconds = l.rate(), time.Since(l.start).Seconds()
	return r
}

// progress is a bar over the bytes of all files, or nothing where nobody looks.
func progress(w io.Writer, quiet bool, total int64) *progressbar.ProgressBar {
	if f, ok := w.(*os.File); !ok || quiet || !terminal(f) {
		return progressbar.DefaultSilent(total)
	}
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true),
	)
}

func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// failure is one line of the error file.
type failure struct {
	Source  string          `json:"source"`
	Status  string          `json:"status"`
	Outcome json.RawMessage `json:"outcome,omitempty"`
	Error   string          `json:"error,omitempty"`
}

// errorFile is made with the first failure.
type errorFile struct {
	path string
	adds bool // to a file that there is
	f    *os.File
	err  error
}

func (e *errorFile) add(f failure) {
	if e.f == nil && e.err == nil {
		flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
		if e.adds {
			flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
		}
		e.f, e.err = os.OpenFile(e.path, flags, 0o666)
	}
	if e.err == nil {
		e.err = json.NewEncoder(e.f).Encode(f)
	}
}

func (e *errorFile) close() error {
	if e.f != nil {
		if err := e.f.Close(); e.err == nil {
			e.err = err
		}
	}
	return e.err
}
