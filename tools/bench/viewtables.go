package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
)

func tablesCommand(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "tables",
		Short: "Measure writes beside five tables of views, and how long the tables lag behind 1,000 writes a second",
		Long: `Measure creates of Observations on a server with five tables of views beside one without tables, each
on a database of its own, in turns. Then create 1,000 Observations a second, and measure the time from
each answer until SQL finds the row in the first table, and in the last.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.tables(c) },
	}
}

// The goals of tables.
const (
	tableCount       = 5
	tableWriteRatio  = 0.85 // creates beside tableCount tables, of those without tables
	tableLag         = 2000 // ms of p99
	tableRate        = 1000 // writes a second
	lagPoll          = 20 * time.Millisecond
	lastRowsDeadline = time.Minute
)

func (s *settings) tables(c *cobra.Command) error {
	ctx := c.Context()
	if s.url != "" || s.databaseURL != "" {
		return errors.New("two servers are measured in turns, each on its own database: leave --url and --database-url out")
	}
	t, err := s.target(ctx)
	if err != nil {
		return err
	}
	defer t.close()
	plainURL, err := t.cluster.CreateDatabase(ctx, "kiln_bench_plain")
	if err != nil {
		return err
	}
	plain, err := StartKiln(ctx, s.kiln, plainURL)
	if err != nil {
		return err
	}
	defer plain.Stop()
	for i := range tableCount {
		if err := t.makeTable(ctx, i); err != nil {
			return err
		}
	}

	l := Load{Clients: 32, Duration: s.duration, WarmUp: s.warmUp, Seed: s.seed}
	var serial atomic.Int64
	create := func(_ context.Context, w *Worker) error {
		w.Do("create", Request{Method: "POST", Path: "Observation", Body: lagObservation(serial.Add(1))})
		return nil
	}
	on := func(k *Kiln) func(context.Context, Load) (*Measured, error) {
		return func(ctx context.Context, l Load) (*Measured, error) { return t.drive(ctx, l, k, create) }
	}
	this, floor, err := pair{this: on(t.kiln), floor: on(plain)}.measure(ctx, l, s.runs)
	if err != nil {
		return err
	}
	results := []Result{summarise("create, five tables", l, this), summarise("create, no tables", l, floor)}
	goals := []Goal{pairedGoal("create, five tables, of creates without tables", this, floor, tableWriteRatio)}

	l.Rate = tableRate
	written, lags, err := t.measureLag(ctx, l, &serial)
	if err != nil {
		return err
	}
	results = append(results, summarise("1,000 creates a second, five tables", l, []*Measured{written}))
	for i, name := range []string{"first", "last"} {
		h := &lags[i]
		goals = append(goals, atMost(fmt.Sprintf("lag p99 of the %s of five tables (%d rows, p50 %s ms)", name, h.N(), number(milliseconds(h.Quantile(0.5)))),
			tableLag, milliseconds(h.Quantile(0.99)), " ms"))
	}
	if err := s.report(c.OutOrStdout(), results); err != nil {
		return err
	}
	if s.jsonFile != "-" {
		if err := writeGoals(c.OutOrStdout(), Section7{Machine: machine(), Goals: goals, Results: results}); err != nil {
			return err
		}
	}
	return anyErrors(results)
}

// lagObservation is an Observation whose value is a number of its own.
func lagObservation(serial int64) []byte {
	return fmt.Appendf(nil, `{"resourceType":"Observation","status":"final","code":{"coding":[{"system":"http://loinc.org","code":"8302-2"}]},"effectiveDateTime":"2019-05-17T10:30:00+01:00","valueQuantity":{"value":%d,"unit":"cm","system":"http://unitsofmeasure.org","code":"cm"}}`, serial)
}

// makeTable stores a view of Observations and makes it a table with an index on the value.
func (t *target) makeTable(ctx context.Context, i int) error {
	x := t.bench.Client.NewExchange()
	id := fmt.Sprintf("bench-lag-%d", i)
	view := fmt.Sprintf(`{"resourceType":"ViewDefinition","id":%q,"name":"bench_lag_%d","status":"active","resource":"Observation","select":[{"column":[
		{"name":"id","path":"getResourceKey()"},{"name":"code","path":"code.coding.code.first()"},{"name":"effective","path":"effective.ofType(dateTime)"},
		{"name":"value","path":"value.ofType(Quantity).value"},{"name":"unit","path":"value.ofType(Quantity).unit"}]}]}`, id, i)
	if err := x.Do(Request{Method: "PUT", Path: "ViewDefinition/" + id, Body: []byte(view), ContentType: "application/fhir+json"}); err != nil {
		return err
	}
	if x.Status != 201 {
		return fmt.Errorf("store the view: %d %s", x.Status, excerpt(x.Body))
	}
	at := t.kiln.URL[:len(t.kiln.URL)-len("/fhir")] + "/admin/views"
	if err := x.Do(Request{Method: "POST", Path: at, Body: fmt.Appendf(nil, `{"view":"ViewDefinition/%s","indexes":[["value"]]}`, id), ContentType: "application/json"}); err != nil {
		return err
	}
	if x.Status != 202 {
		return fmt.Errorf("make the table: %d %s", x.Status, excerpt(x.Body))
	}
	for ; ctx.Err() == nil; wait(ctx, time.Now().Add(lagPoll)) {
		if err := x.Do(Request{Method: "GET", Path: fmt.Sprintf("%s/bench_lag_%d", at, i)}); err != nil {
			return err
		}
		switch gjson.GetBytes(x.Body, "state").Str {
		case "current":
			return nil
		case "failed":
			return fmt.Errorf("the build failed: %s", excerpt(x.Body))
		}
	}
	return ctx.Err()
}

// measureLag creates Observations, and tells how long after the answer their rows are in the first and in the last table.
func (t *target) measureLag(ctx context.Context, l Load, serial *atomic.Int64) (*Measured, [2]Histogram, error) {
	var lags [2]Histogram
	var mu sync.Mutex
	var pending [2]map[int64]time.Time // answered, and not in the table yet
	for i := range pending {
		pending[i] = map[int64]time.Time{}
	}
	stop := make(chan struct{})
	watched := make(chan error, 1)
	go func() { watched <- t.watchTables(ctx, stop, &mu, &pending, &lags) }()
	written, err := t.drive(ctx, l, t.kiln, func(_ context.Context, w *Worker) error {
		n := serial.Add(1)
		if w.Do("create", Request{Method: "POST", Path: "Observation", Body: lagObservation(n)}) {
			now := time.Now()
			mu.Lock()
			for i := range pending {
				pending[i][n] = now
			}
			mu.Unlock()
		}
		return nil
	})
	close(stop)
	return written, lags, errors.Join(err, <-watched)
}

// watchTables looks for pending rows until it is stopped and all are found.
func (t *target) watchTables(ctx context.Context, stop <-chan struct{}, mu *sync.Mutex, pending *[2]map[int64]time.Time, lags *[2]Histogram) error {
	var deadline time.Time
	for ; ctx.Err() == nil; wait(ctx, time.Now().Add(lagPoll)) {
		left := 0
		for i, table := range []int{0, tableCount - 1} {
			mu.Lock()
			asked := make([]int64, 0, len(pending[i]))
			for n := range pending[i] {
				asked = append(asked, n)
			}
			mu.Unlock()
			if len(asked) == 0 {
				continue
			}
			rows, err := t.db.Query(ctx, fmt.Sprintf(`SELECT value::bigint FROM view.bench_lag_%d WHERE value = ANY($1::bigint[]::numeric[])`, table), asked)
			if err != nil {
				return err
			}
			now := time.Now()
			var found []int64
			for rows.Next() {
				var n int64
				if err := rows.Scan(&n); err != nil {
					return err
				}
				found = append(found, n)
			}
			if err := rows.Err(); err != nil {
				return err
			}
			mu.Lock()
			for _, n := range found {
				lags[i].Add(now.Sub(pending[i][n]))
				delete(pending[i], n)
			}
			left += len(pending[i])
			mu.Unlock()
		}
		select {
		case <-stop:
			switch {
			case left == 0:
				return nil
			case deadline.IsZero():
				deadline = time.Now().Add(lastRowsDeadline)
			case time.Now().After(deadline):
				return fmt.Errorf("%d rows are not in their table after %v", left, lastRowsDeadline)
			}
		default:
		}
	}
	return ctx.Err()
}
