package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
)

func bulkCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "bulk",
		Short: "Measure bulk export beside paging, bulk import beside transaction bundles, and live requests beside both",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if s.corpus == "" {
				return errors.New("no transaction bundles: name a folder or archive with --corpus")
			}
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			first, err := t.measure(c.Context(), importWorkload, Load{Clients: 4, Seed: s.seed}, 1)
			if err != nil {
				return err
			}
			if err := t.settle(c.Context(), c.ErrOrStderr()); err != nil {
				return err
			}
			results, goals, err := t.bulk(c.Context(), s)
			if err != nil {
				return err
			}
			out := Section7{Machine: machine(), Goals: goals, Results: append([]Result{first}, results...)}
			if err := s.report(c.OutOrStdout(), out.Results); err != nil {
				return err
			}
			return writeGoals(c.OutOrStdout(), out)
		},
	}
}

// awaitPoll waits until the next request for the status of a job that began at a time: 20 ms at first, 300 ms after
// two seconds. More would be throttled (jobs.polls_per_minute), and the end of a longer job be seen a minute late.
func awaitPoll(ctx context.Context, began time.Time) {
	pause := 20 * time.Millisecond
	if time.Since(began) > 2*time.Second {
		pause = 300 * time.Millisecond
	}
	wait(ctx, time.Now().Add(pause))
}

// startJob sends a kick-off and returns the URL of the status.
func startJob(x *Exchange, kickOff Request) (status string, err error) {
	if err := x.Do(kickOff); err != nil {
		return "", err
	}
	if x.Status != 202 {
		return "", fmt.Errorf("the kick-off of %s: %d %s", kickOff.Path, x.Status, excerpt(x.Body))
	}
	return string(x.resp.Header.Peek("Content-Location")), nil
}

// awaitJob polls the status of a job until the manifest is there.
func awaitJob(ctx context.Context, x *Exchange, status string) (manifest gjson.Result, err error) {
	for began := time.Now(); ctx.Err() == nil; awaitPoll(ctx, began) {
		if err := x.Do(Request{Method: "GET", Path: status}); err != nil {
			return manifest, err
		}
		if x.Status == 200 {
			return gjson.ParseBytes(bytes.Clone(x.Body)), nil
		}
		if x.Status != 202 && x.Status != 429 {
			return manifest, fmt.Errorf("the job %s: %d %s", status, x.Status, excerpt(x.Body))
		}
	}
	return manifest, ctx.Err()
}

// runJob sends a kick-off and polls until the manifest is there.
func runJob(ctx context.Context, x *Exchange, kickOff Request) (manifest gjson.Result, err error) {
	status, err := startJob(x, kickOff)
	if err != nil {
		return manifest, err
	}
	return awaitJob(ctx, x, status)
}

// lines is the number of lines of all files of a manifest.
func lines(manifest gjson.Result) (n int) {
	for _, f := range manifest.Get("output").Array() {
		n += int(f.Get("count").Int())
	}
	return n
}

// once is an operation that one worker does once.
func once(category string, do func(ctx context.Context, w *Worker) error) Op {
	return func(ctx context.Context, w *Worker) error {
		if w.Number > 0 {
			return io.EOF
		}
		begin := time.Now()
		if err := do(ctx, w); err != nil {
			return err
		}
		w.record(category, time.Since(begin), "")
		return io.EOF
	}
}

// export exports path and counts its resources; with download it gets each file too, and passes it to keep.
func export(path string, keep func(file []byte)) Op {
	return once("export", func(ctx context.Context, w *Worker) error {
		m, err := runJob(ctx, w.x, Request{Method: "GET", Path: path})
		if err != nil {
			return err
		}
		w.Moved(lines(m))
		if keep == nil {
			return nil
		}
		for _, f := range m.Get("output").Array() {
			if err := w.x.Do(Request{Method: "GET", Path: f.Get("url").Str}); err != nil || w.x.Status != 200 {
				return fmt.Errorf("%s: %d %v", f.Get("url").Str, w.x.Status, err)
			}
			keep(w.x.Body)
		}
		return nil
	})
}

// upload imports lines and counts the resources that it created.
func upload(text []byte) Op {
	return once("import", func(ctx context.Context, w *Worker) error {
		m, err := runJob(ctx, w.x, Request{Method: "POST", Path: "$import?inputSource=urn:bench", Body: text, ContentType: "application/fhir+ndjson"})
		if err != nil {
			return err
		}
		if errs := m.Get("error.#").Int(); errs > 0 {
			return fmt.Errorf("the import has errors: %s", m.Raw)
		}
		w.Moved(int(m.Get("output.0.extension.created").Int()))
		return nil
	})
}

// liveRate is the rate of the live requests beside an export and an import, in requests a second.
const liveRate = 1000

// restart replaces the server by a new one on the same database.
func (t *target) restart(ctx context.Context, s *settings) error {
	t.kiln.Stop()
	// Its folder of results is gone, and servers refuse to work in different ones.
	if _, err := t.db.Exec(ctx, "DELETE FROM job_directory"); err != nil {
		return err
	}
	k, err := startKiln(ctx, s.kiln, t.url, nil)
	if err != nil {
		return err
	}
	client, err := NewClient(k.URL, "")
	t.kiln, t.bench.Client, t.bench.Watched.Server = k, client, k.PID
	return err
}

// besideJob is live requests alone and beside a job, in pairs.
type besideJob struct{ alone, beside []*Measured }

// ratio is the median of the p99 beside the job as a part of the p99 alone, by pair.
func (b besideJob) ratio() float64 {
	var ratios []float64
	for i := range b.alone {
		ratios = append(ratios, float64(b.beside[i].Total().Latency.Quantile(0.99))/float64(b.alone[i].Total().Latency.Quantile(0.99)))
	}
	return figureOf(ratios).Median
}

// measureBeside measures live requests alone and beside jobs, in turns of some seconds.
func (t *target) measureBeside(ctx context.Context, l Load, live Op, kickOff func() Request) (besideJob, error) {
	watched := t.bench.Watched
	alone := func(ctx context.Context, l Load) (*Measured, error) {
		return drive(ctx, l, watched, t.bench.Client.NewExchange, live)
	}
	beside := func(ctx context.Context, l Load) (*Measured, error) {
		working, stop := context.WithCancel(ctx)
		defer stop()
		x := t.bench.Client.NewExchange()
		status, err := startJob(x, kickOff()) // an upload is over before the requests begin
		if err != nil {
			return nil, err
		}
		ended := make(chan error, 1)
		go func() {
			for {
				if _, err := awaitJob(working, x, status); working.Err() != nil {
					ended <- x.Do(Request{Method: "DELETE", Path: status})
					return
				} else if err != nil {
					ended <- err
					return
				}
				if err := x.Do(Request{Method: "DELETE", Path: status}); err != nil {
					ended <- err
					return
				}
				if status, err = startJob(x, kickOff()); err != nil {
					ended <- err
					return
				}
			}
		}()
		m, err := alone(ctx, l)
		stop()
		return m, errors.Join(err, <-ended)
	}
	var out besideJob
	var err error
	out.beside, out.alone, err = pair{this: beside, floor: alone, watched: []Watched{watched}}.measure(ctx, l, 1)
	return out, err
}

// bulk measures each figure of bulk data beside its floor: all rows of a run have the same weather.
func (t *target) bulk(ctx context.Context, s *settings) ([]Result, []Goal, error) {
	if t.kiln == nil || t.db == nil {
		return nil, nil, errors.New("bulk data is measured on servers of --kiln: leave --url out")
	}
	var results []Result
	run := func(k *Kiln, name string, l Load, op Op) (Result, error) {
		client, err := NewClient(k.URL, "")
		if err != nil {
			return Result{}, err
		}
		m, err := drive(ctx, l, Watched{Server: k.PID, Postmaster: t.bench.Watched.Postmaster}, client.NewExchange, op)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %w", name, err)
		}
		r := summarise(name, l, []*Measured{m})
		results = append(results, r)
		return r, nil
	}
	paged, err := t.measure(ctx, pageAllWorkload, Load{Clients: 4, Seed: s.seed}, 1)
	if err != nil {
		return nil, nil, err
	}
	results = append(results, paged)

	if err := t.restart(ctx, s); err != nil { // the memory of a server that has done nothing else
		return nil, nil, err
	}
	fresh := t.kiln
	single := Load{Clients: 1, Seed: s.seed}
	exported, err := run(fresh, "export", single, export("$export", nil))
	if err != nil {
		return nil, nil, err
	}
	var text []byte
	downloaded, err := run(fresh, "export and download", single, export("$export", func(file []byte) { text = append(text, file...) }))
	if err != nil {
		return nil, nil, err
	}
	small, err := run(fresh, "export of Organizations", single, export("$export?_type=Organization", nil))
	if err != nil {
		return nil, nil, err
	}

	// Two copies of the same resources under ids of their own: one by transactions, one by $import.
	posted, err := t.measure(ctx, copiesWorkload(1, 1), Load{Clients: 4, Seed: s.seed}, 1)
	if err != nil {
		return nil, nil, err
	}
	posted.Workload = "transaction bundles"
	results = append(results, posted)
	imported, err := run(fresh, "$import", single, upload(copyBundle(text, 2)))
	if err != nil {
		return nil, nil, err
	}

	live, err := liveWorkload.Prepare(ctx, t.bench)
	if err != nil {
		return nil, nil, err
	}
	l := Load{Clients: 32, Rate: liveRate, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
	besideExport, err := t.measureBeside(ctx, l, live.Op, func() Request { return Request{Method: "GET", Path: "$export"} })
	if err != nil {
		return nil, nil, err
	}
	n := 2
	besideImport, err := t.measureBeside(ctx, l, live.Op, func() Request {
		n++
		return Request{Method: "POST", Path: "$import?inputSource=urn:bench", Body: copyBundle(text, n), ContentType: "application/fhir+ndjson"}
	})
	if err != nil {
		return nil, nil, err
	}
	results = append(results, summarise("live", l, besideExport.alone), summarise("live beside an export", l, besideExport.beside),
		summarise("live, for the import", l, besideImport.alone), summarise("live beside an import", l, besideImport.beside))
	return results, []Goal{
		rate("system export, to the manifest", 100000, exported.Resources.Median, paged.Resources.Median, 0.5, " res/s"),
		rate("system export, files downloaded too", 100000, downloaded.Resources.Median, paged.Resources.Median, 0.5, " res/s"),
		atMost("  server memory from a fresh start", 150, float64(exported.Memory["server"])/1e6, " MB"),
		atMost("export of some 1,000 resources", 1500, small.All.Latency.P99.Median, " ms"),
		rate("import", 25000, imported.Resources.Median, posted.Resources.Median, 0.9, " res/s"),
		{Workload: "  server memory", This: number(float64(imported.Memory["server"])/1e6) + " MB"},
		atMost("p99 of 1,000 live requests/s beside an export, of alone", 120, 100*besideExport.ratio(), " %"),
		{Workload: "p99 of 1,000 live requests/s beside an import, of alone", This: number(100*besideImport.ratio()) + " %"},
	}, nil
}
