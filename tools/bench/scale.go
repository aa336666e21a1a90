package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// copiesWorkload imports copies of the corpus from first on, each with ids of its own;
// copy 0 is the corpus itself.
func copiesWorkload(first, copies int) Workload {
	w := importWorkload
	w.Prepare = func(ctx context.Context, b *Bench) (Task, error) {
		bundles, err := b.Corpus.Load(ctx)
		if err != nil {
			return Task{}, err
		}
		var taken atomic.Int64
		return Task{Op: func(_ context.Context, w *Worker) error {
			i := int(taken.Add(1)) - 1
			if i >= copies*len(bundles) {
				return io.EOF
			}
			bundle := bundles[i%len(bundles)]
			if w.Do("bundle", Request{Method: "POST", Path: "", Body: copyBundle(bundle.JSON, first+i/len(bundles)), Minimal: true}) {
				w.Moved(bundle.Entries)
			}
			return nil
		}}, nil
	}
	return w
}

const (
	uuidFirstHyphen = 8 // its place in a UUID
	uuidLength      = 36
)

// copyBundle is a bundle with other UUIDs: those of its resources and identifiers. The
// same UUID becomes the same other one.
func copyBundle(bundle []byte, n int) []byte {
	if n == 0 {
		return bundle
	}
	out := bytes.Clone(bundle)
	for at := 0; ; {
		hyphen := bytes.IndexByte(out[at:], '-')
		if hyphen < 0 {
			return out
		}
		at += hyphen + 1
		begin := at - 1 - uuidFirstHyphen
		if begin < 0 || begin+uuidLength > len(out) || !isUUID(out[begin:begin+uuidLength]) {
			continue
		}
		at = begin + uuidLength
		var last [4]byte
		_, _ = hex.Decode(last[:], out[at-8:at])
		for i := range last {
			last[i] ^= byte(n >> (8 * i))
		}
		hex.Encode(out[at-8:at], last[:])
	}
}

// isUUID reports whether b, of a UUID's length, is one in lower case.
func isUUID(b []byte) bool {
	for i, c := range b {
		switch i {
		case uuidFirstHyphen, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

func copiesCommand(s *settings) *cobra.Command {
	var first, copies int
	c := &cobra.Command{
		Use:   "copies",
		Short: "Import copies of the corpus with other ids, to fill a server",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := s.target(c.Context())
			if err != nil {
				return err
			}
			defer t.close()
			r, err := t.measure(c.Context(), copiesWorkload(first, copies), Load{Clients: 4, Seed: s.seed}, 1)
			if err != nil {
				return err
			}
			return s.report(c.OutOrStdout(), []Result{r})
		},
	}
	c.Flags().IntVar(&first, "first", 0, "the first copy; 0 is the corpus itself")
	c.Flags().IntVar(&copies, "copies", 1, "how many copies")
	return c
}

func scaleCommand(s *settings) *cobra.Command {
	var size int
	c := &cobra.Command{
		Use:   "scale",
		Short: "Measure the rows of the design among many resources, and the slope",
		Long: `Import the corpus into a server of its own, measure, import copies of it with other
ids until there are --size resources, and measure again. The last column is the
second figure as a part of the first. 2 million resources take about 3 GB of disk and
ten minutes, 20 million about 28 GB and an hour.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if s.corpus == "" || s.url != "" {
				return errors.New("the scale is measured on a server of its own: --corpus is needed, --url is not for it")
			}
			return s.scale(c, size)
		},
	}
	c.Flags().IntVar(&size, "size", 2_000_000, "resources to end with")
	return c
}

// scaleRow is one figure at both sizes.
type scaleRow struct {
	name string
	at   [2]float64
	unit string
}

func (s *settings) scale(c *cobra.Command, size int) error {
	ctx := c.Context()
	t, err := s.target(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	entries := 0
	if err := t.bench.Corpus.Each(ctx, func(b Bundle) error { entries += b.Entries; return nil }); err != nil {
		return err
	}
	copies := max(2, (size+entries-1)/entries)
	var rows []scaleRow
	add := func(step int, name string, v float64, unit string) {
		for i := range rows {
			if rows[i].name == name {
				rows[i].at[step] = v
				return
			}
		}
		r := scaleRow{name: name, unit: unit}
		r.at[step] = v
		rows = append(rows, r)
	}
	var results []Result
	for step, part := range []struct{ first, copies int }{{0, 1}, {1, copies - 1}} {
		fmt.Fprintf(c.ErrOrStderr(), "import of %d × %d resources\n", part.copies, entries)
		imported, err := t.measure(ctx, copiesWorkload(part.first, part.copies), Load{Clients: 4, Seed: s.seed}, 1)
		if err != nil {
			return err
		}
		results = append(results, imported)
		add(step, "import", imported.Resources.Median, "res/s")
		if err := t.settle(ctx, c.ErrOrStderr()); err != nil {
			return err
		}
		t.bench.forgetSamples()
		for _, w := range []Workload{readWorkload, searchWorkload, liveWorkload, behindWorkload, crudWorkload} {
			fmt.Fprintf(c.ErrOrStderr(), "%s, 32 clients\n", w.Name)
			r, err := t.measure(ctx, w, Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed + uint64(step)}, s.runs)
			if err != nil {
				return err
			}
			results = append(results, r)
			add(step, w.Name, r.Rate.Median, "/s")
			for _, category := range r.Categories {
				add(step, w.Name+" "+category.Name+" p99", category.Latency.P99.Median, "ms")
			}
			add(step, w.Name+" memory", float64(r.Memory["server"])/1e6, "MB")
		}
	}
	if t.db != nil {
		f, done, err := t.openFloor(ctx, Corpus{Path: s.corpus, Limit: 20})
		if err != nil {
			return err
		}
		defer done()
		if f.Samples, err = t.bench.Samples(ctx); err != nil {
			return err
		}
		for _, p := range floorParts {
			if p.workload != "read" && p.workload != "search" && p.workload != "live" {
				continue
			}
			m, err := f.Run(ctx, p, Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed})
			if err != nil {
				return err
			}
			r := summarise("floor "+p.workload, Load{Clients: 32}, []*Measured{m})
			results = append(results, r)
			add(1, "floor of "+p.workload, r.Rate.Median, "/s")
		}
	}
	if s.jsonFile != "-" {
		fmt.Fprintf(c.OutOrStdout(), "\n%s, %s\n", machine(), time.Now().UTC().Format(time.RFC3339))
		w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "row\t%s\t%s\t\tpart\t\n", number(float64(entries)), number(float64(copies*entries)))
		for _, r := range rows {
			ratio := ""
			if r.at[0] > 0 {
				ratio = fmt.Sprintf("%.2f", r.at[1]/r.at[0])
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", r.name, number(r.at[0]), number(r.at[1]), r.unit, ratio)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return s.writeJSON(c.OutOrStdout(), results)
}
