package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
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
		Long: `Load posts what it finds through the server's ordinary REST interface: Bundles
of type transaction and batch as they are, other resources by PUT (POST without
an id), lines of .ndjson in batches.

PATH is a file or a folder: .json, .ndjson, each also .gz, and .tar, .tar.gz,
.tar.zst of them. Hospitals, practitioners and organizations come first, as others
refer to them. What the server acknowledged is noted in the state file, so that a
load that was interrupted goes on where it stopped; the file is removed when all
is loaded. What failed is told in the error file, and by a non-zero exit.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, paths []string) error {
			if o.server == "" {
				cfg, err := configured(c)
				if err != nil {
					return err
				}
				if o.server = cfg.Server.BaseURL; o.server == "" {
					o.server = "http://" + cfg.Server.Listen
				}
			}
			o.server = strings.TrimRight(o.server, "/")
			return runLoad(c, o, paths)
		},
	}
	f := c.Flags()
	f.StringVar(&o.server, "server", "", "base URL of the server (default the configured one)")
	f.StringVar(&o.token, "token", "", "bearer token")
	f.IntVar(&o.parallel, "parallel", max(4, 2*runtime.NumCPU()), "requests at the same time")
	f.StringVar(&o.state, "state", "kiln-load.state", "file that remembers what was acknowledged")
	f.StringVar(&o.errors, "errors", "kiln-load.errors.ndjson", "file that failures are written to")
	f.BoolVar(&o.quiet, "quiet", false, "no progress bar")
	return c
}

type loadOptions struct {
	server, token string
	parallel      int
	state, errors string
	quiet         bool
}

// loadResult is the summary of a load.
type loadResult struct {
	Requests  int     `json:"requests"`
	Skipped   int     `json:"skipped"` // acknowledged by an earlier run
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
		return fmt.Errorf("nothing to load in %s: expected .json, .ndjson, .gz, .tar, .tar.gz or .tar.zst", strings.Join(paths, ", "))
	}
	state, err := openState(o.state, o.server)
	if err != nil {
		return err
	}
	defer state.close()
	if state.known() > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "going on after an earlier load: %d requests were acknowledged (%s)\n", state.known(), o.state)
	}
	p := newPoster(o)
	bar := progress(c.ErrOrStderr(), o.quiet || wantsJSON(c), total)
	var (
		mu     sync.Mutex
		result loadResult
		fails  errorFile
		start  = time.Now()
	)
	fails.path = o.errors
	done := func(it item, a posted) {
		mu.Lock()
		defer mu.Unlock()
		result.Requests++
		result.Resources += a.resources
		result.Failed += len(a.failures)
		result.Bytes += int64(len(it.data))
		for _, f := range a.failures {
			fails.add(f)
		}
		if len(a.failures) == 0 {
			state.add(it.key)
		}
		rate := float64(result.Resources) / time.Since(start).Seconds()
		bar.Describe(fmt.Sprintf("%d resources, %.0f/s, %d failed", result.Resources, rate, result.Failed))
		bar.Add64(it.weight)
	}
	skip := func(it item) bool {
		if !state.has(it.key) {
			return false
		}
		mu.Lock()
		result.Skipped++
		bar.Add64(it.weight)
		mu.Unlock()
		return true
	}
	err = loadAll(c.Context(), files, o.parallel, skip, func(ctx context.Context, it item) { done(it, p.post(ctx, it)) })
	bar.Finish()
	result.Seconds = time.Since(start).Seconds()
	result.Rate = float64(result.Resources) / result.Seconds
	if cerr := fails.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		if err := printJSON(c.OutOrStdout(), result); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(c.OutOrStdout(), "%d resources in %d requests, %.1f s, %.0f resources/s; %d failed, %d requests skipped\n",
			result.Resources, result.Requests, result.Seconds, result.Rate, result.Failed, result.Skipped)
	}
	if result.Failed > 0 {
		return fmt.Errorf("%d failed: see %s", result.Failed, o.errors)
	}
	return state.remove()
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
	f    *os.File
	err  error
}

func (e *errorFile) add(f failure) {
	if e.f == nil && e.err == nil {
		e.f, e.err = os.Create(e.path)
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

// state remembers the keys of what the server acknowledged, one a line.
type state struct {
	path   string
	prefix string
	mu     sync.Mutex
	seen   map[string]bool
	f      *os.File
}

func openState(path, server string) (*state, error) {
	s := &state{path: path, prefix: server + " ", seen: make(map[string]bool)}
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	// A line that was cut off by a crash has no end and does not count.
	for line := range strings.SplitAfterSeq(string(old), "\n") {
		if key, ok := strings.CutSuffix(line, "\n"); ok {
			if key, ok = strings.CutPrefix(key, s.prefix); ok {
				s.seen[key] = true
			}
		}
	}
	s.f, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return s, err
}

func (s *state) known() int { return len(s.seen) }

func (s *state) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[key]
}

func (s *state) add(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[key] = true
	fmt.Fprintf(s.f, "%s%s\n", s.prefix, key)
}

func (s *state) close() { s.f.Close() }

func (s *state) remove() error {
	s.f.Close()
	return os.Remove(s.path)
}
